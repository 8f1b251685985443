"""PCL: MoCo with a second term, in which every query finds the prototype of its sample's cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from antipodes.clustering import Clustering, summed
from antipodes.losses import LossModule
from antipodes.methods.batch import Batch
from antipodes.methods.moco import MoCo
from antipodes.methods.towers import Network, Towers
from antipodes.negatives.clustered import Clustered
from antipodes.negatives.policy import Policy, Space
from antipodes.pairs import Pairs, Rule
from antipodes.seeding import generator

SMOOTHING = 10.0  # the paper's alpha, which keeps small clusters from a large concentration
MIDDLE = (0.1, 0.9)  # the authors' code limits the concentrations to these quantiles of one number of clusters


class Prototypes(Clustered):
    """The centroids of every number of clusters, with their concentrations phi (PCL, Eq. 12).

        phi_c = sum of |v_i - c| over its members / (Z log(Z + 10))        Z members

    A cluster of one member has the largest phi. All are limited to the quantiles 0.1 and 0.9 and scaled so that the
    mean of each number of clusters is `temperature`. As a policy it keeps every pair.
    """

    concentration: Tensor

    def __init__(
        self, num_samples: int, clusters: Sequence[int], every: int = 1, seed: int = 0, temperature: float = 0.2
    ) -> None:
        super().__init__(num_samples, clusters, every, "embeddings", seed)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 and finite, got {temperature}: it is the mean concentration")
        self.temperature = temperature
        self.needs = replace(self.needs, learn=False)
        self.register_buffer("concentration", torch.zeros(sum(self.clusters)))

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Keep every pair."""
        return [Rule()]

    def keep_more(self, level: int, found: Clustering, rows: Tensor, share: slice) -> None:
        """Keep the concentrations of one number of clusters, from the members' distances on all ranks; 0 if empty."""
        k = self.clusters[level]
        distance = (2 - 2 * found.similarity.double()).clamp(min=0).sqrt()
        total = summed(torch.zeros(k, dtype=torch.float64, device=rows.device).index_add_(0, found.labels, distance))
        members = summed(torch.bincount(found.labels, minlength=k))
        part = slice(sum(self.clusters[:level]), sum(self.clusters[: level + 1]))
        self.concentration[part] = concentrations(total, members, self.temperature).to(self.concentration)

    def level(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels (n,), centroids (k, F) and concentrations (k,) of one of the numbers of clusters."""
        centroids, phi = self.centroids.split(self.clusters)[number], self.concentration.split(self.clusters)[number]
        return self.labels[number], centroids, phi


def concentrations(total: Tensor, members: Tensor, temperature: float) -> Tensor:
    """Return phi (k,) of clusters, from the sum of their members' distances (k,) and how many these are (k,).

    Example:
        >>> concentrations(torch.tensor([1.0, 3.0]), torch.tensor([2, 2]), 0.2).tolist()
        [0.12000000476837158, 0.2800000011920929]
    """
    phi = total / (members.clamp(min=1) * (members + SMOOTHING).log())
    phi = torch.where(members > 1, phi, phi.max())
    there = phi[members > 0]
    low, high = torch.quantile(there, torch.tensor(MIDDLE, dtype=there.dtype, device=there.device))
    phi = phi.clamp(low, high)
    mean = phi[members > 0].mean()
    phi = temperature * phi / mean if mean > 0 else torch.full_like(phi, temperature)
    return torch.where(members > 0, phi, 0.0)


class PrototypeNCE(LossModule):
    """The cross entropy of queries with the prototype of their sample's cluster (PCL, the second part of Eq. 11).

        loss_i = mean over numbers of clusters of - log( e^{q_i c_s / phi_s} / sum_c e^{q_i c / phi_c} )

    with s the cluster of sample i, and the sum over all clusters c with members. Samples without a cluster, and all
    samples before the first clustering, have a loss of 0.

    Args:
        prototypes: The clusters.
        count: Prototypes in the sum at most, in addition to the queries' own; they are drawn for each step.
        seed: Determines the draws, with the number of the step.
    """

    steps: Tensor

    def __init__(self, prototypes: Prototypes, count: int = 16000, seed: int = 0) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}: it is the number of prototypes in a sum")
        self.prototypes = prototypes
        self.count, self.seed = count, seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def policies(self) -> list[Policy]:
        """Return the clusters, which are fitted between epochs."""
        return [self.prototypes]

    def forward(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Return the mean loss of queries (b, D) of length 1, of the samples in these rows (b,).

        1. Per number of clusters: the own cluster of each sample, (b,), from the last clustering.
        2. Logits (b, k): the similarities to all prototypes, each divided by its phi.
        3. The cross entropy with the own cluster; the mean over samples and over numbers of clusters.
        """
        loss = queries.sum() * 0
        if self.prototypes.fitted_at < 0:
            self._report({"own_prototype": loss.detach()})
            return loss
        found = []
        for number, k in enumerate(self.prototypes.clusters):
            labels, centroids, phi = self.prototypes.level(number)
            own = labels[rows].long()
            counted = phi > 0
            if k > self.count:
                drawn = generator("prototypes", self.seed, int(self.steps), number)
                chosen = torch.zeros_like(counted)
                chosen[torch.randperm(k, generator=drawn)[: self.count].to(rows.device)] = True
                counted = counted & chosen
            among = counted.repeat(len(rows), 1).scatter_(1, own.clamp(min=0)[:, None], True)
            logits = (queries @ centroids.to(queries).T) / phi.to(queries).masked_fill(phi == 0, 1.0)
            logits = logits.masked_fill(~among, -torch.inf)
            losses = torch.where(own >= 0, cross_entropy(logits, own.clamp(min=0), reduction="none"), 0.0)
            loss = loss + losses.mean() / len(self.prototypes.clusters)
            found.append((logits.detach().argmax(1) == own).double().mean())
        self._report({"own_prototype": torch.stack(found).mean(), "prototype_loss": loss.detach()})
        return loss


class PCL(MoCo):
    """Prototypical contrastive learning (Li et al. 2021), with the head of MoCo v2.

    1. MoCo's loss of queries against keys and the queue, with any policy
    2. before every `every`-th epoch: spherical k-means of the momentum network's embeddings of all samples, once per
       number of clusters; the centroids are the prototypes (`Prototypes`)
    3. from `start` on: plus the cross entropy of every query with the prototype of its sample (`PrototypeNCE`)

    Args:
        network: One tower.
        loss_fn: The loss of queries against keys.
        num_samples: Rows of the dataset.
        dim: Dimension of the embeddings.
        clusters: Numbers of clusters. The paper takes 25, 50 and 100 times the number of classes.
        every: Epochs between two clusterings.
        start: Share of training with MoCo's loss alone; the paper's warm-up is 20 of 200 epochs.
        concentration: The mean of phi: the temperature of the prototypes. The paper's is MoCo's temperature.
        prototypes: Prototypes in a sum at most, in addition to the queries' own.
        momentum: Share of the key network that stays at each step.
        queue_size: Number of keys.
        seed: Determines the first clusters, and the draws of prototypes.
    """

    steps: Tensor

    def __init__(
        self,
        network: Towers,
        loss_fn: nn.Module,
        num_samples: int,
        dim: int = 128,
        clusters: Sequence[int] = (100, 200, 500),
        every: int = 1,
        start: float = 0.1,
        concentration: float = 0.2,
        prototypes: int = 16000,
        momentum: float = 0.999,
        queue_size: int = 65536,
        seed: int = 0,
    ) -> None:
        super().__init__(network, loss_fn, dim, momentum, queue_size)
        if not 0 <= start <= 1:
            raise ValueError(f"start must be in [0, 1], got {start}: it is the share of training without prototypes")
        self.start = start
        self.directions["prototypes"] = PrototypeNCE(
            Prototypes(num_samples, clusters, every, seed, concentration), prototypes, seed
        )

    def clustered(self, tower: str, space: Space) -> nn.Module:
        """Return the momentum network for embeddings, and the encoder that is trained for features."""
        return self.key_network[tower] if space == "embeddings" else super().clustered(tower, space)

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return MoCo's loss, plus that of the queries (b, dim) with their prototypes."""
        loss, queries = self.compare(network, batch, progress)
        if progress < self.start:
            return loss
        prototypes: Tensor = self.directions["prototypes"](queries, batch.rows)
        return loss + prototypes

    def after_step(self) -> None:
        """Update as MoCo does, and count the step, from which the next draw of prototypes follows."""
        super().after_step()
        steps = self.directions["prototypes"].steps
        assert isinstance(steps, Tensor)
        steps += 1
