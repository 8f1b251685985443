"""Losses between two modalities by loops over pairs, in the precision of the inputs (give float64)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Flag = Callable[[int, int], bool]


def clip(first: Tensor, second: Tensor, ids: Sequence[int], temperature: Tensor, flagged: Flag | None = None) -> Tensor:
    """CLIP's loss; candidates of the anchor's identity, and those flagged (i, k), are left out."""
    first, second = (torch.nn.functional.normalize(z, dim=1) for z in (first, second))
    losses = []
    for anchors, candidates in ((first, second), (second, first)):
        for i, anchor in enumerate(anchors):
            logits = [anchor @ candidates[i] / temperature]
            for k, candidate in enumerate(candidates):
                if ids[k] != ids[i] and not (flagged is not None and flagged(i, k)):
                    logits.append(anchor @ candidate / temperature)
            losses.append(torch.stack(logits).logsumexp(0) - logits[0])
    return torch.stack(losses).mean()


def siglip(
    first: Tensor, second: Tensor, ids: Sequence[int], temperature: Tensor, bias: Tensor, pulled: Flag | None = None
) -> Tensor:
    """SigLIP's loss, Eq. 1 of its paper: minus the log sigmoid of z = +-(s / tau + b), summed over pairs, over B."""
    first, second = (torch.nn.functional.normalize(z, dim=1) for z in (first, second))
    total = first.new_zeros(())
    for i in range(len(first)):
        for k in range(len(second)):
            logit = first[i] @ second[k] / temperature + bias
            if i == k or (pulled is not None and ids[i] != ids[k] and pulled(i, k)):
                total = total - torch.nn.functional.logsigmoid(logit)
            elif ids[i] != ids[k]:
                total = total - torch.nn.functional.logsigmoid(-logit)
    return total / len(first)


def siglip_refined(
    first: Tensor,
    second: Tensor,
    ids: Sequence[int],
    temperature: Tensor,
    bias: Tensor,
    flagged: Flag,
    mu: float = 1.0,
    tau_prime: float = 0.8,
) -> Tensor:
    """One direction of SigLIP's loss with an answer q between no and yes for every flagged pair.

    The positive's embedding says by a softmax over itself and the flagged candidates how alike these are; what it says
    is believed by a = mu max p / (1 + mu max p), and the answer is what a candidate gets of the mixed label, relative
    to the positive.
    """
    first, second = (torch.nn.functional.normalize(z, dim=1) for z in (first, second))
    total = first.new_zeros(())
    for i in range(len(first)):
        others = [k for k in range(len(second)) if ids[i] != ids[k]]
        doubted = [k for k in others if flagged(i, k)]
        logits = torch.stack([second[i] @ second[k] for k in [i, *doubted]]).detach() / (temperature.item() * tau_prime)
        p = logits.softmax(0)
        a = mu * p.max() / (1 + mu * p.max())
        label = a * p
        label[0] += 1 - a
        answer = dict(zip([i, *doubted], (label / label[0]).tolist(), strict=True))
        for k in [i, *others]:
            z, q = first[i] @ second[k] / temperature + bias, answer.get(k, 0.0)
            total = total + q * torch.nn.functional.softplus(-z) + (1 - q) * torch.nn.functional.softplus(z)
    return total / len(first)


class FastCLIP:
    """One direction of FastCLIP by loops: u per sample, the estimated gradients of embeddings and temperature.

    `step` returns the value -s+ + tau g / u and a function whose gradient is FastCLIP's estimator.
    """

    def __init__(self, gamma: float, rho: float) -> None:
        self.gamma, self.rho = gamma, rho
        self.u: dict[int, float] = {}

    def step(self, anchors: Tensor, candidates: Tensor, ids: Sequence[int], tau: Tensor) -> tuple[float, Tensor]:
        anchors, candidates = (torch.nn.functional.normalize(z, dim=1) for z in (anchors, candidates))
        values, estimators = [], []
        for i, anchor in enumerate(anchors):
            own = tau[i] if tau.dim() else tau
            others = [k for k in range(len(candidates)) if ids[k] != ids[i]]
            g = torch.stack([(anchor @ candidates[k] / own).exp() for k in others]).mean()
            old = self.u.get(ids[i])
            self.u[ids[i]] = g.item() if old is None else (1 - self.gamma) * old + self.gamma * g.item()
            u, fixed = self.u[ids[i]], own.item()
            positive = anchor @ candidates[i]
            values.append(-positive.item() + fixed * g.item() / u)
            estimators.append(-positive + fixed * g / u + own * (math.log(u) + self.rho))
        return sum(values) / len(values), torch.stack(estimators).mean()
