"""Preparation of a training run: everything it needs before its first step, checked before anything is written."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import Optimizer

from antipodes.data import Loader, Samples, subset
from antipodes.data.batch_composition import BatchComposition
from antipodes.data.loader import batches
from antipodes.encoders import without_pretrained
from antipodes.encoders.layers import decayed_rates
from antipodes.encoders.patches import PatchEncoder, rows_to_fit
from antipodes.guides import RunGuide
from antipodes.losses import Temperature
from antipodes.methods import Method
from antipodes.negatives import DatasetNeighbours
from antipodes.runs.boards import BOARDS, require_boards
from antipodes.runs.build import build_method
from antipodes.runs.folder import CHECKPOINT_KEYS, FrozenWeights, Run, load_checkpoint, save_checkpoint, save_frozen
from antipodes.runs.growth import describe_rows, grown_optimizer, growth_since, open_data
from antipodes.runs.locked import use_cached_features
from antipodes.runs.opening import load_model
from antipodes.runs.records import Records, RunningMeans, read_epochs
from antipodes.runs.settings import Settings
from antipodes.runs.snapshots import discard_snapshots
from antipodes.runs.towers import text_tower
from antipodes.runs.views import BatchMaker, plain_view, with_statistics
from antipodes.schedules import learning_rate
from antipodes.training.between import policies_receiving
from antipodes.training.calendar import Calendar
from antipodes.training.observer import LabelObserver
from antipodes.training.optimizers import optimizer as build_optimizer
from antipodes.training.progress import TrainingProgress
from antipodes.training.starting import start_from

NEAREST = 10  # nearest neighbours of a sample from which some join its batch
FITTED_AT_ONCE = 256  # images in a batch while patch encoders are fitted
VALIDATION_ROWS = 4096  # rows of the validation split, at most


@dataclass
class Training:
    """A run in memory: the objects that a step uses and a checkpoint saves.

    Attributes:
        done: Number of optimiser steps so far.
        validation: The split on which a method of images and texts is evaluated during training.
        calendar: The epoch that a step belongs to.
        best: The best score so far.
        totals: Sums of the numbers of this epoch's steps.
        saved: True if this process has written a checkpoint.
    """

    config: Mapping[str, Any]
    settings: Settings
    fabric: Fabric
    run: Run
    data: Samples
    method: Method
    network: Any  # the method's towers as Fabric wraps them
    optimizer: Optimizer
    views: BatchMaker
    loader: Loader
    observer: LabelObserver
    records: Records | None
    bar: TrainingProgress
    identity: Mapping[str, Any]
    calendar: Calendar
    validation: Samples | None = None
    done: int = 0
    best: float = -math.inf
    totals: RunningMeans = field(default_factory=RunningMeans)
    saved: bool = False

    @property
    def first(self) -> bool:
        """Return True if this process is the first rank, which writes the files."""
        return bool(self.fabric.is_global_zero)

    @property
    def judged(self) -> str | None:
        """Return the name of the score that decides the best epoch; None if the loss decides."""
        if self.settings.knn_every == 0:
            return None
        if self.data.labels is not None:
            return "knn"
        return None if self.validation is None else "validation_recall"

    @property
    def progress(self) -> float:
        """Return the share of training that is done, in [0, 1]."""
        return self.done / max(1, self.calendar.total(self.settings.epochs))

    @cached_property
    def frozen(self) -> FrozenWeights | None:
        """Return the weights that no step changes, or None; the first access writes them to a file."""
        towers = [self.method.network[name] for name in self.method.network.names()]
        fixed = {id(each) for tower in towers if tower.frozen for each in _weights(tower.encoder).values()}
        found = {name: weight for name, weight in _weights(self.method).items() if id(weight) in fixed}
        weights = {name: weight.detach() for name, weight in found.items()}
        return save_frozen(self.run.last.parent, weights) if weights else None

    @cached_property
    def rows(self) -> dict[str, Any]:
        """Return the description of the data's rows for checkpoints, by which rows are found again after growth."""
        return describe_rows(self.data)

    def rate_of_group(self, group: Mapping[str, Any], rate: float) -> float:
        """Return the learning rate of a parameter group: a share of the step's rate, or its own rate times the
        schedule.

        Parameters of losses (a temperature) may have a rate of their own. As in FastCLIP, it is divided by 3 while the
        temperature is below 0.03.
        """
        own_rate = group.get("own_rate")
        if own_rate is None:
            return rate * float(group.get("share", 1.0))
        share = rate / max(
            self.settings.learning_rate * self.settings.batch_size * self.settings.accumulate / 256, 1e-30
        )
        temperatures = [each for each in self.method.directions.modules() if isinstance(each, Temperature)]
        return share * (temperatures[0].learning_rate(own_rate) if temperatures else float(own_rate))

    def checkpoint(self, is_best: bool = False) -> None:
        """Write everything that the run needs to continue with bit-equal results."""
        if not self.first:
            return
        state = {
            "identity": dict(self.identity),
            "data": self.rows,
            "calendar": asdict(self.calendar),
            "model": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.done,
            "best": self.best,
            "totals": self.totals.state(),
        }
        if is_best:  # first, as the last checkpoint says that it is there
            save_checkpoint(self.run.best, state, self.frozen)
        save_checkpoint(self.run.last, state, self.frozen)
        self.saved = True


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
    tell = say if say is not None and fabric.is_global_zero else _nothing
    run = resume or Run(Path(settings.out))
    if resume is not None:
        _refuse_lost_checkpoints(run)
    saved = load_checkpoint(run.last, CHECKPOINT_KEYS) if resume is not None and run.last.exists() else None
    data = open_data(config["data"], saved)
    config = config if resume is not None else with_statistics(config, data)
    with nullcontext() if saved is None else without_pretrained():  # what was saved replaces all weights
        method = build_method(config, data)
    _refuse(config, settings, method, data)
    if saved is None:  # also for a run that was stopped before its first checkpoint
        _learn_vocabularies(method, data)
        _fit_encoders(method, data, tell)
        if settings.init is not None:
            start_from(method, settings.init, data, tell)
    _try_encoders(method, data)
    if isinstance(method.guide, RunGuide):
        method.guide.open(tell)
    views = BatchMaker(config, data, method, fabric.device, fabric.global_rank, fabric.world_size)
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
    validation = _validation(method, data, tell) if settings.knn_every else None
    calendar = Calendar(len(loader) // settings.accumulate)
    if calendar.steps == 0:
        raise ValueError(f"accumulate {settings.accumulate} needs that many batches, an epoch has {len(loader)}")
    method.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method.precision = fabric.autocast
    optimizer = build_optimizer(
        settings.optimizer,
        method.network,
        settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        shares=_shares(method, settings.layer_decay),
    )
    if learnable := [parameter for parameter in method.directions.parameters() if parameter.requires_grad]:
        optimizer.add_param_group({"params": learnable, "weight_decay": 0.0, "own_rate": config["temperature"]["rate"]})
    if settings.epochs:
        rate_of(settings, 0, calendar)  # an impossible schedule is refused before anything is written
    identity = {"fingerprint": data.fingerprint, "world_size": fabric.world_size, "method": config["method"]["name"]}
    done, best, totals, growth = 0, -math.inf, RunningMeans(), None
    if saved is not None:
        _refuse_changes(saved["identity"], identity, run)
        growth, since = growth_since(saved, data), Calendar(**saved.get("calendar", asdict(calendar)))
        load_model(method, saved, run, growth)
        learned = saved["optimizer"]
        optimizer.load_state_dict(learned if growth is None else grown_optimizer(optimizer, method, learned, growth))
        fabric.strategy.precision.load_state_dict(saved["precision"])
        torch.set_rng_state(saved["rng"])
        done, best, totals = saved["step"], saved["best"], RunningMeans(saved["totals"])
        if growth is None:
            calendar = since
        else:  # an epoch that began with the old data begins again
            calendar, totals = Calendar(calendar.steps, done, since.epoch(done)), RunningMeans()
            over = done >= calendar.total(settings.epochs)
            tell(f"{growth}{'; the run is over, a larger number of --epochs goes on' if over else ''}")
    observer = LabelObserver(method, data)
    network, optimizer = fabric.setup(method.network, optimizer)
    method.train()

    if fabric.is_global_zero:
        for line in data.describe() if say is not None else ():
            tell(line)
        if resume is None:
            run.create(config)
        elif resume.changed(config):  # more epochs, or data that has moved: a later resume goes on from there
            resume.write_config(config)
        if data.skipped:
            data.write_skipped(run.folder / "skipped.csv")
        for _, policy in method.policies():
            policy.check_visits(settings.epochs)
    records = Records(run.folder, done, boards) if fabric.is_global_zero else None
    if fabric.is_global_zero:
        discard_snapshots(run, calendar.epoch(done) if growth is None else -1)  # snapshots refer to rows by number
    bar = TrainingProgress(calendar.total(settings.epochs), done, enabled=fabric.is_global_zero)
    use_cached_features(views, method, data, config, bar.say)
    loader.unread = views.unread()
    return Training(
        config,
        settings,
        fabric,
        run,
        data,
        method,
        network,
        optimizer,
        views,
        loader,
        observer,
        records,
        bar,
        identity,
        calendar,
        validation,
        done,
        best,
        totals,
    )


def _validation(method: Method, data: Samples, tell: Callable[[str], None]) -> Samples | None:
    """Return the validation split for a method of images and texts; if it cannot be read, say so and return None."""
    if text_tower(method) is None or data.labels is not None:
        return None
    try:
        return data.validation(VALIDATION_ROWS)
    except (ValueError, OSError) as error:
        tell(f"the loss decides the best epoch, because the validation split cannot be used: {error}")
        return None


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights and tables of a module by name, as the same tensors."""
    return dict(module.state_dict(keep_vars=True))


def launch(settings: Settings) -> Fabric:
    """Start the processes, or join those that torchrun has started."""
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if settings.precision == "16-mixed" and (settings.accelerator == "cpu" or not gpu):
        raise ValueError("precision 16-mixed needs a GPU: on a CPU use 32-true, or bf16-mixed where it is supported")
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))
    most = torch.cuda.device_count() if torch.cuda.is_available() and settings.accelerator != "cpu" else _cores()
    if settings.devices > most:
        raise ValueError(f"devices must be at most {most} here, got {settings.devices}: each device needs a process")
    nodes = int(os.environ.get("WORLD_SIZE", devices)) // devices
    try:
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=settings.precision,
            strategy="ddp" if devices * nodes > 1 else "auto",
        )
    except (RuntimeError, MisconfigurationException) as error:
        raise ValueError(f"accelerator {settings.accelerator} cannot be used here: {error}") from error
    fabric.launch()
    return fabric


def _cores() -> int:
    return max(os.cpu_count() or 1, 2)  # two processes on one core are slow but let users try them


def peak_rate(settings: Settings) -> float:
    """Return the learning rate after the warm-up, scaled linearly with the effective batch."""
    return settings.learning_rate * settings.batch_size * settings.accumulate / 256


def rate_of(settings: Settings, step: int, calendar: Calendar) -> float:
    """Return the learning rate of a step: scaled with the effective batch, with warm-up and decay."""
    total = calendar.total(settings.epochs)
    return learning_rate(
        step,
        total,
        int(settings.warmup * total),
        peak_rate(settings),
        settings.schedule,
        settings.milestones,
    )


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


@torch.no_grad()
def _try_encoders(method: Method, data: Samples) -> None:
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


def _learn_vocabularies(method: Method, data: Samples) -> None:
    """Learn the vocabulary of text encoders without one from the texts of the training data."""
    for name, plan in method.network.plans.items():
        if plan.modality == "text":
            learn = getattr(method.network[name].encoder, "fit_tokenizer", None)
            if learn is not None:
                learn(data.corpus(plan.input))


def _fit_encoders(method: Method, data: Samples, tell: Callable[[str], None]) -> None:
    """Fit patch encoders to some training images without augmentation."""
    for name, plan in method.network.plans.items():
        encoder = method.network[name].encoder
        if not isinstance(encoder, PatchEncoder):
            continue
        tell(f"clustering the patches of {len(data):,} images")
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


def _refuse(config: Mapping[str, Any], settings: Settings, method: Method, data: Samples) -> None:
    """Refuse settings that do not fit the method or the data."""
    name = config["method"]["name"]
    if settings.accumulate > 1 and not method.accumulates:
        raise ValueError(
            f"accumulate must be 1 with method {name}: its negatives are the samples of a batch, "
            "so several small batches are not one large one; use a larger batch_size or a method with a queue or bank"
        )
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


def _refuse_lost_checkpoints(run: Run) -> None:
    """Refuse to restart a run that has trained before and whose checkpoints are missing.

    A run that was stopped before its first checkpoint has no exported encoder, and at most one epoch's line.
    """
    ended = any(run.folder.glob("encoder*.safetensors"))
    if not run.last.exists() and (ended or len(read_epochs(run.folder)) > 1):
        raise ValueError(
            f"{run.last} is missing although the run has {'ended' if ended else 'trained'}: bring it back, "
            "or start a new run with another --out"
        )


def _refuse_changes(saved: Mapping[str, Any], now: Mapping[str, Any], run: Run) -> None:
    """Refuse to continue a checkpoint with another method or number of processes."""
    if saved["method"] != now["method"]:
        raise ValueError(f"{run.folder} was trained with method {saved['method']}, not {now['method']}")
    if saved["world_size"] != now["world_size"]:
        raise ValueError(
            f"{run.folder} was trained by {saved['world_size']} process(es), this is {now['world_size']}: "
            f"resume it with as many"
        )
