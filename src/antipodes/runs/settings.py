"""`Settings`: how a run is trained, whatever its method, data and encoder; `Calendar`: the epoch of a step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from antipodes.losses import Distillation, Refine, TreatmentName
from antipodes.seeding import check_seed

MOST_THREADS = 1024
"""The largest number of threads: more than machines have cores; the system fails on very many without a message."""

MOST_EPOCHS = 1_000_000_000
"""The largest number of epochs; a number with twenty digits is a slip of the hand and no plan."""


@dataclass(frozen=True)
class Settings:
    """How a run is trained.

    Args:
        out: Folder of the run; it must not hold one yet.
        epochs: Passes over the data; 0 makes a run of the encoder as it is: untrained, pretrained, or fitted (patches).
            With --resume it may be larger than before: schedules then follow the new total.
        batch_size: Samples per step over all devices; with accumulation, per part.
        batch_neighbours: Number of similar samples that share a batch: each sample brings some of its ten nearest
            neighbours by the guide, and every sample appears once an epoch. 1 draws at random; more needs a guide with
            vectors before training (a table, network or patches).
        init: Start from these weights instead of random ones: a run folder, a .safetensors, .pth or .pt file, or the
            name of an encoder that comes with weights. They go into the encoder of the first tower; a run with the
            same several towers gives all of them, and their heads; a run of the same method gives its head, its
            momentum encoder and its queue or bank, too, where shapes and data are the same.
        seed: Determines initial weights, order, augmentation and all draws.
        treatment: What happens to the false negatives that a policy finds.
        refine_mu: With treatment refine: the weight of the soft target; 0 pulls the positive only.
        refine_tau_prime: With treatment refine: temperature ratio that sharpens the soft target, in (0, 1].
        refine_space: With treatment refine: the soft target's similarities, from the positive's own embedding (own) or
            the run's guide.
        refine_share: With treatment refine: instead of refine_mu, the share of each label that is the soft target; 1
            makes it the whole label.
        refine_positive: With treatment refine: false leaves the positive out, with a share of 1.
        refine_among: With treatment refine: the candidates of the soft target's softmax: all, the positive and what is
            flagged, or others, what is flagged only, which allows a low temperature; with a refine_share below 1.
        distill: Weight of a loss in which anchors must find the guide's vector of their own sample among those of the
            other samples; 0 leaves it out.
        distill_temperature: The temperature of that loss.
        optimizer: The optimiser; lars is for batches of thousands.
        learning_rate: At a batch of 256; it scales linearly with the batch. By default as the method needs.
        weight_decay: Not applied to biases and normalisation, unless decay_vectors is true.
        decay_vectors: Let biases and normalisation decay, too, as MoCo's code does.
        momentum: Of sgd and lars.
        schedule: How the learning rate falls after the warm-up.
        milestones: Shares of training at which the step schedule multiplies the rate by 0.1.
        layer_decay: Ratio of an encoder layer's learning rate to the next layer's, for fine-tuning from --init: with
            0.75 the first layers change least; 1 is one rate for all.
        warmup: Share of training over which the learning rate rises from zero.
        clip_gradient: Largest norm of the gradient, by default as in the method's paper; none does not clip.
        accumulate: Batches per optimiser step; only for methods whose negatives do not come from the batch.
        micro_batch: Embed a batch in pieces of so many inputs and compute each piece again in the backward pass: the
            gradient of the whole batch, in the memory of one piece. For methods whose negatives come from the batch,
            and networks without batch normalisation (encoder resnet18-slim-gn, --head.batch_norm false).
        precision: bf16-mixed and 16-mixed are faster on GPUs; on many CPUs they are much slower.
        accelerator: Where to train.
        devices: Number of processes, one per device.
        strategy: What several processes share: ddp the work, with all parameters on each; fsdp also the parameters,
            their gradients and the optimiser's state (FSDP2), for towers larger than a device.
        workers: Processes that decode images, for folders that do not fit in memory.
        threads: CPU threads of each process; none leaves torch's choice.
        knn_every: Epochs between scores that decide the best epoch: kNN accuracies on training images with labels, or
            the recall of validation pairs of images and texts; 0 for never.
        checkpoint_steps: Also write a checkpoint every so many steps inside an epoch; 0 for each epoch's end only.
        snapshot_every: Epochs between snapshots of some images' features and pseudo labels, from which antipodes
            pictures draws maps; 0 for none.
        log_every: Steps between lines in metrics.jsonl.
        tensorboard: Also write TensorBoard files (the tensorboard extra).
        freeze: Names of towers whose encoders are not trained; if their inputs are not random either (texts, vectors,
            images with the augmentation plain), their features are computed once and looked up.
        wandb: Also report to Weights & Biases (the wandb extra); with WANDB_MODE=offline into files of the run.
    """

    out: str = "runs/latest"
    epochs: int = 100
    batch_size: int = 256
    batch_neighbours: int = 1
    init: str | None = None
    seed: int = 0
    treatment: TreatmentName = "eliminate"
    refine_mu: float = Refine.mu
    refine_tau_prime: float = Refine.tau_prime
    refine_space: Literal["own", "guide"] = Refine.space
    refine_share: float | None = Refine.share
    refine_positive: bool = Refine.positive
    refine_among: Literal["all", "others"] = Refine.among
    distill: float = 0.0
    distill_temperature: float = Distillation.temperature
    optimizer: Literal["sgd", "adamw", "lars"] = "sgd"
    learning_rate: float = 0.12
    weight_decay: float = 5e-4
    decay_vectors: bool = False
    momentum: float = 0.9
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    milestones: tuple[float, ...] = (0.6, 0.8)
    layer_decay: float = 1.0
    warmup: float = 0.05
    clip_gradient: float | None = None
    accumulate: int = 1
    micro_batch: int | None = None
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    workers: int = 2
    threads: int | None = None
    knn_every: int = 5
    checkpoint_steps: int = 0
    snapshot_every: int = 0
    log_every: int = 10
    tensorboard: bool = False
    wandb: bool = False
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "batch_neighbours", "accumulate", "devices", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"micro_batch must be at least 1, got {self.micro_batch}; leave it out for whole batches")
        for name in ("epochs", "knn_every", "checkpoint_steps", "snapshot_every", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.epochs > MOST_EPOCHS:
            raise ValueError(f"epochs must be at most {MOST_EPOCHS:,}, got {self.epochs}")
        if self.batch_neighbours > self.batch_size:
            raise ValueError(
                f"batch_neighbours must be at most the batch_size, {self.batch_size}, got {self.batch_neighbours}"
            )
        if not self.out.strip():
            raise ValueError("out is empty: name the folder of the run")
        check_seed(self.seed)
        refined = Refine(**{field.name: getattr(self, f"refine_{field.name}") for field in fields(Refine)})
        if refined != Refine() and self.treatment != "refine":
            raise ValueError("the options --refine_... belong to --treatment refine: add it or leave them out")
        if self.distill:
            Distillation(self.distill, self.distill_temperature)
        elif self.distill_temperature != Distillation.temperature:
            raise ValueError("distill_temperature needs --distill, the weight of the guide's vector as a view")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be in [0, 1), got {self.warmup}: it is a share of training")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"layer_decay must be in (0, 1], got {self.layer_decay}: it is a layer's rate over the next's"
            )
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(
                f"threads must be from 1 to {MOST_THREADS}, got {self.threads}; leave it out for torch's choice"
            )
        if self.clip_gradient is not None and not self.clip_gradient > 0:
            raise ValueError(f"clip_gradient must be above 0, got {self.clip_gradient}; leave it out not to clip")


@dataclass(frozen=True)
class Calendar:
    """Epochs of equal length, counted from a given step; data that has grown since a checkpoint makes longer epochs.

    Args:
        steps: Optimiser steps in an epoch.
        first_step: Steps before the first of these epochs.
        first_epoch: Epochs before the first of these epochs.

    Example:
        >>> calendar = Calendar(steps=10, first_step=14, first_epoch=2)
        >>> calendar.epoch(34), calendar.within(37), calendar.total(5)
        (4, 3, 44)
    """

    steps: int
    first_step: int = 0
    first_epoch: int = 0

    def epoch(self, done: int) -> int:
        """Return how many epochs are complete after `done` steps."""
        return self.first_epoch + (done - self.first_step) // self.steps

    def within(self, done: int) -> int:
        """Return how many steps of the current epoch are done after `done` steps."""
        return (done - self.first_step) % self.steps

    def total(self, epochs: int) -> int:
        """Return how many steps training takes until `epochs` epochs are complete."""
        return self.first_step + (epochs - self.first_epoch) * self.steps
