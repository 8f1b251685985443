"""Preparation of a training run: everything it needs before its first step, checked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from antipodes.data import Loader, Samples, subset
from antipodes.data.loader import BatchComposition, batches
from antipodes.encoders import without_pretrained
from antipodes.encoders.layers import decayed_rates
from antipodes.encoders.patches import PatchEncoder, rows_to_fit
from antipodes.guides import RunGuide
from antipodes.methods import Method
from antipodes.negatives import DatasetNeighbours
from antipodes.progress import TrainingProgress
from antipodes.runs.build import build_method, with_revisions
from antipodes.runs.embedding import use_cached_features
from antipodes.runs.folder import CHECKPOINT_KEYS, Run, load_checkpoint
from antipodes.runs.opening import load_model, open_data
from antipodes.runs.records import BOARDS, Records, RunningMeans, require_boards
from antipodes.runs.rows import Growth, grown_optimizer, growth_since
from antipodes.runs.settings import Calendar, Settings
from antipodes.runs.snapshots import discard_snapshots
from antipodes.runs.towers import text_tower
from antipodes.runs.views import BatchMaker, plain_view, with_statistics
from antipodes.training.checks import (
    check_checkpoints_exist,
    check_encoders,
    check_files,
    check_method,
    check_settings,
    warn_of_equal_views,
    warn_of_ranks,
)
from antipodes.training.optimizers import optimizer as build_optimizer
from antipodes.training.sharding import check_sharding, shard_optimizer_state
from antipodes.training.starting import start_from
from antipodes.training.state import LabelObserver, Training, rate_of

NEAREST = 10  # nearest neighbours of a sample from which some join its batch
FITTED_AT_ONCE = 256  # images in a batch while patch encoders are fitted
VALIDATION_ROWS = 4096  # rows of the validation split, at most


@dataclass
class Start:
    """Where training starts: at step 0, or at the step of a checkpoint.

    Args:
        calendar: The epoch that a step belongs to.
        done: Number of optimiser steps that are done.
        best: The best score so far.
        totals: Sums of the numbers of the epoch's steps.
        growth: How the data has changed since the checkpoint; None if it has not.
    """

    calendar: Calendar
    done: int = 0
    best: float = -math.inf
    totals: RunningMeans = field(default_factory=RunningMeans)
    growth: Growth | None = None


def prepare_training(
    config: dict[str, Any],
    settings: Settings,
    fabric: Fabric,
    resume: Run | None,
    say: Callable[[str], None] | None = None,
) -> Training:
    """Build the parts of a run, load the checkpoint if there is one, and create the folder last.

    Args:
        config: The whole configuration.
        settings: How the run is trained.
        fabric: The processes and devices.
        resume: The run to continue.
        say: Shows the user a line about the data and the initial weights; the first rank calls it.
    """
    boards = [name for name in BOARDS if getattr(settings, name)]
    require_boards(boards)
    notify = say if say is not None and fabric.is_global_zero else _nothing
    run = resume or Run(Path(settings.out))
    if resume is not None:
        check_checkpoints_exist(run)
        check_files(run)
    saved = load_checkpoint(run.last, CHECKPOINT_KEYS) if resume is not None and run.last.exists() else None
    data = open_data(config["data"], saved)
    config = config if resume is not None else with_statistics(config, data)
    method = _build_method(config, settings, data, saved, notify)
    config = config if resume is not None else with_revisions(config, method)
    if fabric.is_global_zero and settings.epochs:
        warn_of_equal_views(method)
    views = BatchMaker(config, data, method, fabric.device, fabric.global_rank, fabric.world_size)
    loader = _build_loader(settings, fabric, method, data)
    validation = _validation(method, data, notify) if settings.knn_every else None
    calendar = Calendar(len(loader) // settings.accumulate)
    if calendar.steps == 0:
        raise ValueError(f"accumulate {settings.accumulate} needs that many batches, an epoch has {len(loader)}")
    if settings.epochs:
        rate_of(settings, 0, calendar)  # an impossible schedule is refused before anything is written
    identity = {"fingerprint": data.fingerprint, "world_size": fabric.world_size, "method": config["method"]["name"]}
    start = Start(calendar)
    if saved is not None:
        check_method(saved["identity"], identity, run)
        if fabric.is_global_zero:
            warn_of_ranks(saved["identity"]["world_size"], fabric.world_size, method)
        start = _load(saved, run, data, method, fabric, calendar)
        if start.growth is not None:
            over = start.done >= start.calendar.total(settings.epochs)
            notify(f"{start.growth}{'; the run is over, a larger number of --epochs goes on' if over else ''}")
    observer = LabelObserver(method, data)
    method.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method.precision = fabric.autocast
    network = fabric.setup_module(method.network)
    optimizer = _build_optimizer(config, settings, method, saved, start.growth)
    method.train()
    records = None
    if fabric.is_global_zero:
        for line in data.describe() if say is not None else ():
            notify(line)
        _write_start(config, settings, run, method, data, new=resume is None)
        records = Records(run.folder, start.done, boards)
        # snapshots refer to rows by number, so data that has grown invalidates all of them
        discard_snapshots(run, start.calendar.epoch(start.done) if start.growth is None else -1)
    bar = TrainingProgress(start.calendar.total(settings.epochs), start.done, enabled=fabric.is_global_zero)
    use_cached_features(views, method, data, config, bar.say)
    loader.unread = views.unread()
    wrapped = cast(Optimizer, fabric.setup_optimizers(optimizer))
    return Training(
        config, settings, fabric, run, data, method, network, wrapped, views, loader, observer, records, bar, identity,
        start.calendar, validation, start.done, start.best, start.totals,
    )  # fmt: skip


def _build_method(
    config: dict[str, Any],
    settings: Settings,
    data: Samples,
    saved: Mapping[str, Any] | None,
    notify: Callable[[str], None],
) -> Method:
    """Build the method; without a checkpoint also its vocabularies, fitted encoders and initial weights."""
    with nullcontext() if saved is None else without_pretrained():  # the checkpoint replaces all weights
        method = build_method(config, data)
    check_settings(config, settings, method, data)
    check_sharding(settings, method)
    if saved is None:  # also for a run that was stopped before its first checkpoint
        _learn_vocabularies(method, data)
        _fit_encoders(method, data, notify)
        if settings.init is not None:
            start_from(method, settings.init, data, notify)
    check_encoders(method, data)
    if isinstance(method.guide, RunGuide):
        method.guide.open(notify)
    return method


def _build_loader(settings: Settings, fabric: Fabric, method: Method, data: Samples) -> Loader:
    loader = Loader(
        data,
        settings.batch_size if settings.epochs else min(settings.batch_size, len(data)),
        seed=settings.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        workers=settings.workers,
    )
    if settings.batch_neighbours > 1:
        loader.composition = _composition(method, data, settings.batch_neighbours)
    return loader


def _build_optimizer(
    config: Mapping[str, Any],
    settings: Settings,
    method: Method,
    saved: Mapping[str, Any] | None,
    growth: Growth | None,
) -> Optimizer:
    """Build the optimiser with its state of a checkpoint; parameters of losses have a learning rate of their own."""
    optimizer = build_optimizer(
        settings.optimizer,
        method.network,
        settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        decay_vectors=settings.decay_vectors,
        shares=_shares(method, settings.layer_decay),
    )
    if learnable := [parameter for parameter in method.directions.parameters() if parameter.requires_grad]:
        optimizer.add_param_group({"params": learnable, "weight_decay": 0.0, "own_rate": config["temperature"]["rate"]})
    if saved is not None:
        learned = saved["optimizer"]
        optimizer.load_state_dict(learned if growth is None else grown_optimizer(optimizer, method, learned, growth))
        shard_optimizer_state(optimizer)
    return optimizer


def _load(
    saved: Mapping[str, Any],
    run: Run,
    data: Samples,
    method: Method,
    fabric: Fabric,
    calendar: Calendar,
) -> Start:
    """Load a checkpoint into method, precision and torch's generator; return where training continues."""
    growth, since = growth_since(saved, data), Calendar(**saved.get("calendar", asdict(calendar)))
    load_model(method, dict(saved), run, growth)
    fabric.strategy.precision.load_state_dict(saved["precision"])
    torch.set_rng_state(saved["rng"])
    done, best = saved["step"], saved["best"]
    if growth is None:
        return Start(since, done, best, RunningMeans.resumed(saved["totals"]))
    # an epoch that began with the old data begins again
    return Start(Calendar(calendar.steps, done, since.epoch(done)), done, best, growth=growth)


