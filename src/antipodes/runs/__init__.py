"""A run on disk, and what is built from its configuration: what training and evaluation both need."""
