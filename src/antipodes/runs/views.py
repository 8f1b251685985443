"""The inputs of the towers: random views of a batch in training, the plain input in evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from antipodes.data import Raw, Samples
from antipodes.data.augment import Augmentation, multi_crop
from antipodes.methods import Batch, InputViews, Method
from antipodes.registry import find
from antipodes.seeding import generator

Prepare = Callable[[Raw], Tensor]
"""A function from a batch of one raw input of the dataset to an encoder's input."""


@dataclass(frozen=True)
class Recipes:
    """Options of a run's augmentation in addition to the arguments of its recipe.

    Args:
        statistics: The mean and standard deviation that normalise views: `given` by mean and std (by default
            ImageNet's), or those of the training `dataset`, which are measured before the first step and written into
            config.yaml as mean and std.
        second: Name of another recipe for the second view, such as byol-second.
    """

    statistics: Literal["given", "dataset"] = "given"
    second: str | None = None


class FrozenFeatures:
    """The features of a frozen encoder by row, or by text if a row has several texts.

    Args:
        features: (m, F), memory-mapped.
        places: Text -> its row in `features`; None if the rows of `features` are those of the dataset.
    """

    def __init__(self, features: Tensor, places: Mapping[str, int] | None = None) -> None:
        self.features, self.places = features, places

    @property
    def by_row(self) -> bool:
        """Return True if the row determines the features, so that its input need not be read."""
        return self.places is None

    def __call__(self, rows: Tensor, raw: Raw | None) -> Tensor:
        """Return the features (b, F) of some rows, given their raw input."""
        if self.places is not None:
            assert raw is not None
            rows = torch.tensor([self.places[text] for text in raw])
        return self.features[rows.cpu()]


class BatchMaker:
    """Makes the batches of a run.

    Images get random views by the run's augmentation. Texts are tokenised by their encoder and vectors are unchanged,
    so two views of them differ only by the encoder's dropout.

    Args:
        config: The configuration of the run.
        data: The dataset.
        method: The method that the batches are for.
        device: The device for the batches.
        rank: The rank of this process.
        world_size: Number of processes.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        data: Samples,
        method: Method,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.data, self.method, self.device = data, method, device
        self.rank, self.world_size = rank, world_size
        self.inputs = list(dict.fromkeys(name for plan in method.network.plans.values() for name in plan.inputs))
        self.plain = {name: plain_view(method, data.image_size, name) for name in self.inputs}
        self.locked: dict[str, FrozenFeatures] = {}  # inputs whose features are known already
        self._recipe: Augmentation | None = None
        self._second: Augmentation | None = None
        self._crops: list[Augmentation] = []
        if any(data.modalities[name] == "image" for name in self.inputs):
            size: int = data.image_size
            self._recipe = build_augmentation(config["augmentation"], size, method.normalised)
            self._second = self._recipe
            if (second := config["augmentation"].get("second")) is not None:
                if method.views < 2:
                    raise ValueError(f"augmentation.second {second} needs a second view, and this method has one")
                self._second = build_augmentation({"name": second, **method.pixels}, size, method.normalised)
            self._crops = _smaller(method, size, self._recipe)

    def batch(self, rows: Tensor, raw: Mapping[str, Raw], seeds: tuple[int, ...]) -> Batch:
        """Make the batch of some rows; everything random follows from the seeds."""
        unread = self.unread()
        inputs = {name: self._see(name, rows, None if name in unread else raw[name], seeds) for name in self.inputs}
        return Batch(self.data.sample_ids(rows).to(self.device), inputs, rows.to(self.device))

    def unread(self) -> frozenset[str]:
        """Return the inputs that need not be read, because their features are known by row."""
        return frozenset(name for name, known in self.locked.items() if known.by_row)

    def _see(self, name: str, rows: Tensor, raw: Raw | None, seeds: tuple[int, ...]) -> InputViews:
        count, supports = self.method.views, self.method.supports
        raw = raw.to(self.device) if isinstance(raw, Tensor) else raw
        if name in self.locked or self.data.modalities[name] != "image":
            seen = self.locked[name](rows, raw) if name in self.locked else self.plain[name](raw)  # type: ignore[arg-type]
            seen = seen.to(self.device)
            return InputViews([seen] * count, [seen] * supports, plain=seen if self.method.plain else None)
        assert isinstance(raw, Tensor)
        assert self._recipe is not None
        assert self._second is not None
        recipes = [self._recipe] * (count + supports) + self._crops
        if count > 1:
            recipes[1] = self._second
        views = [
            recipe(raw, generator("views", *seeds, number), rank=self.rank, world_size=self.world_size)
            for number, recipe in enumerate(recipes)
        ]
        return InputViews(
            views[:count],
            views[count : count + supports],
            views[count + supports :],
            self.plain[name](raw) if self.method.plain else None,
        )


def build_augmentation(spec: Mapping[str, Any], size: int, normalised: bool = True) -> Augmentation:
    """Build the recipe for views of this size, without normalisation if the method needs RGB in [0, 1]."""
    component = find("augmentation", spec["name"])
    others = {"name", *(field.name for field in fields(Recipes))}
    arguments = {**component.preset, **{key: spec[key] for key in spec if key not in others}, "size": size}
    if not normalised:
        arguments |= {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    recipe: Augmentation = component.target(**arguments)
    return recipe


def with_statistics(config: dict[str, Any], data: Samples) -> dict[str, Any]:
    """Return the configuration with the training data's mean and standard deviation, if it selects them.

    These two numbers per channel are used by training views, smaller crops, evaluation and exported files.

    Args:
        config: The configuration of a new run.
        data: The training split.

    Raises:
        ValueError: if the data has no images, or the recipe does not normalise.
    """
    spec = config["augmentation"]
    if spec.get("statistics") != "dataset":
        return config
    if not {"mean", "std"} <= inspect.signature(find("augmentation", spec["name"]).target).parameters.keys():
        raise ValueError(f"augmentation {spec['name']} takes no mean and std: leave its statistics as they are")
    mean, std = data.statistics()
    return {**config, "augmentation": {**spec, "mean": list(mean), "std": list(std)}}


def plain_view(method: Method, size: int, input_name: str | None = None) -> Prepare:
    """Return the function that prepares an input of a dataset for the method's encoders, without randomness.

    Args:
        method: The method; images are normalised as in its training, and its encoder tokenises texts.
        size: Side of images; other inputs have none.
        input_name: The name of the input; by default that of the first tower.
    """
    network = method.network
    tower = network.names()[0] if input_name is None else network.seeing(input_name)[0]
    modality = network.plans[tower].modality
    if modality == "image":
        recipe = build_augmentation({"name": "plain", **method.pixels}, size, method.normalised)
        return lambda images: recipe(images, torch.Generator())  # type: ignore[arg-type]
    if modality == "text":
        tokenize: Prepare = network[tower].encoder.tokenize  # type: ignore[assignment]
        return tokenize
    return lambda vectors: vectors  # type: ignore[return-value]


def _smaller(method: Method, size: int, recipe: Augmentation) -> list[Augmentation]:
    """Return the recipes of the method's smaller crops, which show smaller parts by CLSA's rule."""
    if not method.crops:
        return []
    if not all(1 <= crop <= size for crop in method.crops):
        raise ValueError(f"crops must be between 1 and the images' size of {size}, got {list(method.crops)}")
    views = multi_crop(method.crop_recipe, (size, *method.crops), mean=recipe.mean, std=recipe.std).views[1:]
    return list(views)
