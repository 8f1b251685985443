"""Hostile input for the whole package: `python -m tests.attack`, or `make attack`. Each part can be run by itself."""
