"""Checks of a run's settings, encoders and checkpoints, before anything is written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from antipodes.data import Samples
from antipodes.encoders.chunks import refuse_batch_statistics
from antipodes.guides import RunGuide
from antipodes.methods import Method
from antipodes.runs.folder import Run
from antipodes.runs.records import read_epochs
from antipodes.runs.settings import Settings
from antipodes.training.between import policies_receiving


def check_settings(config: Mapping[str, Any], settings: Settings, method: Method, data: Samples) -> None:
    """Refuse settings that do not fit the method or the data."""
    name = config["method"]["name"]
    if settings.accumulate > 1 and not method.accumulates:
        raise ValueError(
            f"accumulate must be 1 with method {name}: its negatives are the samples of a batch, "
            "so several small batches are not one large one; use a larger batch_size or a method with a queue or bank"
        )
    if settings.micro_batch is not None:
        _check_micro_batch(name, method)
    if settings.batch_size < 2 and not method.accumulates:
        raise ValueError(f"batch_size must be at least 2 with method {name}: the other samples are the negatives")
    guide = method.guide
    if settings.batch_neighbours > 1 and not (isinstance(guide, RunGuide) and guide.has_table and not guide.changes):
        raise ValueError(
            f"batch_neighbours {settings.batch_neighbours} needs a guide's vectors of the whole dataset before "
            "training: give --guide network, patches or a table"
        )
    if policies_receiving(method, "score") and (data.labels is None or settings.knn_every == 0):
        raise ValueError(
            "a ring that anneals by validation needs a validation score, the kNN accuracy of training images: "
            "use data with labels and a knn_every above 0, or another anneal"
        )


def _check_micro_batch(name: str, method: Method) -> None:
    """Refuse to embed batches in pieces if it brings nothing or would change what is learned."""
    if method.accumulates:
        raise ValueError(
            f"micro_batch is for methods whose negatives come from the batch, and those of method {name} do not: use a "
            "smaller batch_size with --accumulate"
        )
    try:
        refuse_batch_statistics(list(method.network.modules()))
    except ValueError as error:
        raise ValueError(f"micro_batch cannot be used here: {error}; for the head, --head.batch_norm false") from error


def check_files(run: Run) -> None:
    """Refuse to continue a run that has something else where a file of records is to be written.

    Raises:
        ValueError: a link to nothing, a folder or a device stands in the place of a file.
    """
    for name in ("metrics.jsonl", "metrics.csv", "skipped.csv"):
        if os.path.lexists(file := run.folder / name) and not file.is_file():
            raise ValueError(f"{file} is not a file: move it away, the run writes its records there")


def check_checkpoints_exist(run: Run) -> None:
    """Refuse to restart a run that has trained before and whose checkpoints are missing.

    A run that was stopped before its first checkpoint has no exported encoder, and at most one epoch's line.
    """
    ended = any(run.folder.glob("encoder*.safetensors"))
    if not run.last.exists() and (ended or len(read_epochs(run.folder)) > 1):
        raise ValueError(
            f"{run.last} is missing although the run has {'ended' if ended else 'trained'}: bring it back, "
            "or start a new run with another --out"
        )


def check_method(saved: Mapping[str, Any], now: Mapping[str, Any], run: Run) -> None:
    """Refuse to continue a checkpoint with another method."""
    if saved["method"] != now["method"]:
        raise ValueError(f"{run.folder} was trained with method {saved['method']}, not {now['method']}")


def warn_of_ranks(before: int, now: int, method: Method) -> None:
    """Warn if a run continues with another number of processes and has batch statistics, which depend on it.

    Everything else does not: batches, augmentation, negatives and tables are those of the whole batch.
    """
    if before == now:
        return
    try:
        refuse_batch_statistics(list(method.network.modules()))
    except ValueError:
        warnings.warn(
            f"this run was trained by {before} process(es) and goes on with {now}: batch normalisation uses the mean "
            "and variance of each process's own share of a batch, so the weights will differ from those of a run with "
            f"{before}; --encoder resnet18-slim-gn and --head.batch_norm false have no batch statistics",
            stacklevel=2,
        )


@torch.no_grad()
def check_encoders(method: Method, data: Samples) -> None:
    """Refuse images of a size that an encoder cannot process, before anything is written."""
    for name, plan in method.network.plans.items():
        if plan.modality != "image":
            continue
        encoder = method.network[name].encoder
        modes = [(part, part.training) for part in encoder.modules()]
        encoder.eval()
        try:
            with torch.random.fork_rng():
                features = encoder(torch.zeros(2, plan.channels, data.image_size, data.image_size))
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            first = " ".join(str(error).split())[:200]
            raise ValueError(
                f"the encoder {type(encoder).__name__} cannot take images of {data.image_size} x {data.image_size} "
                f"pixels ({first}): choose another --data.size or --encoder"
            ) from error
        finally:
            for part, training in modes:
                part.training = training
        if features.shape != (2, encoder.num_features):
            raise ValueError(
                f"the encoder {type(encoder).__name__} must turn 2 images into features (2, {encoder.num_features}), "
                f"got {tuple(features.shape)}: pool and flatten its output"
            )


def warn_of_equal_views(method: Method) -> None:
    """Warn if a method compares two equal views: texts and vectors have no augmentation."""
    if method.views < 2:
        return
    for tower, plan in method.network.plans.items():
        if plan.modality != "image" and not _has_dropout(method.network[tower]):
            warnings.warn(
                f"both views of every {plan.modality} are equal, so their similarity is always 1 and the positives "
                f"teach nothing: {plan.modality}s have no augmentation, and the encoder has no dropout; train on "
                "pairs (--method clip) or with an encoder that has dropout",
                stacklevel=2,
            )


def _has_dropout(network: nn.Module) -> bool:
    """Return True if a module of a network applies dropout in training."""
    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    return any(
        module.p > 0 if isinstance(module, dropouts) else float(getattr(module, "dropout", 0.0) or 0.0) > 0
        for module in network.modules()
        if isinstance(module, (*dropouts, nn.MultiheadAttention, nn.RNNBase))
    )
