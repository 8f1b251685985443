"""Augmentation as batched tensor operations with per-sample parameters, on any device.

`augmentation("simclr", size=32)` builds a recipe by name; calling it with a batch of uint8 images and a generator
gives normalised float views. `multi_crop` builds several views at once.
"""

from antipodes.data.augment.base import Augmentation, Parameters
from antipodes.data.augment.recipes import augmentation, multi_crop
from antipodes.data.augment.views import MultiCrop, Plain, RandomView

__all__ = ["Augmentation", "MultiCrop", "Parameters", "Plain", "RandomView", "augmentation", "multi_crop"]
