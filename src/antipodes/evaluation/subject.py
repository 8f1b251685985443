"""`Subject`: a run, or given features, with everything that protocols need; features are embedded once, when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from antipodes.data import Raw, Samples, subset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.features import ClassifiedFeatures, FeatureSet, split_features, stratified_split
from antipodes.methods import Method
from antipodes.negatives import Policy
from antipodes.runs.towers import PairedFeatures, Progress, Space, paired_towers, text_tower, tower_features
from antipodes.runs.views import build_augmentation

Result = TypeVar("Result")


@dataclass(frozen=True)
class Subject:
    """A run, or features from elsewhere, as the input of protocols.

    Args:
        method: The method whose encoder is evaluated; None with given features.
        data: The training split; its test split, or a fifth of it if there is none, is the test data.
        given: Features of train and test, instead of a method and data.
        paired: Features of images and texts, instead of a method with two towers.
        classified: Features of images and classes, instead of a method with two towers and images of classes.
        others: Datasets to transfer to, with labels.
        other_statistics: How images of other datasets are normalised: as those of the run, or by their own statistics.
        size: Side to which images are scaled for the network; that of the data by default.
        centre_crop: Share of height and width around the centre that images are cut to; the papers' test view of
            ImageNet is 0.875 (photos decoded to 256 pixels, 224 of them seen).
        test_limit: Number of test images that are used, at most.
        batch_size: The batch size of training, for protocols on batches.
        recipe: The augmentation of training, for protocols on its views; None takes plain images.
        seed: Seed of every random draw.
        device: The device to run networks on.
        workers: Processes that decode images.
        progress: Called with (images done, all images), separately for each dataset.
    """

    method: Method | None = None
    data: Samples | None = None
    given: tuple[FeatureSet, FeatureSet] | None = None
    paired: PairedFeatures | None = None
    classified: ClassifiedFeatures | None = None
    others: Sequence[Samples] = ()
    other_statistics: Literal["run", "own"] = "run"
    size: int | None = None
    centre_crop: float = 1.0
    test_limit: int | None = None
    batch_size: int = 256
    recipe: Augmentation | None = None
    seed: int = 0
    device: str = "cpu"
    workers: int = 0
    progress: Progress | None = None
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def has_features(self) -> bool:
        """True if features are given, or can be computed."""
        return self.given is not None or (self.method is not None and self.data is not None)

    @cached_property
    def part_without_labels(self) -> str | None:
        """`train` or `test` if that part has no labels, else None; found without embedding anything."""
        train, test = self.given if self.given is not None else (self.data, self.held_out)
        if train is None or train.labels is None:
            return "train"
        return "test" if test is not None and test.labels is None else None

    @cached_property
    def held_out(self) -> Samples | None:
        """The test split; None if the dataset has none."""
        return None if self.data is None else self.data.held_out(self.test_limit)

    @property
    def train(self) -> FeatureSet:
        """Features of the training images."""
        return self._features[0]

    @property
    def test(self) -> FeatureSet:
        """Features of the test images."""
        return self._features[1]

    def labels(self) -> tuple[Tensor, Tensor]:
        """Return the labels of train (n,) and test (m,), for a protocol whose needs were checked."""
        train, test = self.train.labels, self.test.labels
        assert train is not None
        assert test is not None
        return train, test

    def labelled_images(self) -> tuple[Samples, Samples]:
        """Return training and test images with labels: the dataset's splits, or a split of it class by class."""
        assert self.data is not None
        if self.held_out is not None:
            return self.data, self.held_out
        assert self.data.labels is not None
        kept, held = stratified_split(self.data.labels, 0.2, 0)  # the same split as `split_features`
        return subset(self.data, kept), subset(self.data, held)

    def policies(self) -> list[Policy]:
        """Return the policies of the run."""
        return [] if self.method is None else [policy for policy, _ in self.directed_policies()]

    def directed_policies(self) -> list[tuple[Policy, str]]:
        """Return the policy of every direction that has one (joined policies as one), with the direction's name."""
        assert self.method is not None
        found = ((loss_fn.negatives, name) for name, loss_fn in self.method.pair_losses().items())
        return [(policy, name) for policy, name in found if policy is not None]

    @property
    def reads_text(self) -> bool:
        """True if the method has a tower for texts."""
        return self.method is not None and text_tower(self.method) is not None

    @property
    def can_pair(self) -> bool:
        """True if there are pairs of images and texts, or of two texts."""
        if self.paired is not None or self.method is None or self.data is None:
            return self.paired is not None
        towers = paired_towers(self.method)
        return towers is not None and all(
            self.method.network.plans[tower].input in self.data.modalities for tower in towers
        )

    @property
    def pairs_texts(self) -> bool:
        """True if the pairs are of two texts."""
        if self.paired is not None or self.method is None or (towers := paired_towers(self.method)) is None:
            return False
        return self.method.network.plans[towers[0]].modality == "text"

    @property
    def has_classes(self) -> bool:
        """True if the run's own images have labels with names."""
        return self.data is not None and self.data.classes is not None and self.part_without_labels is None

    def once(self, key: str, compute: Callable[[], Result]) -> Result:
        """Return what `compute` returns, computed once for each key, so that protocols share results."""
        if key not in self._kept:
            self._kept[key] = compute()
        found: Result = self._kept[key]
        return found

    def embed(
        self,
        data: Samples,
        tower: str | None = None,
        space: Space = "features",
        view: Callable[[Raw], Tensor] | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Embed a dataset with a tower of the method, (n, F), with images at the size of the run's."""
        assert self.method is not None
        if view is None and self.centre_crop < 1 and self._sees_images(tower):
            view = self.plain_view(self.method.pixels)
        return tower_features(
            self.method,
            data,
            tower,
            space=space,
            size=self._seen_size(data),
            view=view,
            device=self.device,
            workers=self.workers,
            progress=progress,
        )

    def features_of(self, data: Samples, view: Callable[[Raw], Tensor] | None = None) -> tuple[FeatureSet, FeatureSet]:
        """Return features of a dataset's training and test images; without a test split it is split class by class."""
        test = self.held_out if data is self.data else data.held_out(self.test_limit)
        total = len(data) + (0 if test is None else len(test))

        def progress_from(before: int) -> Progress:
            return lambda done, _: self.progress(before + done, total) if self.progress else None

        train = FeatureSet(self.embed(data, view=view, progress=progress_from(0)), data.labels, data.coarse_labels)
        if test is None:
            return split_features(train)
        features = self.embed(test, view=view, progress=progress_from(len(data)))
        return train, FeatureSet(features, test.labels, test.coarse_labels)

    def other_view(self, data: Samples) -> Callable[[Raw], Tensor] | None:
        """Return how images of another dataset are prepared: None as the run's, else with their own statistics."""
        own = self.other_pixels(data)
        return None if own is None else self.plain_view(own)

    def other_pixels(self, data: Samples) -> Mapping[str, Sequence[float]] | None:
        """Return the mean and std that normalise another dataset's images; None for the run's own."""
        if self.other_statistics == "run" or self.method is None or not self.method.normalised:
            return None
        mean, std = data.statistics()
        return {"mean": mean, "std": std}

    def plain_view(self, pixels: Mapping[str, Sequence[float]]) -> Callable[[Raw], Tensor]:
        """Return a function that scales images to the run's size and normalises them with this mean and std."""
        assert self.method is not None
        size = self.size or cast(Samples, self.data).image_size
        spec = {"name": "plain", "centre": self.centre_crop, **pixels}
        recipe = build_augmentation(spec, size, self.method.normalised)
        return lambda images: recipe(cast(Tensor, images), torch.Generator())

    def _sees_images(self, tower: str | None) -> bool:
        """Return True if a tower, or the towers of an input, by default the first, get images."""
        assert self.method is not None
        plans = self.method.network.plans
        if tower is not None and tower not in plans:
            return any(plan.input == tower and plan.modality == "image" for plan in plans.values())
        return plans[tower or self.method.network.names()[0]].modality == "image"

    def _seen_size(self, data: Samples) -> int:
        """Return the side to which a dataset's images are scaled: that of training, not their own."""
        return self.size or (data if self.data is None else self.data).image_size

    @cached_property
    def _features(self) -> tuple[FeatureSet, FeatureSet]:
        if self.given is not None:
            return self.given
        assert self.data is not None
        return self.features_of(self.data)
