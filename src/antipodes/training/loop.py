"""The training loop: `train` runs it from keywords, `run_training` from a configuration, `_loop` is the loop itself.

A run is a function of its configuration: the order of samples, their augmentation and every random draw follow from the
seed and the step's number. A checkpoint therefore stores no generator of ours, and a run that was stopped and resumed
ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from antipodes.data.loader import Loaded
from antipodes.distributed import gather
from antipodes.functional.tensors import NotFinite
from antipodes.guides import RunGuide
from antipodes.methods import Batch
from antipodes.negatives.flags import summarise_flags
from antipodes.runs.configuration import Configuration, resolve, resolve_resumed
from antipodes.runs.exporting import card_facts, export_encoders
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.records import RunningMeans
from antipodes.runs.snapshots import save_snapshot, take_snapshot
from antipodes.training.between import fit_policies, online_knn, online_recall, policies_receiving, send
from antipodes.training.launching import launch
from antipodes.training.prepare import prepare_training
from antipodes.training.state import Training, rate_of

ADVICE = "try a lower learning_rate, a longer warmup or a clip_gradient"


class TrainingFailed(RuntimeError):
    """The run cannot continue; the message says why in one sentence."""


def train(
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume_from: str | Path | None = None,
    **options: Any,
) -> Run:
    """Pretrain an encoder by contrastive learning, or continue a run.

    Args:
        data: what to train on: the path of a folder of photos, an archive or a table; the name of a dataset; or a
            mapping with a `name` and the dataset's arguments. With `resume_from`, where the data is now.
        out: folder of the run; it must not hold one yet.
        resume_from: folder of a run to continue, for more `epochs` if given; "auto" continues the run in `out` if there
            is one, and starts it otherwise.
        **options: the options of `antipodes train`, with dots or nested: `method="moco"`, `epochs=30`,
            `negatives={"name": "glofnd", "alpha": 0.1}`, `**{"data.limit": 10_000}`.

    Returns:
        The run: `run.path`, `run.config` (all options), `run.metrics` (one line per epoch, by column).

    Raises:
        ValueError: for options that do not fit; nothing is written then.
        TrainingFailed: when the loss stops being a number.

    Example:
        >>> run = train(data="path/to/photos", out="runs/a", method="simclr", epochs=30)  # doctest: +SKIP
        >>> run.metrics["loss"][-1]  # doctest: +SKIP
        4.2
    """
    auto = resume_from == "auto"
    if resume_from is not None and not auto:
        if isinstance(data, Mapping):
            raise ValueError("data must be the path of the run's data, where it is now, when resume_from is given")
        given = options if out is None else {**options, "out": str(out)}
        configuration, run = resolve_resumed(resume_from, given, None if data is None else str(data))
        return run_training(configuration, run)
    if data is None:
        raise ValueError("which data? Give data, the path of a folder of photos or the name of a dataset")
    if out is None:
        raise ValueError("out is missing: name the folder of the run")
    named = dict(data) if isinstance(data, Mapping) else str(data)
    if auto and Run(Path(out)).exists:
        return run_training(*resolve_resumed(out, {**options, "data": named}))
    return run_training(resolve({**options, "data": named, "out": str(out)}))


def run_training(
    configuration: Mapping[str, Any], resume: Run | None = None, say: Callable[[str], None] | None = None
) -> Run:
    """Train as a configuration says, or continue a run.

    Args:
        configuration: A `Configuration`, or a mapping with all of its options, as config.yaml holds them.
        resume: The run to continue, whose configuration this is.
        say: Shows the user a line about the data and the initial weights.

    Returns:
        The run, with its checkpoints and its exported encoder.

    Raises:
        ValueError: if the configuration is invalid or does not fit the resumed run, or another process trains the run;
            nothing is written then.
        TrainingFailed: if the loss is no longer a finite number. A new run that fails before its first checkpoint
            leaves nothing behind, so the corrected call can use its folder.
    """
    config = dict(configuration)
    settings = Configuration.of(config).settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    fabric = launch(settings)
    run = resume or Run(Path(settings.out))
    # with --resume auto a rank may see a folder that the first one has just begun to write: the first one decides
    resume = None if fabric.broadcast(resume is None) else run
    missing = run.missing()
    training: Training | None = None
    with ExitStack() as stack, torch.random.fork_rng():
        torch.manual_seed(settings.seed)  # the initial weights; inside the fork, so the caller's generator is untouched
        _lock(stack, fabric, run, new=resume is None)
        try:
            training = prepare_training(config, settings, fabric, resume, say)
            return _loop(training)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(f"stopped; {_what_is_kept(run, training)}") from error
        finally:
            if fabric.is_global_zero and resume is None and (training is None or not training.saved):
                run.discard(missing)


def _what_is_kept(run: Run, training: Training | None) -> str:
    """Say in a few words which files of a stopped run remain."""
    if run.last.exists():
        return f"antipodes train --resume {run.folder} goes on from the last checkpoint"
    if training is not None and training.saved:
        return f"{run.last} is gone, so the run cannot be resumed; its other files stay in {run.folder}"
    return "nothing kept"


def _lock(stack: ExitStack, fabric: Fabric, run: Run, new: bool) -> None:
    """Hold the run's lock on the first rank; if it is taken, every rank raises.

    A new run takes the lock before it checks that the folder is free, so that only one of two starts continues.
    """
    problem = None
    if fabric.is_global_zero:
        try:
            if new:
                run.refuse_taken()
            stack.enter_context(run.locked())
            if new:
                run.refuse_taken()  # once more: another start may have begun and ended meanwhile
        except ValueError as error:
            problem = str(error)
    if problem := fabric.broadcast(problem):
        raise ValueError(problem)


def _loop(training: Training) -> Run:
    """For every epoch: fit the policies that are due, take the steps, evaluate, write records and a checkpoint."""
    settings, method, calendar = training.settings, training.method, training.calendar
    if training.done == 0:
        _snapshot(training, 0)
    with training.bar:
        for epoch in range(calendar.epoch(training.done), settings.epochs):
            begun = calendar.within(training.done)
            if begun == 0:
                fit_policies(method, training.data, epoch, training.progress, training.fabric)
            batches = training.loader.epoch(epoch, start=begun * settings.accumulate)
            started, seen = time.perf_counter(), 0
            for _ in range(begun, calendar.steps):
                rate = rate_of(settings, training.done, calendar)
                numbers = _step(training, batches, rate)
                seen += settings.batch_size * settings.accumulate
                speed = seen / (time.perf_counter() - started)
                training.bar.step(epoch, settings.epochs, numbers["loss"], speed)
                if training.done % settings.log_every == 0:
                    means = RunningMeans.of(numbers).over_ranks().means()
                    if training.records is not None:
                        line = {**means, "learning_rate": rate, "images_per_second": speed}
                        training.records.write("step", training.done, line)
                every = settings.checkpoint_steps
                if every and training.done % every == 0 and calendar.within(training.done):
                    training.checkpoint()
            row = _end_of_epoch(training, epoch + 1, seen / (time.perf_counter() - started))
            training.bar.say(_sentence(row, settings.epochs))
    if settings.epochs == 0:
        training.checkpoint(is_best=True)
    if training.records is not None:
        run = training.run
        whole = open_method(run)[0] if training.sharded else method
        export_encoders(whole, training.data, run.folder, card_facts(run.config))
        training.records.close()
    training.fabric.barrier()
    return training.run


def _step(training: Training, batches: Iterator[Loaded], rate: float) -> dict[str, float]:
    """Take one optimiser step on one batch or several accumulated ones; return the numbers for the log."""
    settings, fabric, method = training.settings, training.fabric, training.method
    optimizer, done = training.optimizer, training.done
    training.observer.active = (done + 1) % settings.log_every == 0 or training.calendar.within(done + 1) == 0
    for group in optimizer.param_groups:
        group["lr"] = training.rate_of_group(group, rate)
    loss = 0.0
    for part in range(settings.accumulate):
        rows, raw = next(batches)
        batch = training.views.batch(rows, raw, (settings.seed, done, part))
        with fabric.no_backward_sync(training.network, enabled=part + 1 < settings.accumulate):
            value = _loss(training, batch)
            fabric.backward(value / settings.accumulate)
        loss += value.item() / settings.accumulate
    if settings.clip_gradient is not None:
        fabric.clip_gradients(training.network, optimizer, max_norm=settings.clip_gradient)
    optimizer.step()
    optimizer.zero_grad()
    method.after_step()
    if isinstance(method.guide, RunGuide):
        method.guide.after_step()
    training.done += 1
    numbers = {"loss": loss, **method.statistics(), **training.observer.pop_means()}
    training.totals.add(numbers)
    if receivers := policies_receiving(method, "loss"):
        send(receivers, gather(torch.tensor([loss], device=fabric.device)).mean().item(), training.progress)
    return numbers


def _loss(training: Training, batch: Batch) -> Tensor:
    """Return the method's loss; raise TrainingFailed if it is not finite, before it changes the weights."""
    progress = training.progress
    try:
        loss = training.method.loss(training.embed, batch, progress)
    except NotFinite as error:
        raise TrainingFailed(
            f"the run has diverged, its embeddings are not finite after {progress:.1%}: {ADVICE}"
        ) from error
    if not math.isfinite(loss.item()):
        raise TrainingFailed(f"the run has diverged, its loss became {loss.item()} after {progress:.1%}: {ADVICE}")
    return loss


