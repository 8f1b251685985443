"""Every method on an encoder so small that its numbers do not depend on how a batch is cut: no batch statistics."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from antipodes import DCL, FNC, HCL, IFND, Cave, GloFND, Hardest, Oracle, Ring
from antipodes.methods import (
    CMC,
    HNSSL,
    SANE,
    CMCAggregation,
    InstanceAggregation,
    InstanceDiscrimination,
    Method,
    MoCo,
    MoCoV1,
    SimCLR,
    SogCLR,
    SupCon,
)
from antipodes.negatives import Clustered
from antipodes.objectives import LocalAggregation

N, BATCH, SIZE = 24, 8, 4
LABELS = torch.arange(N) % 5


class Tiny(nn.Module):
    """One linear layer on the pixels."""

    num_features = 6

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(channels * SIZE * SIZE, self.num_features)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layer(images.flatten(1)).tanh()
        return out


METHODS: dict[str, Callable[..., Method]] = {
    "simclr": lambda **policy: SimCLR(Tiny(), hidden=7, dim=5, batch_norm=False, **policy),
    "sogclr": lambda **policy: SogCLR(Tiny(), N, gamma=0.4, hidden=7, dim=5, batch_norm=False, **policy),
    "supcon": lambda **policy: SupCon(Tiny(), LABELS, hidden=7, dim=5, batch_norm=False),
    "moco": lambda **policy: MoCo(Tiny(), momentum=0.9, queue_size=20, hidden=7, dim=5, centred=False, **policy),
    "moco-v1": lambda **policy: MoCoV1(Tiny(), momentum=0.9, queue_size=20, dim=5, centred=False, **policy),
    "sane": lambda **policy: SANE(Tiny(), mu=(0.5, 2.0), momentum=0.9, queue_size=20, hidden=7, dim=5),
    "sane-vanilla": lambda **policy: SANE(Tiny(), mixup="vanilla", kappa=0.1, queue_size=20, hidden=7, dim=5),
    "instance": lambda **policy: InstanceDiscrimination(Tiny(), N, samples=15, dim=5, centred=False, **policy),
    "cmc": lambda **policy: CMC(Tiny(1), Tiny(2), N, samples=15, dim=5, centred=False, **policy),
    "hnssl": lambda **policy: HNSSL(Tiny(), top_k=2),
    "hnssl-lesion": lambda **policy: HNSSL(Tiny(), momentum=0.9, quantile=1.0, target_gradient=True),
    "instance-once": lambda **policy: InstanceDiscrimination(
        Tiny(), N, samples=15, draw="once", dim=5, centred=False, **policy
    ),
    "instance-expected": lambda **policy: InstanceDiscrimination(
        Tiny(), N, samples=15, draw="expected", dim=5, centred=False, **policy
    ),
    "la": lambda **policy: _gathered(
        InstanceAggregation(Tiny(), N, clusters=(3, 5), neighbours=9, dim=5, centred=False, **policy)
    ),
    "cmc-la": lambda **policy: _gathered(
        CMCAggregation(
            Tiny(1), Tiny(2), N, clusters=(4,), neighbours=0.4, space="features", dim=5, centred=False, **policy
        )
    ),
}

POLICIES: dict[str, dict[str, Any]] = {
    "none": {},
    "eliminate": {"negatives": lambda: Oracle(LABELS), "treatment": "eliminate"},
    "attract": {"negatives": lambda: Oracle(LABELS), "treatment": "attract"},
    "refine": {"negatives": lambda: GloFND(N, alpha=0.2, initial="quantile", lr=0.05), "treatment": "refine"},
    "glofnd": {"negatives": lambda: GloFND(N, alpha=0.2, initial="quantile", lr=0.05)},
    "fnc": {"negatives": lambda: FNC(0.2), "treatment": "attract"},
    "supports": {"negatives": lambda: FNC(0.2, supports=2)},
    "ifnd": {"negatives": lambda: _fitted(IFND(N, (3, 5), acceptance="constant"))},
    "ring": {"negatives": lambda: Ring((0.9, 0.5)) & GloFND(N, alpha=0.2, initial="quantile", lr=0.2)},
    "hardest": {"negatives": lambda: Hardest(3)},
    "dcl": {"negatives": lambda: DCL(0.02)},
    "hcl": {"negatives": lambda: Ring((0.9, 0.5)) & HCL(0.02, beta=0.5)},
    "cave": {"negatives": lambda: _fitted(Cave(N, (3,)))},
}


def _fitted(policy: Clustered) -> Clustered:
    policy.double().fit(torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.5)
    return policy


def _gathered(method: Method) -> Method:
    """With clusters, as if some epochs had gone by."""
    for part in method.modules():
        if isinstance(part, LocalAggregation):
            _fitted(part.close)
    return method


# the methods that do not take every policy; the others do
SOME = {
    "supcon": ("none",),
    "sane": ("none",),
    "sane-vanilla": ("none",),
    "hnssl": ("none",),
    "hnssl-lesion": ("none",),
    "instance-once": ("none", "ring"),
    "instance-expected": ("none", "ring", "attract", "refine"),
    "la": ("none", "ring", "cave", "supports"),
    "cmc-la": ("none", "ring"),
}
CASES = [(method, policy) for method in METHODS for policy in SOME.get(method, POLICIES)]


def build(name: str, policy: str = "none", seed: int = 0) -> Method:
    arguments = dict(POLICIES[policy])
    if "negatives" in arguments:
        arguments["negatives"] = arguments["negatives"]()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return METHODS[name](**arguments).train()


def batch(step: int, views: int) -> tuple[Tensor, list[Tensor]]:
    """The ids and the views of the whole batch of a step; pixels in [0, 1]."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randperm(N, generator=generator)[:BATCH]
    images = torch.rand(BATCH, 3, SIZE, SIZE, generator=generator)
    noise = torch.rand(views, BATCH, 3, SIZE, SIZE, generator=generator)
    return ids, [0.7 * images + 0.3 * one for one in noise]


class Training:
    """A method and its optimiser; `state` and `load` go through bytes, as a checkpoint does."""

    def __init__(
        self,
        name: str,
        policy: str,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        rate: float = 0.2,
    ) -> None:
        self.method = build(name, policy, seed).to(dtype)
        self.dtype = dtype
        self.optimizer = torch.optim.SGD(self.method.network.parameters(), lr=rate, momentum=0.9)
        self.network = self.method.network if world_size == 1 else DistributedDataParallel(self.method.network)
        self.part = slice(BATCH * rank // world_size, BATCH * (rank + 1) // world_size)

    def step(self, number: int) -> Tensor:
        ids, views = batch(number, self.method.views + self.method.supports + self.method.plain)
        views = [view.to(self.dtype) for view in views]
        loss = self.method.loss(self.network, ids[self.part], [view[self.part] for view in views], number / 10)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.method.after_step()
        return loss.detach()

    def state(self) -> bytes:
        file = io.BytesIO()
        torch.save({"method": self.method.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        return file.getvalue()

    def load(self, state: bytes) -> None:
        loaded = torch.load(io.BytesIO(state))
        self.method.load_state_dict(loaded["method"])
        self.optimizer.load_state_dict(loaded["optimizer"])
