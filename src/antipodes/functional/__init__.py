"""Pure tensor maths without state: the contrast kernel, rules, selections and soft labels."""

from antipodes.functional.contrast import Sums, contrast
from antipodes.functional.rule import Group, Rule

__all__ = ["Group", "Rule", "Sums", "contrast"]
