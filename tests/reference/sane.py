"""SANE's whole loss with every label as a row over the key set, in the precision of the inputs (give float64)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize


def refined_label(i: int, teachers: Tensor, keys: Tensor, own: int, tau: float, mu: float, labels: str) -> Tensor:
    """y of teacher i over the keys, (C,): Eq. 5 with its weights."""
    onehot = torch.zeros(len(keys), dtype=keys.dtype)
    onehot[own] = 1
    logits = keys @ teachers[i] / tau
    p = logits.softmax(0)
    others = [k for k in range(len(keys)) if k != own]
    q = torch.zeros_like(p)
    q[others] = logits[others].softmax(0)
    weight_p = mu * float(p.max()) if "p" in labels else 0.0
    weight_q = mu * float(q.max()) if "q" in labels else 0.0
    z = 1 + weight_p + weight_q
    return (1 - (weight_p + weight_q) / z) * onehot + weight_p / z * p + weight_q / z * q


def cross_entropy(student: Tensor, keys: Tensor, label: Tensor, tau: float) -> Tensor:
    return -(label * (keys @ student / tau).log_softmax(0)).sum()


def sane(
    network: Callable[[Tensor], Tensor],
    key_network: Callable[[Tensor], Tensor],
    ids: Sequence[int],
    views: Sequence[Tensor],
    queue: Tensor,
    queue_ids: Sequence[int],
    partners: Sequence[int],
    theta: Tensor,
    *,
    tau: float,
    tau_prime: float,
    mu: float,
    refined_share: float,
    labels: str,
    mixup: str,
) -> Tensor:
    """The loss of one process with the whole batch; the views are x, x~ and any smaller ones of x."""
    x, x_key, *crops = views
    with torch.no_grad():
        fresh = normalize(key_network(x_key), dim=1)
    old = [k for k, other in enumerate(queue_ids) if other != -1 and other not in ids]
    keys = torch.cat([fresh, queue[old]])
    ys = [refined_label(i, fresh, keys, i, tau * tau_prime, mu, labels) for i in range(len(ids))]

    queries = normalize(network(x), dim=1)
    onehots = torch.eye(len(keys), dtype=keys.dtype)
    plain = torch.stack([cross_entropy(queries[i], keys, onehots[i], tau) for i in range(len(ids))]).mean()
    losses = []
    for source in crops or [x]:
        for i, k in enumerate(partners):
            if mixup == "none":
                image, y = source[i], ys[i]
            else:
                other = source[k] if mixup == "vanilla" else scaled(x_key[k], source.shape[-1])
                image = theta[i] * source[i] + (1 - theta[i]) * other
                y = theta[i] * ys[i] + (1 - theta[i]) * ys[k]
            student = normalize(network(image[None]), dim=1)[0]
            losses.append(cross_entropy(student, keys, y, tau))
    return (1 - refined_share) * plain + refined_share * torch.stack(losses).mean()


def scaled(image: Tensor, size: int) -> Tensor:
    if image.shape[-1] == size:
        return image
    return interpolate(image[None], (size, size), mode="bilinear", antialias=True)[0]
