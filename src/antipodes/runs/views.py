"""What towers see of a batch: random views while training, the plain input otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from antipodes.data import Raw, Samples
from antipodes.data.augment import Augmentation, multi_crop
from antipodes.methods import Batch, Inputs, Method
from antipodes.registry import find
from antipodes.seeding import generator

Prepare = Callable[[Raw], Tensor]
"""A batch of one input as the dataset has it to what an encoder takes."""


@dataclass(frozen=True)
class Recipes:
    """What a run's augmentation may say beside the arguments of its recipe.

    Args:
        statistics: By which mean and standard deviation views are normalised: `given` by mean and std, which are
            ImageNet's unless told otherwise, or those of the training `dataset`, measured before the first step and
            written into config.yaml as mean and std.
        second: Recipe by name of the second view, where it differs from that of the first, such as byol-second.
    """

    statistics: Literal["given", "dataset"] = "given"
    second: str | None = None


class LockedFeatures:
    """What a frozen encoder makes of an input, by row, or by text where a row has several.

    Args:
        features: (m, F), memory-mapped.
        places: Text -> its row of `features`; None where it is the row of the dataset.
    """

    def __init__(self, features: Tensor, places: Mapping[str, int] | None = None) -> None:
        self.features, self.places = features, places

    @property
    def by_row(self) -> bool:
        """Whether the row alone tells its features, whatever the dataset has of it."""
        return self.places is None

    def __call__(self, rows: Tensor, raw: Raw | None) -> Tensor:
        """The features (b, F) of some rows, given what the dataset has of them."""
        if self.places is not None:
            assert raw is not None
            rows = torch.tensor([self.places[text] for text in raw])
        return self.features[rows.cpu()]


class Views:
    """Makes the batches of a run.

    Images get random views by the run's augmentation; texts are tokenised by their encoder and vectors stay as they
    are, so their views are alike and what differs between two of them is the encoder's own dropout.

    Args:
        config: Of the run.
        data: What the batches come from.
        method: What they are for.
        device: Where to put them.
        rank: Of this process.
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
        self.inputs = list(dict.fromkeys(plan.input for plan in method.network.plans.values() if plan.input))
        self.plain = {name: plain_view(method, data.image_size, name) for name in self.inputs}
        self.locked: dict[str, LockedFeatures] = {}  # inputs whose features are known already
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
        """The batch of some rows; what is random follows from the seeds alone."""
        unread = self.unread()
        inputs = {name: self._see(name, rows, None if name in unread else raw[name], seeds) for name in self.inputs}
        return Batch(self.data.sample_ids(rows).to(self.device), inputs, rows.to(self.device))

    def unread(self) -> frozenset[str]:
        """The inputs that nobody has to fetch: what their encoders make of them is known by row."""
        return frozenset(name for name, known in self.locked.items() if known.by_row)

    def _see(self, name: str, rows: Tensor, raw: Raw | None, seeds: tuple[int, ...]) -> Inputs:
        count, supports = self.method.views, self.method.supports
        raw = raw.to(self.device) if isinstance(raw, Tensor) else raw
        if name in self.locked or self.data.modalities[name] != "image":
            seen = self.locked[name](rows, raw) if name in self.locked else self.plain[name](raw)  # type: ignore[arg-type]
            seen = seen.to(self.device)
            return Inputs([seen] * count, [seen] * supports, plain=seen if self.method.plain else None)
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
        return Inputs(
            views[:count],
            views[count : count + supports],
            views[count + supports :],
            self.plain[name](raw) if self.method.plain else None,
        )


def build_augmentation(spec: Mapping[str, Any], size: int, normalised: bool = True) -> Augmentation:
    """The recipe for views of this size; a method that wants RGB in [0, 1] gets it unnormalised."""
    component = find("augmentation", spec["name"])
    others = {"name", *(field.name for field in fields(Recipes))}
    arguments = {**component.preset, **{key: spec[key] for key in spec if key not in others}, "size": size}
    if not normalised:
        arguments |= {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    recipe: Augmentation = component.target(**arguments)
    return recipe


def with_statistics(config: dict[str, Any], data: Samples) -> dict[str, Any]:
    """The configuration with the mean and the standard deviation of the training data, where it asks for those.

    Everything that shows images of a run to its encoders reads these two numbers per channel: training views and their
    smaller crops, the plain view of evaluation, and exported files.

    Args:
        config: Of a run that begins.
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
    """An input of a dataset as the method's encoders see it when nothing is random.

    Args:
        method: Whose pixels are normalised as its views were in training, and whose encoders tokenise.
        size: Side of images; other inputs have none.
        input_name: Which input; by default that of the first tower.
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
    """The method's smaller crops, which show smaller parts, by CLSA's rule, with the pixels of the other views."""
    if not method.crops:
        return []
    if not all(1 <= crop <= size for crop in method.crops):
        raise ValueError(f"crops must be between 1 and the images' size of {size}, got {list(method.crops)}")
    views = multi_crop(method.crop_recipe, (size, *method.crops), mean=recipe.mean, std=recipe.std).views[1:]
    return list(views)
