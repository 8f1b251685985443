"""The training loop, from top to bottom.

A run is a function of its configuration: the order of samples, their augmentation and every draw follow from the seed
and the step's number, so a checkpoint needs no state of any generator of ours, and a run that was killed and resumed
ends with the weights of one that was not.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from antipodes.data import ImageDataset, Loader
from antipodes.data.augment import Augmentation
from antipodes.data.dataset import subset
from antipodes.distributed import gather
from antipodes.encoders.export import export_backbone
from antipodes.functional.errors import NotFinite
from antipodes.functional.knn import knn
from antipodes.methods import Method
from antipodes.methods.method import Network
from antipodes.negatives import Both, Policy
from antipodes.negatives.judging import summarise_flags
from antipodes.negatives.policy import Hears, Space
from antipodes.runs.boards import BOARDS, require
from antipodes.runs.build import build_data, build_method, build_views, plain_view
from antipodes.runs.embedding import embed
from antipodes.runs.folder import Run, load_checkpoint, save_checkpoint
from antipodes.runs.opening import load_model
from antipodes.runs.records import Records, Totals
from antipodes.runs.settings import Settings
from antipodes.runs.snapshots import discard_snapshots, save_snapshot, take_snapshot
from antipodes.schedules import learning_rate
from antipodes.seeding import generator
from antipodes.training.optimizers import optimizer as build_optimizer
from antipodes.training.progress import TrainingProgress
from antipodes.training.watch import Watch

ADVICE = "try a lower learning_rate, a longer warmup or a clip_gradient"
KNN_IMAGES = 4096  # training images that the kNN accuracy during training looks at


class TrainingFailed(RuntimeError):
    """The run cannot go on, for a reason that one sentence can tell."""


def train(config: dict[str, Any], resume: Run | None = None) -> Run:
    """Train as a configuration says, or continue a run.

    Args:
        config: The settings (see `Settings`) and the components `method`, `data`, `encoder`, `augmentation` and
            `negatives`, each a mapping with a name and constructor arguments.
        resume: The run to continue, whose configuration this is.

    Returns:
        The run, with its checkpoints and its exported encoder.

    Raises:
        ValueError: for a configuration that makes no sense or does not fit what is resumed; nothing is written then.
        TrainingFailed: when the loss stops being a number.
    """
    settings = Settings(**{field.name: config[field.name] for field in fields(Settings)})
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    fabric = _launch(settings)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)  # the initial weights; inside the fork, so the caller's generator is untouched
        return _train(config, settings, fabric, resume)


def _train(config: dict[str, Any], settings: Settings, fabric: Fabric, resume: Run | None) -> Run:
    boards = [name for name in BOARDS if getattr(settings, name)]
    require(boards)
    run = resume or Run.free(settings.out)  # refused by every rank alike, so that none waits for another
    data = build_data(config["data"])
    method = build_method(config, data)
    if settings.accumulate > 1 and not method.accumulates:
        raise ValueError(
            f"accumulate must be 1 with method {config['method']['name']}: its negatives are the samples of a batch, "
            "so several small batches are not one large one; use a larger batch_size or a method with a queue or bank"
        )
    if settings.batch_size < 2 and not method.accumulates:
        raise ValueError(
            f"method {config['method']['name']} needs a batch_size of at least 2: the others are negatives"
        )
    hear_losses, hear_scores = _listeners(method, "loss"), _listeners(method, "score")
    if hear_scores and (data.labels is None or settings.knn_every == 0):
        raise ValueError(
            "a ring that anneals by validation needs a validation score, the kNN accuracy of training images: "
            "use data with labels and a knn_every above 0, or another anneal"
        )
    views = build_views(config["augmentation"], data.image_size, method)
    plain = plain_view(method, data.image_size)
    loader = Loader(
        data,
        settings.batch_size,
        seed=settings.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        workers=settings.workers,
    )
    steps = len(loader) // settings.accumulate  # optimiser steps per epoch
    if steps == 0:
        raise ValueError(f"accumulate {settings.accumulate} needs that many batches, an epoch has {len(loader)}")
    method.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method.precision = fabric.autocast
    optimizer = build_optimizer(
        settings.optimizer,
        method.network,
        settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
    )
    _learning_rate(settings, 0, steps)  # an impossible schedule is refused before anything is written

    done, best, totals = 0, -math.inf, Totals()
    identity = {"fingerprint": data.fingerprint, "world_size": fabric.world_size, "method": config["method"]["name"]}
    if resume is not None and resume.last.exists():  # else it was stopped before its first checkpoint: from the start
        state = load_checkpoint(resume.last)
        _refuse_changes(state["identity"], identity, resume)
        load_model(method, state, resume)
        optimizer.load_state_dict(state["optimizer"])
        fabric.strategy.precision.load_state_dict(state["precision"])
        torch.set_rng_state(state["rng"])
        done, best, totals = state["step"], state["best"], Totals(state["totals"])
    watch = Watch(method, data)
    network, optimizer = fabric.setup(method.network, optimizer)
    method.train()

    first = fabric.is_global_zero
    if first and resume is None:
        Run.create(settings.out, config)
    records = Records(run.folder, done, boards) if first else None
    total = settings.epochs * steps
    bar = TrainingProgress(total, done, enabled=first)

    def checkpoint(is_best: bool = False) -> None:
        if first:
            state = {
                "identity": identity,
                "model": method.state_dict(),
                "optimizer": optimizer.state_dict(),
                "precision": fabric.strategy.precision.state_dict(),
                "rng": torch.get_rng_state(),
                "step": done,
                "best": best,
                "totals": totals.state(),
            }
            if is_best:  # first, as the last checkpoint says that it is there
                save_checkpoint(run.best, state)
            save_checkpoint(run.last, state)

    def snapshot(epoch: int) -> None:
        every = settings.snapshot_every
        if first and every and (epoch % every == 0 or epoch == settings.epochs):
            save_snapshot(run, take_snapshot(method, data, epoch, done / total, fabric.device))

    if first:
        discard_snapshots(run, done // steps)
    if done == 0:
        snapshot(0)
    with bar:
        for epoch in range(done // steps, settings.epochs):
            if done % steps == 0:
                _fit_policies(method, data, epoch, done / total, fabric)
            batches = loader.epoch(epoch, start=done % steps * settings.accumulate)
            started, seen = time.perf_counter(), 0
            for _ in range(done % steps, steps):
                rate = _learning_rate(settings, done, steps)
                watch.active = (done + 1) % settings.log_every == 0 or (done + 1) % steps == 0
                for group in optimizer.param_groups:
                    group["lr"] = rate
                loss = 0.0
                for part in range(settings.accumulate):
                    ids, images = (tensor.to(fabric.device) for tensor in next(batches))
                    seeds = (settings.seed, done, part)
                    batch = _views(views, images, seeds, fabric)
                    if method.plain:
                        batch.append(plain(images))
                    with fabric.no_backward_sync(network, enabled=part + 1 < settings.accumulate):
                        value = _loss(method, network, ids, batch, done / total)
                        fabric.backward(value / settings.accumulate)
                    loss += value.item() / settings.accumulate
                if settings.clip_gradient is not None:
                    fabric.clip_gradients(network, optimizer, max_norm=settings.clip_gradient)
                optimizer.step()
                optimizer.zero_grad()
                method.after_step()
                done += 1
                seen += settings.batch_size * settings.accumulate
                numbers = {"loss": loss, **method.statistics(), **watch.take()}
                if hear_losses:
                    _tell(hear_losses, gather(torch.tensor([loss], device=fabric.device)).mean().item(), done / total)
                totals.add(numbers)
                speed = seen / (time.perf_counter() - started)
                bar.step(epoch, settings.epochs, loss, speed)
                if records is not None and done % settings.log_every == 0:
                    records.write("step", done, {**numbers, "learning_rate": rate, "images_per_second": speed})
                if settings.checkpoint_steps and done % settings.checkpoint_steps == 0 and done % steps:
                    checkpoint()
            seconds = time.perf_counter() - started
            means = totals.over_ranks().means()
            for prefix in ("", "coarse_"):
                means = summarise_flags(means, prefix)
            row = {"epoch": epoch + 1, **means, "images_per_second": seen / seconds}
            totals = Totals()
            labelled = data.labels is not None and settings.knn_every > 0
            scored = labelled and ((epoch + 1) % settings.knn_every == 0 or epoch + 1 == settings.epochs)
            if first and scored:
                row["knn"] = online_knn(method, data, fabric.device)
            if scored and hear_scores:
                _tell(hear_scores, fabric.broadcast(row.get("knn", math.nan)), done / total)  # the first rank's
            if records is not None:
                records.write("epoch", done, row)
            score = row.get("knn", -math.inf) if labelled else -row["loss"]
            is_best, best = score > best, max(score, best)
            snapshot(epoch + 1)  # before the checkpoint: a run that continues from that one has it
            checkpoint(is_best)
            bar.say(_sentence(row, settings.epochs))
    if records is not None:
        for name, encoder in method.exports().items():
            export_backbone(encoder, run.folder / f"{name}.safetensors")
        records.close()
    fabric.barrier()
    return run


def online_knn(method: Method, data: ImageDataset, device: torch.device | str = "cpu") -> float:
    """Leave-one-out kNN accuracy on (some of) the training images, in percent: a validation that needs no test data."""
    sample = data if len(data) <= KNN_IMAGES else subset(data, torch.arange(KNN_IMAGES) * len(data) // KNN_IMAGES)
    features = embed(method.backbone(), sample, preprocess=plain_view(method, data.image_size), device=device)
    assert sample.labels is not None
    return 100 * knn(features, sample.labels, features, sample.labels, leave_one_out=True)


def _policies(method: Method) -> list[Policy]:
    """The method's policies, each part of a joined one by itself."""
    return [part for part in method.modules() if isinstance(part, Policy) and not isinstance(part, Both)]