def _write_start(
    config: dict[str, Any], settings: Settings, run: Run, method: Method, data: Samples, new: bool
) -> None:
    """Create the run's folder, or update its configuration, and write the list of skipped files."""
    if new or run.changed(config):  # more epochs, or data that has moved: a later resume continues from there
        run.create(config)
    run.last.parent.mkdir(exist_ok=True)  # missing if the process was killed right after it wrote the configuration
    if data.skipped:
        data.write_skipped(run.folder / "skipped.csv")
    for _, policy in method.policies():
        policy.check_visits(settings.epochs)


def _validation(method: Method, data: Samples, notify: Callable[[str], None]) -> Samples | None:
    """Return the validation split for a method of images and texts; if it cannot be read, say so and return None."""
    if text_tower(method) is None or data.labels is not None:
        return None
    try:
        return data.validation(VALIDATION_ROWS)
    except (ValueError, OSError) as error:
        notify(f"the loss decides the best epoch, because the validation split cannot be used: {error}")
        return None


def _shares(method: Method, decay: float) -> dict[nn.Parameter, float]:
    """Return the factor on the learning rate of each encoder parameter; heads have factor 1."""
    if decay == 1:
        return {}
    rates: dict[nn.Parameter, float] = {}
    for name in method.network.names():
        rates |= decayed_rates(method.network[name].encoder, decay)
    return rates


