"""What the losses refuse."""


class NotFinite(ValueError):
    """Embeddings hold NaN or infinite numbers: in a training run, the sign that it has diverged."""