def _listeners(method: Method, hears: Hears) -> list[Policy]:
    """The policies that want to hear of losses or of scores."""
    return [policy for policy in _policies(method) if policy.hears == hears]


def _tell(listeners: list[Policy], value: float, progress: float) -> None:
    for policy in listeners:
        policy.hear(value, progress)


def _fit_policies(method: Method, data: ImageDataset, epoch: int, progress: float, fabric: Fabric) -> None:
    """Give the policies that are due the features of all training images, without augmentation."""
    due = [policy for policy in _policies(method) if policy.due(epoch)]
    ranks, here = fabric.world_size, fabric.global_rank
    features: dict[Space, Tensor | None] = {"seen": None}
    for policy in due:
        if policy.space not in features:
            network = method.backbone() if policy.space == "features" else method.network
            share = data
            if ranks > 1:
                share = subset(data, torch.arange(len(data) * here // ranks, len(data) * (here + 1) // ranks))
            view = plain_view(method, data.image_size)
            features[policy.space] = embed(network, share, preprocess=view, device=fabric.device)
        policy.fit(features[policy.space], progress)


def _launch(settings: Settings) -> Fabric:
    """Start the processes: as many as asked for, or those that torchrun has started already."""
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if settings.precision == "16-mixed" and (settings.accelerator == "cpu" or not gpu):
        raise ValueError("precision 16-mixed needs a GPU: on a CPU use 32-true, or bf16-mixed where it is supported")
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))
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


