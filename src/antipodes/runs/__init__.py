"""A run on disk, and the objects that its configuration describes: what training and evaluation both need."""