def _end_of_epoch(training: Training, epoch: int, speed: float) -> dict[str, float]:
    """Evaluate, send the score to policies, write the epoch's line, its snapshot and the checkpoint.

    Policies that are due after the last epoch are fitted too: no training follows, but the run ends with their state
    (Algorithm 1 of IFND clusters after an epoch's batches).
    """
    settings, method, data = training.settings, training.method, training.data
    means = training.totals.over_ranks().means()
    for prefix in ("", "coarse_"):
        means = summarise_flags(means, prefix)
    row = {"epoch": epoch, **means, "images_per_second": speed}
    training.totals = RunningMeans()
    judged = training.judged
    scored = judged is not None and (epoch % settings.knn_every == 0 or epoch == settings.epochs)
    evaluates = scored and (training.first or training.sharded)
    if judged == "knn" and evaluates:
        row["knn"] = online_knn(method, data, training.fabric.device)
    elif training.validation is not None and evaluates:
        row["validation_recall"] = online_recall(method, training.validation, training.fabric.device)
    receivers = policies_receiving(method, "score")
    if judged == "knn" and scored and receivers:
        send(receivers, training.fabric.broadcast(row.get("knn", math.nan)), training.progress)  # the first rank's
    if training.records is not None:
        training.records.write("epoch", training.done, row)
    score = -row["loss"] if judged is None else row.get(judged, -math.inf)
    is_best, training.best = score > training.best, max(score, training.best)
    if epoch == settings.epochs:
        fit_policies(method, data, epoch, training.progress, training.fabric)
    _snapshot(training, epoch)  # before the checkpoint, so a run that continues from the checkpoint has it
    training.checkpoint(is_best)
    return row


def _snapshot(training: Training, epoch: int) -> None:
    every = training.settings.snapshot_every
    if training.first and every and (epoch % every == 0 or epoch == training.settings.epochs):
        found = take_snapshot(training.method, training.data, epoch, training.progress, training.fabric.device)
        save_snapshot(training.run, found)


def _sentence(row: Mapping[str, float], epochs: int) -> str:
    parts = [f"epoch {int(row['epoch'])}/{epochs}", f"loss {row['loss']:.4f}"]
    scores = {"knn": "knn", "validation_recall": "validation recall"}
    parts += [f"{words} {row[name]:.1f} %" for name, words in scores.items() if name in row]
    if row.get("flagged_share", 0) > 0:
        parts.append(f"flagged {100 * row['flagged_share']:.2f} %")
    return "  ".join([*parts, f"{row['images_per_second']:,.0f} samples/s"])