def _views(
    recipes: Sequence[Augmentation], images: Tensor, seeds: tuple[int, int, int], fabric: Fabric
) -> list[Tensor]:
    """Independent views of this rank's images; a view's generator follows from seed, step, part and view."""
    return [
        recipe(images, generator("views", *seeds, view), rank=fabric.global_rank, world_size=fabric.world_size)
        for view, recipe in enumerate(recipes)
    ]


def _loss(method: Method, network: Network, ids: Tensor, views: list[Tensor], progress: float) -> Tensor:
    """The method's loss; a run whose numbers have left the finite ones ends here, before it spoils its weights."""
    try:
        loss = method.loss(network, ids, views, progress)
    except NotFinite as error:
        raise TrainingFailed(
            f"the run has diverged, its embeddings are not finite after {progress:.1%}: {ADVICE}"
        ) from error
    if not math.isfinite(loss.item()):
        raise TrainingFailed(f"the run has diverged, its loss became {loss.item()} after {progress:.1%}: {ADVICE}")
    return loss


def _learning_rate(settings: Settings, step: int, steps: int) -> float:
    """The rate of a step: scaled to the effective batch, warmed up, then falling."""
    total = settings.epochs * steps
    return learning_rate(
        step,
        total,
        int(settings.warmup * total),
        settings.learning_rate * settings.batch_size * settings.accumulate / 256,
        settings.schedule,
        settings.milestones,
    )


def _refuse_changes(saved: dict[str, Any], now: dict[str, Any], run: Run) -> None:
    """A checkpoint continues only with the data, the method and the number of processes it was written with."""
    if saved["method"] != now["method"]:
        raise ValueError(f"{run.folder} was trained with method {saved['method']}, not {now['method']}")
    if saved["world_size"] != now["world_size"]:
        raise ValueError(
            f"{run.folder} was trained by {saved['world_size']} process(es), this is {now['world_size']}: "
            f"resume it with as many"
        )
    if saved["fingerprint"] != now["fingerprint"]:
        raise ValueError(
            f"the dataset has changed since {run.folder} was started (fingerprint {saved['fingerprint']}, now "
            f"{now['fingerprint']}): ids would mean other samples; restore the data or start a new run"
        )


def _sentence(row: Mapping[str, float], epochs: int) -> str:
    parts = [f"epoch {int(row['epoch'])}/{epochs}", f"loss {row['loss']:.4f}"]
    if "knn" in row:
        parts.append(f"knn {row['knn']:.1f} %")
    if row.get("flagged_share", 0) > 0:
        parts.append(f"flagged {100 * row['flagged_share']:.2f} %")
    return "  ".join([*parts, f"{row['images_per_second']:,.0f} images/s"])
