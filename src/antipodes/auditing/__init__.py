"""What is in a set of embeddings: duplicates, likely false negatives, outliers, and the groups that a loss can read."""
