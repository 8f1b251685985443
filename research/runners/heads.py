"""A small network on locked features, trained by any loss and policy in a plain loop."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.losses import InfoNCE, Loss
from antipodes.negatives import Policy
from antipodes.negatives.flags import count_flags
from antipodes.pairs import Pairs, normalise
from antipodes.registry import find
from antipodes.seeding import generator


class SmallNetwork(nn.Module):
    """Locked features (B, F) to features (B, hidden) and embeddings (B, dim).

    Args:
        inputs: F.
        hidden: Features of the trunk.
        dim: Length of the embeddings; None adds them to the locked features, which it starts from (dim = F).
    """

    def __init__(self, inputs: int, hidden: int, dim: int | None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.head = nn.Linear(hidden, inputs if dim is None else dim)
        self.adds = dim is None
        if self.adds:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor) -> Tensor:
        """The embeddings (B, dim)."""
        embeddings: Tensor = self.head(self.trunk(features))
        return features + embeddings if self.adds else embeddings


@dataclass(frozen=True)
class Recipe:
    """How the network is trained.

    Attributes:
        hidden: Its features.
        dim: Length of its embeddings; None adds them to the locked features.
        batch: Samples of a step.
        epochs: Passes.
        rate: Highest learning rate of AdamW, reached after a tenth of the steps, then falling by a cosine.
    """

    hidden: int
    dim: int | None
    batch: int
    epochs: int
    rate: float


def build_policy(spec: Mapping[str, Any], given: Mapping[str, Any]) -> Policy | None:
    """The policy of a name with its arguments, and those of the given ones that it takes; None for `none`."""
    if spec["name"] == "none":
        return None
    component = find("negatives", spec["name"])
    takes = inspect.signature(component.target).parameters
    arguments = {name: value for name, value in spec.items() if name != "name"}
    if unknown := set(arguments) - set(takes):
        raise ValueError(f"{spec['name']} takes no {unknown.pop()}: it takes {', '.join(takes)}")
    policy: Policy = component.target(
        **{**component.preset, **{key: value for key, value in given.items() if key in takes}, **arguments}
    )
    return policy


def train_network(views: Tensor, plain: Tensor, loss_fn: Loss, recipe: Recipe, seed: int) -> SmallNetwork:
    """Train a network on two different views of every sample of a batch.

    Args:
        views: (V, n, F), at least two views of every sample.
        plain: (n, F) what policies that look at the whole dataset between epochs see of it.
        loss_fn: The loss with its policy.
        recipe: Sizes and rates.
        seed: Of weights, order and choice of views.
    """
    count, n, width = views.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SmallNetwork(width, recipe.hidden, recipe.dim)
    parameters = [*network.parameters(), *loss_fn.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.rate, weight_decay=1e-4)
    steps, step = recipe.epochs * (n // recipe.batch), 0
    policy = loss_fn.negatives
    for epoch in range(recipe.epochs):
        if policy is not None and policy.due(epoch):
            policy.fit(features(network, plain, policy.needs.space), epoch / recipe.epochs)
        draws = generator("locked order", seed, epoch)
        order = torch.randperm(n, generator=draws)
        for rows in order[: n // recipe.batch * recipe.batch].split(recipe.batch):
            first = torch.randint(count, (len(rows),), generator=draws)
            second = (first + torch.randint(1, count, (len(rows),), generator=draws)) % count
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * _schedule(step / steps)
            both = network(torch.cat((views[first, rows], views[second, rows])))
            loss = loss_fn(*both.chunk(2), rows, progress=step / steps)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
    return network.eval()


def _schedule(progress: float) -> float:
    """A tenth of warm-up, then half a cosine."""
    return min(1.0, progress / 0.1 + 1e-3) if progress < 0.1 else 0.5 * (1 + math.cos(math.pi * (progress - 0.1) / 0.9))


@torch.no_grad()
def features(network: SmallNetwork, inputs: Tensor, space: str = "features") -> Tensor:
    """What the network makes of plain inputs (n, F): features of its trunk, or embeddings of its head."""
    was = network.training
    network.eval()
    part = network.trunk if space == "features" else network
    found = torch.cat([part(some) for some in inputs.split(4096)])
    network.train(was)
    return found


@torch.no_grad()
def flags_judged(network: SmallNetwork, views: Tensor, policy: Policy, labels: Tensor, batch: int) -> dict[str, float]:
    """Precision, recall and share of a policy's flags in batches of all samples at the end of training, in percent."""
    embedded = (
        normalise(features(network, views[0], "embeddings")),
        normalise(features(network, views[1], "embeddings")),
    )
    order = torch.randperm(len(labels), generator=generator("judged order", 0))
    totals = torch.zeros(4, dtype=torch.float64)
    for rows in order.split(batch)[: len(order) // batch]:
        positives = (embedded[0][rows] * embedded[1][rows]).sum(1)
        pairs = Pairs(embedded[0][rows], rows, positives)
        counts = count_flags(pairs, policy.rules(pairs, 1.0, learn=False), labels)
        totals += torch.stack([each.double().mean(0).sum() if each.dim() > 1 else each.sum() for each in counts])
    available, true, flagged, found = totals.tolist()
    scores = {"flags share": 100 * flagged / available, "flags recall": 100 * found / max(true, 1)}
    return scores | ({"flags precision": 100 * found / flagged} if flagged else {})


def build_loss(temperature: float, policy: Policy | None, treatment: str) -> InfoNCE:
    """InfoNCE with a policy and what happens to its flags."""
    return InfoNCE(temperature, policy, treatment if policy is not None else "eliminate")  # type: ignore[arg-type]
