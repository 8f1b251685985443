"""Runners: studies that are no grid of training runs but an experiment of their own, such as a theorem's toy."""
