"""The evaluation protocols, a file each; `antipodes.evaluation.protocol` is their registry."""
