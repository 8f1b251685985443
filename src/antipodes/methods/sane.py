"""SANE: MoCo with labels that its own keys refine, and queries mixed with other samples' keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from antipodes.distributed import gather, rank
from antipodes.losses import InfoNCE, SoftLabel
from antipodes.methods.batch import Batch, InputViews
from antipodes.methods.moco import MoCo
from antipodes.methods.towers import Network, TowerPlan, Towers
from antipodes.pairs import Pairs, normalise
from antipodes.seeding import generator

Mixup = Literal["momentum", "vanilla", "none"]


class SANE(MoCo):
    """SANE (Zhou et al. 2021), with its defaults for CIFAR-10; `sane-imagenet` has those for ImageNet.

    1. queries of x = network(view 1), keys of x~ = momentum network(view 2); the key set is this batch's keys and the
       queue, the same for every query
    2. plain loss: x against its own key
    3. momentum mixup: x'_i = theta x_i + (1 - theta) x~_k with k of a random permutation of the batch, theta of
       Beta(kappa, kappa); x' goes through the network, its label is theta y_i + (1 - theta) y_k with the refined labels
       y of `SoftLabel`
    4. loss = (1 - lambda) plain + lambda mixed

    A sample of this batch has a fresh key, so its stale keys in the queue are removed from the key set of all queries.
    Then no key of a sample is its negative, and labels over the key set are comparable, as mixing them requires.

    With `crops` the mixed loss is the mean over smaller views of x, mixed with x~ scaled down (SANE-Single has one
    size, SANE-Multi five). Strong augmentation: `--augmentation clsa`, or with crops `crop_recipe` clsa, which leaves
    the plain loss its weak views.

    Args:
        network: One tower.
        loss_fn: The loss with refined labels; the plain loss has its temperature.
        dim: Dimension of the embeddings.
        kappa: Parameter of Beta(kappa, kappa), from which the shares of mixup are drawn; a small one mixes little.
        refined_share: Share of the mixed loss with refined labels, the paper's lambda; the rest is the plain loss.
        mixup: What a query is mixed with: another sample's key view (momentum), its query view (vanilla), or nothing.
        crops: Sizes in pixels of smaller views for the mixed loss; none mixes the two full views.
        crop_recipe: Augmentation of those smaller views.
        momentum: Share of the key network that stays at each step.
        queue_size: Number of keys.
        seed: Determines permutations and shares of mixup, with the step.
    """

    run = {
        "augmentation": "moco-v2",
        "head": {"kind": "mlp3", "hidden": 2048},
        "loss": {"name": "soft-label", "temperature": 0.2},
    }
    trains = ("soft-label",)
    mixes = True
    accumulates = False  # keys of the batch are negatives, too
    steps: Tensor

    def __init__(
        self,
        network: Towers,
        loss_fn: SoftLabel,
        dim: int = 128,
        kappa: float = 2.0,
        refined_share: float = 0.5,
        mixup: Mixup = "momentum",
        crops: tuple[int, ...] = (),
        crop_recipe: str = "moco-v2",
        momentum: float = 0.999,
        queue_size: int = 4096,
        seed: int = 0,
    ) -> None:
        super().__init__(network, InfoNCE(loss_fn.temperature), dim, momentum, queue_size)
        if not 0 < kappa < float("inf"):
            raise ValueError(f"kappa must be above 0 and finite, got {kappa}: mixup draws from Beta(kappa, kappa)")
        if not 0 <= refined_share <= 1:
            raise ValueError(f"refined_share must be in [0, 1], got {refined_share}: it is a share of the loss")
        if mixup not in get_args(Mixup):
            raise ValueError(f"mixup must be one of {', '.join(get_args(Mixup))}, got {mixup!r}")
        self.directions["refined"] = loss_fn
        self.kappa = kappa
        self.refined_share = refined_share
        self.mixup = mixup
        self.crops = tuple(crops)
        self.crop_recipe = crop_recipe
        self.seed = seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """Return one tower, for the image."""
        if modalities.get("image") != "image":
            raise ValueError(f"SANE mixes images and the data has {', '.join(modalities)}: use moco")
        return super().plan(modalities)

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the plain loss of queries against their keys, and the loss of mixed queries against mixed labels."""
        (tower,) = self.network.names()
        inputs, ids = batch[self.network.plans[tower].input], batch.ids
        fresh = self.keys(inputs.views[1])
        self._fresh.append((fresh, ids, batch.rows))
        keys, key_ids, own_columns = self._key_set(fresh, ids)
        key_rows = torch.cat((gather(batch.rows), self.queue.rows))
        partners, theta = self._draw(len(own_columns), fresh)
        here = slice(rank() * len(ids), (rank() + 1) * len(ids))

        plain = [inputs.views[0]] if self.refined_share < 1 else []
        mixed = self._mix(inputs, partners[here], theta[here]) if self.refined_share > 0 else []
        if plain and self.mixup == "none" and not self.crops:
            mixed = []  # the same queries serve both losses
        embeddings: tuple[Tensor, ...] = normalise(network({tower: [*plain, *mixed]})[tower]).split(len(ids))
        loss = embeddings[0].new_zeros(())
        if plain:
            positives = (embeddings[0] * fresh).sum(1)
            pairs = Pairs(embeddings[0], ids, positives, keys, key_ids, anchor_rows=batch.rows, candidate_rows=key_rows)
            (loss_fn,) = self.pair_losses().values()
            loss = loss + (1 - self.refined_share) * loss_fn.evaluate(pairs, progress)
        if self.refined_share > 0:
            students = embeddings[len(plain) :] if mixed else embeddings
            columns = torch.stack((own_columns, own_columns[partners]))[:, here].repeat(1, len(students))
            shares = theta[here].repeat(len(students))
            refined = self.directions["refined"](
                torch.cat(tuple(students)), keys, key_ids, columns, shares, progress, key_rows
            )
            loss = loss + self.refined_share * refined
        return loss

    def after_step(self) -> None:
        """Update as MoCo does, and count the step, from which the next draws follow."""
        super().after_step()
        self.steps += 1

    def _key_set(self, fresh: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys of all ranks' samples and of the queue (C, D), their ids (C,), and each sample's column (B,).

        Every sample of the batch has exactly one key: stale copies in the queue, and further copies of a sample that is
        twice in the batch, get the id -1.
        """
        fresh, ids = gather(fresh), gather(ids)
        _, inverse = ids.unique(return_inverse=True)
        places = torch.arange(len(ids), device=ids.device)
        first = torch.zeros_like(places).scatter_reduce_(0, inverse, places, "amin", include_self=False)
        own_columns = first[inverse]
        stale = torch.isin(self.queue.ids, ids)
        key_ids = torch.cat((ids.where(own_columns == places, -1), self.queue.ids.masked_fill(stale, -1)))
        return torch.cat((fresh, self.queue.keys.to(fresh.dtype))), key_ids, own_columns

    def _draw(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a permutation of the global batch and a mixing share for each sample, the same on every rank."""
        if self.mixup == "none":
            return torch.arange(count, device=like.device), like.new_ones(count)
        draws = generator("mixup", self.seed, int(self.steps))
        partners = torch.randperm(count, generator=draws)
        gammas = torch._standard_gamma(torch.full((2, count), self.kappa, dtype=torch.float64), generator=draws)
        theta = gammas[0] / gammas.sum(0)  # of Beta(kappa, kappa)
        return partners.to(like.device), theta.to(like)

    def _mix(self, inputs: InputViews, partners: Tensor, theta: Tensor) -> list[Tensor]:
        """Return the mixed queries x', one tensor for each crop size."""
        views = inputs.views
        sources = list(inputs.crops) or views[:1]
        if self.mixup == "none":
            return list(sources)
        theta = theta.view(-1, 1, 1, 1).to(views[0].dtype)
        others = [gather(views[1])[partners]] * len(sources)
        if self.mixup == "vanilla":
            others = [gather(source)[partners] for source in sources]
        return [
            torch.lerp(_resized(other, source.shape[-1]), source, theta)
            for source, other in zip(sources, others, strict=True)
        ]


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-1] == size:
        return images
    return interpolate(images, (size, size), mode="bilinear", antialias=True)
