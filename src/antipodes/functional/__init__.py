"""Pure tensor maths without state: the contrast kernel, rules and selections. Import from its modules."""
