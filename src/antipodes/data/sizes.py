"""How large images are decoded, and how large the views are that are made of them."""

from collections.abc import Sequence

from antipodes.data.image_opening import Source
from antipodes.data.pictures import usual_side

_DEFAULT_SIZE = 64
_SMALLEST_DEFAULT = 32
_MARGIN = 8, 7  # of the decoded image over the view: 256 for views of 224


def decode_size(sources: Sequence[Source], size: int | None, decode: int | None) -> tuple[int, int]:
    """Return the side of views and that of decoded images.

    Args:
        sources: the images; the headers of some of them are read where something is left open.
        size: side of views. None is 64, or less where the images themselves are smaller, but at least 32.
        decode: side of the decoded images. None is 8/7 of ``size`` (256 for 224), but no more than the images
            have, nor less than ``size``.

    Raises:
        ValueError: if a side is below 1.
    """
    for name, value in (("size", size), ("decode", decode)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1 pixel, got {value}")
    if size is not None and decode is not None:
        return size, decode
    usual = usual_side(sources) or _DEFAULT_SIZE
    if size is None:
        size = max(_SMALLEST_DEFAULT, min(_DEFAULT_SIZE, usual if decode is None else decode))
    if decode is None:
        decode = max(size, min(_MARGIN[0] * size // _MARGIN[1], usual))
    return size, decode
