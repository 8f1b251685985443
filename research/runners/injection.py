"""Captioned photos with unmarked copies among them: which, how changed, and what locked towers see.

1. A share of the photos is copied under new rows. A copy is cropped, recompressed, or both.
2. The captions of a copied photo are divided: the original keeps some, the copy has the others. So a copy's caption
   says the same in other words, and no two rows share a caption.
3. Photos go through EfficientNet-Lite0 and captions through MiniLM, both as they come; what these see of the originals
   is kept in the user's cache folder.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antipodes.data.augment.views import Plain
from antipodes.data.captions import Captions
from antipodes.data.columns import draw_choices
from antipodes.data.dataset import limited
from antipodes.data.image_opening import opened_image
from antipodes.encoders import create
from antipodes.encoders.minilm import MiniLM
from antipodes.runs.embedding import cached_features, embed_dataset
from antipodes.seeding import generator

SIZE = 128
BATCH = 256
Change = Literal["cropped", "recompressed", "both"]
CHANGES: tuple[Change, ...] = get_args(Change)
KEPT = (0.75, 0.95)  # side of a crop
QUALITY = 30  # of a JPEG that was recompressed


@dataclass(frozen=True)
class Injected:
    """Rows of photos with captions, originals first, then copies.

    Args:
        images: (n, 1280) what the image tower sees.
        texts: (m, 384) what the text tower sees of every caption.
        captions: the rows of `texts` that belong to every row.
        source: (n,) the photo that every row shows: rows with the same one are duplicates.
        changes: (n,) the number of the change in CHANGES, -1 for what was not changed.
        pixels: (n, 3, H, H) uint8.
    """

    images: Tensor
    texts: Tensor
    captions: tuple[tuple[int, ...], ...]
    source: Tensor
    changes: Tensor
    pixels: Tensor

    def drawn(self, draw: tuple[int, ...], rows: Tensor) -> Tensor:
        """One caption of each of these rows, by the numbers `draw` and the row alone, (b, 384)."""
        counts = np.array([len(self.captions[row]) for row in rows.tolist()])
        which = draw_choices(draw, rows.numpy(), counts)
        return self.texts[[self.captions[row][k] for row, k in zip(rows.tolist(), which.tolist(), strict=True)]]


@cache
def inject(path: str, images: int | None, share: float, seed: int) -> Injected:
    """Copy a share of the photos of a dataset.

    Args:
        path: A folder or zip of photos with captions, such as Flickr8k.
        images: Use only so many photos, always the same ones; None all of them.
        share: Of them that are copied.
        seed: Of the choice, of the changes, and of which captions a copy has.
    """
    data = Captions(path, size=SIZE, decode=SIZE)
    photos, texts, places = locked_features(data)
    used = torch.arange(len(data)) if images is None else limited(len(data), images)
    assert used is not None
    captions = [tuple(places[text] for text in dict.fromkeys(data.captions(row))) for row in used.tolist()]
    copied = [row for row in chosen_rows(len(used), share, seed).tolist() if len(captions[row]) > 1]
    draws = generator("injected changes", seed)
    changed = [CHANGES[number % len(CHANGES)] for number in range(len(copied))]
    pixels = data.fetch(used)
    copies = torch.stack([change(pixels[row], how, draws) for row, how in zip(copied, changed, strict=True)])
    others = []
    for row in copied:
        captions[row], given = divided(captions[row], draws)
        others.append(given)
    return Injected(
        torch.cat((photos[used], _see(copies))),
        texts,
        (*captions, *others),
        torch.cat((torch.arange(len(used)), torch.tensor(copied))),
        torch.cat((torch.full((len(used),), -1), torch.tensor([CHANGES.index(how) for how in changed]))),
        torch.cat((pixels, copies)),
    )


def chosen_rows(count: int, share: float, seed: int) -> Tensor:
    """The rows that are copied, at least two of them, in rising order."""
    order = torch.randperm(count, generator=generator("injected rows", seed))
    return order[: max(2, round(share * count))].sort().values


def divided(captions: tuple[int, ...], draws: torch.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Captions in two parts without one in common: the larger half, and the rest."""
    order = torch.randperm(len(captions), generator=draws).tolist()
    half = (len(captions) + 1) // 2
    return tuple(captions[k] for k in order[:half]), tuple(captions[k] for k in order[half:])


def change(image: Tensor, how: Change, draws: torch.Generator) -> Tensor:
    """A copy (3, H, H) uint8 of an image: a part of it at the old size, recompressed as a JPEG, or both."""
    side = image.shape[-1]
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    if how != "recompressed":
        low, high = KEPT
        kept = round(side * (low + (high - low) * float(torch.rand((), generator=draws))))
        left, top = torch.randint(side - kept + 1, (2,), generator=draws).tolist()
        box = (left, top, left + kept, top + kept)
        picture = picture.resize((side, side), Image.Resampling.BILINEAR, box=box)
    if how != "cropped":
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=QUALITY)
        with opened_image(file.getvalue()) as compressed:
            picture = compressed.convert("RGB")
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def locked_features(data: Captions) -> tuple[Tensor, Tensor, dict[str, int]]:
    """What the towers see of a dataset: photos (n, 1280), captions (m, 384), and the row of every caption's text.

    The words that tell cached features apart are those of a run with the same frozen towers, which then shares them.
    """
    view = Plain(SIZE)
    pixels = [("mean", view.mean), ("std", view.std)]
    texts = data.corpus("text")
    photos = cached_features(
        _image_tower(),
        repr((data.fingerprint, "image", SIZE, pixels)),
        lambda: embed_dataset(
            _image_tower(),
            data,
            preprocess=lambda raw: view(raw, torch.Generator()),  # type: ignore[arg-type]
            input_name="image",
        ),
    )
    words = cached_features(_text_tower(), repr((data.fingerprint, "text", SIZE, pixels)), lambda: _read(texts))
    return photos.clone(), words.clone(), {text: place for place, text in enumerate(texts)}


@cache
def _image_tower() -> torch.nn.Module:
    return create("efficientnet-lite0", probe_size=SIZE).eval()


@cache
def _text_tower() -> MiniLM:
    return MiniLM().eval()


@torch.no_grad()
def _see(images: Tensor) -> Tensor:
    view = Plain(SIZE)
    return torch.cat([_image_tower()(view(part, torch.Generator())) for part in images.split(BATCH)])


@torch.no_grad()
def _read(texts: list[str]) -> Tensor:
    tower = _text_tower()
    parts = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return torch.cat([tower(tower.tokenize(part)) for part in parts])
