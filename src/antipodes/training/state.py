"""`Training`: a run in memory; `LabelObserver`: scores of flags by labels; `rate_of`: the rate of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from antipodes.data import Loader, Samples
from antipodes.losses import LossModule, Observation, Temperature
from antipodes.methods import Method
from antipodes.methods.towers import InPieces, Network
from antipodes.progress import TrainingProgress
from antipodes.runs.folder import SHARDS, FrozenWeights, Run, save_checkpoint, save_frozen
from antipodes.runs.records import Records, RunningMeans
from antipodes.runs.rows import describe_rows
from antipodes.runs.settings import Calendar, Settings
from antipodes.runs.views import BatchMaker
from antipodes.schedules import learning_rate
from antipodes.training.sharding import remove_shards, save_shards


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
    def embed(self) -> Network:
        """Return the network that the method's loss calls; with a micro batch it embeds a batch in pieces."""
        size = self.settings.micro_batch
        return self.network if size is None else InPieces(self.network, size)

    @property
    def first(self) -> bool:
        """Return True if this process is the first rank, which writes the files."""
        return bool(self.fabric.is_global_zero)

    @property
    def sharded(self) -> bool:
        """Return True if the processes share the parameters, so that all of them call a tower or none."""
        return isinstance(self.fabric.strategy, ModelParallelStrategy)

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
        share = rate / max(peak_rate(self.settings), 1e-30)
        temperatures = [each for each in self.method.directions.modules() if isinstance(each, Temperature)]
        return share * (temperatures[0].learning_rate(own_rate) if temperatures else float(own_rate))

    def checkpoint(self, is_best: bool = False) -> None:
        """Write everything that the run needs to continue with bit-equal results; all ranks call it."""
        totals, model = self.totals.of_ranks(), self.method.state_dict()  # tables that ranks share are gathered
        optimizer, shards = self.optimizer.state_dict(), None
        if self.sharded:
            shards = save_shards(self.run.last.parent, self.done, model, optimizer)
            model, optimizer = {name: each for name, each in model.items() if not isinstance(each, DTensor)}, {}
        if not self.first:
            return
        state = {
            "identity": dict(self.identity),
            "data": self.rows,
            "calendar": asdict(self.calendar),
            "model": model,
            "optimizer": optimizer,
            "precision": self.fabric.strategy.precision.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.done,
            "best": self.best,
            "totals": totals,
        }
        if shards is not None:
            state[SHARDS] = shards
        if is_best:  # first, as the last checkpoint says that it is there
            save_checkpoint(self.run.best, state, self.frozen)
        save_checkpoint(self.run.last, state, self.frozen)
        self.saved = True
        if shards is not None:
            remove_shards(self.run.last.parent)


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


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights and tables of a module by name, as the same tensors."""
    return dict(module.state_dict(keep_vars=True))


class LabelObserver:
    """Scores the decisions of policies and refined labels by the true labels, on the steps for which it is active."""

    def __init__(self, method: Method, data: Samples) -> None:
        self.active = False
        self._labels = {"": data.labels, "coarse_": data.coarse_labels}
        self._seen = RunningMeans()
        for module in method.modules():
            if isinstance(module, LossModule):
                module.observer = self._score

    def _score(self, observation: Observation) -> None:
        for prefix, labels in self._labels.items():
            if self.active and labels is not None:
                self._seen.add(observation.score(labels, prefix))

    def pop_means(self) -> dict[str, float]:
        """Return the means since the last call, over the directions and parts of one step."""
        seen, self._seen = self._seen, RunningMeans()
        return seen.means()
