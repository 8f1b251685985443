"""Features of a whole dataset under a frozen encoder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antipodes.data.dataset import ImageDataset
from antipodes.data.loader import batches
from antipodes.evaluation.splits import stratified_split


@dataclass(frozen=True)
class FeatureSet:
    """Features (n, F) of a dataset with its labels (n,) and coarse labels (n,), None where it has none."""

    features: Tensor
    labels: Tensor | None = None
    coarse_labels: Tensor | None = None

    def take(self, ids: Tensor) -> "FeatureSet":
        """The samples ids (m,), in that order."""
        return FeatureSet(
            self.features[ids],
            None if self.labels is None else self.labels[ids],
            None if self.coarse_labels is None else self.coarse_labels[ids],
        )


def embed(
    encoder: nn.Module,
    dataset: ImageDataset,
    *,
    preprocess: Callable[[Tensor], Tensor],
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Features (n, F) of every image of the dataset, row i for id i, float32 on the CPU.

    The encoder runs in evaluation mode; afterwards every part of it is back in the mode it came in.

    Args:
        encoder: float images (b, 3, H, W) -> (b, F); must be on `device` already.
        dataset: the images.
        preprocess: uint8 images (b, 3, H, W) on `device` -> what the encoder takes.
        batch_size: images at a time.
        device: where to run.
        workers: processes that decode images, for datasets that are not in memory.
        progress: called with (images done, images in all) after every batch.

    Raises:
        ValueError: if the dataset is empty, or the encoder's output is not (b, F).
    """
    if len(dataset) == 0:
        raise ValueError("the dataset is empty: there is nothing to embed")
    features: Tensor | None = None
    done = 0
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        for ids, images in batches(dataset, batch_size, workers):
            with torch.inference_mode():
                inputs = preprocess(images.to(device)).contiguous(memory_format=torch.channels_last)
                outputs = encoder(inputs)
            if outputs.ndim != 2 or len(outputs) != len(ids):
                raise ValueError(
                    f"the encoder must turn images {tuple(inputs.shape)} into features ({len(ids)}, F), "
                    f"got {tuple(outputs.shape)}: pool and flatten its output"
                )
            if features is None:  # made outside inference mode, so that it may meet autograd later
                features = torch.empty(len(dataset), outputs.shape[1])
            features[ids] = outputs.float().cpu()
            done += len(ids)
            if progress is not None:
                progress(done, len(dataset))
    finally:
        for module, training in modes:
            module.training = training
    assert features is not None
    return features


def split_features(feature_set: FeatureSet, fraction: float = 0.2, seed: int = 0) -> tuple[FeatureSet, FeatureSet]:
    """Split into train and test, class by class, for a dataset that has no held-out part of its own.

    Args:
        feature_set: to split; without labels the split is plainly random.
        fraction: share of every class that goes to test, in (0, 1).
        seed: of the draw.

    Raises:
        ValueError: if fraction is outside (0, 1), or no class has two samples.
    """
    count = len(feature_set.features)
    labels = torch.zeros(count, dtype=torch.int64) if feature_set.labels is None else feature_set.labels
    kept, held = stratified_split(labels, fraction, seed)
    return feature_set.take(kept), feature_set.take(held)
