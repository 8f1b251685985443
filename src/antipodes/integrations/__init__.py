"""Adapters for other libraries, one file each, named as the library; none is imported before it is asked for."""
