"""The one training loop, and the run folder it writes."""
