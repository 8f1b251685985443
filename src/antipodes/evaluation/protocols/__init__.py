"""The evaluation protocols, a file each; `antipodes.evaluation.names` is their registry."""
