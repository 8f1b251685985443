"""Studies: a grid of runs described by a YAML file, executed, compared with a baseline and reported."""