def _nothing(_: str) -> None:
    """Ignore a line."""


def _learn_vocabularies(method: Method, data: Samples) -> None:
    """Learn the vocabulary of text encoders without one from the texts of the training data."""
    towers = {name: plan for name, plan in method.network.plans.items() if plan.modality == "text"}
    inputs: dict[nn.Module, list[str]] = {}
    for name, plan in towers.items():  # an encoder that two towers share learns from the texts of both
        inputs.setdefault(method.network[name].encoder, []).extend(plan.inputs)
    for encoder, names in inputs.items():
        if (learn := getattr(encoder, "fit_tokenizer", None)) is not None:
            learn([text for name in names for text in data.corpus(name)])


def _fit_encoders(method: Method, data: Samples, notify: Callable[[str], None]) -> None:
    """Fit patch encoders to some training images without augmentation."""
    for name, plan in method.network.plans.items():
        encoder = method.network[name].encoder
        if not isinstance(encoder, PatchEncoder):
            continue
        notify(f"clustering the patches of {len(data):,} images")
        view, prepare = plain_view(method, data.image_size, plan.input), plan.prepare
        some = subset(data, torch.tensor(rows_to_fit(len(data))))
        shown = (view(raw[plan.input]) for _, raw in batches(some, FITTED_AT_ONCE))
        encoder.fit(torch.cat([encoder.scaled(each if prepare is None else prepare(each)) for each in shown]))
        for copy in method.copies(name)[1:]:
            copy.encoder.load_state_dict(encoder.state_dict())


def _composition(method: Method, data: Samples, size: int) -> BatchComposition:
    """Choose which samples share a batch: the nearest neighbours by the guide, for the first tower."""
    assert isinstance(method.guide, RunGuide)
    nearest = DatasetNeighbours(len(data), k=min(NEAREST, len(data) - 1), identities=data.samples)
    nearest.fit(method.guide.vectors(method.network.names()[0]))
    return BatchComposition(nearest.table, size)
