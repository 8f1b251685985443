"""Every method on an encoder so small that its numbers do not depend on how a batch is cut: no batch statistics."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from antipodes import (
    BCL,
    FNC,
    HCL,
    IFND,
    Cave,
    Chance,
    DatasetNeighbours,
    Debiased,
    GloFND,
    Guided,
    Hardest,
    HistoryGuide,
    Known,
    Oracle,
    PositiveAware,
    Ring,
    TableGuide,
)
from antipodes.encoders.heads import Head
from antipodes.guides import MomentumKeyGuide, RunGuide
from antipodes.losses import (
    Distillation,
    GlobalContrastive,
    HardPairs,
    InfoNCE,
    LocalAggregation,
    Regression,
    SoftLabel,
)
from antipodes.losses.local_aggregation import local_aggregation
from antipodes.methods import (
    BYOL,
    CLIP,
    CMC,
    HNSSL,
    PCL,
    SANE,
    Batch,
    IMix,
    InputViews,
    InstanceDiscrimination,
    Method,
    MoCo,
    SimCLR,
    SimSiam,
    SwAV,
    Tower,
    Towers,
)
from antipodes.methods.pcl import PrototypeNCE
from antipodes.methods.swav import SwappedCodes
from antipodes.negatives import Clustered
from antipodes.runs.guides import attach_guide

N, BATCH, SIZE, DIM, VECTOR = 24, 8, 4, 5, 9
LABELS = torch.arange(N) % 5
SHARES = torch.linspace(0.05, 0.5, N)
Fitted = TypeVar("Fitted", Clustered, DatasetNeighbours)
VECTORS = torch.randn(N, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)  # a guide's
LONG_VECTORS = torch.randn(N, DIM, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


class Tiny(nn.Module):
    """One linear layer on the pixels."""

    num_features = 6

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(channels * SIZE * SIZE, self.num_features)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layer(images.flatten(1)).tanh()
        return out


def tower(channels: int = 3, kind: str = "mlp2") -> Tower:
    """A tiny encoder with a tiny head."""
    return Tower(Tiny(channels), Head(kind, hidden=7, dim=DIM).build(Tiny.num_features))  # type: ignore[arg-type]


def one(kind: str = "mlp2") -> Towers:
    """One tower, for images."""
    return Towers({"image": tower(kind=kind)})


def lab() -> Towers:
    """The towers of CMC."""
    return Towers({"l": tower(1, "linear"), "ab": tower(2, "linear")}, CMC.plan({"image": "image"}))


def image_and_vector() -> Towers:
    """Two towers that see different inputs."""
    vector = Tower(nn.Linear(VECTOR, 6), Head("linear", dim=DIM).build(6))
    return Towers({"image": tower(), "vector": vector}, CLIP.plan({"image": "image", "vector": "vector"}))


def aggregation(clusters: tuple[int, ...], neighbours: float, space: str = "seen", **policy: Any) -> LocalAggregation:
    """Local aggregation with clusters, as if some epochs had gone by."""
    loss_fn = local_aggregation(N, 0.07, clusters, neighbours=neighbours, space=space, **policy)  # type: ignore[arg-type]
    _fitted(loss_fn.close)
    return loss_fn


def pcl(**policy: Any) -> PCL:
    """PCL with prototypes, as if some epochs had gone by; one of its numbers of clusters exceeds the draw."""
    loss_fn = InfoNCE(0.2, **policy)
    method = PCL(one(), loss_fn, N, DIM, (3, 6), start=0.0, prototypes=4, momentum=0.9, queue_size=20)
    fit_prototypes(method)
    return method


def fit_prototypes(method: PCL) -> None:
    """Cluster random embeddings (N, DIM)."""
    part = method.directions["prototypes"]
    assert isinstance(part, PrototypeNCE)
    part.double()
    part.prototypes.fit(torch.randn(N, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 0.5)


METHODS: dict[str, Callable[..., Method]] = {
    "simclr": lambda **policy: SimCLR(one(), InfoNCE(0.2, **policy)),
    "sogclr": lambda **policy: SimCLR(one(), GlobalContrastive(N, 0.2, gamma=0.4, **policy)),
    "supcon": lambda **policy: SimCLR(one(), InfoNCE(0.1, Oracle(LABELS), "attract")),
    "moco": lambda **policy: MoCo(one(), InfoNCE(0.2, **policy), DIM, momentum=0.9, queue_size=20),
    "moco-v1": lambda **policy: MoCo(one("linear"), InfoNCE(0.07, **policy), DIM, momentum=0.9, queue_size=20),
    "sane": lambda **policy: SANE(one("mlp3"), SoftLabel(mu=(0.5, 2.0)), DIM, momentum=0.9, queue_size=20),
    "sane-vanilla": lambda **policy: SANE(one("mlp3"), SoftLabel(), DIM, mixup="vanilla", kappa=0.1, queue_size=20),
    "instance": lambda **policy: InstanceDiscrimination(one("linear"), InfoNCE(0.07, **policy), N, DIM, samples=15),
    "cmc": lambda **policy: CMC(lab(), InfoNCE(0.07, **policy), N, DIM, samples=15),
    "clip": lambda **policy: CLIP(image_and_vector(), InfoNCE(0.2, **policy)),
    "clip-global": lambda **policy: CLIP(image_and_vector(), GlobalContrastive(N, 0.2, gamma=0.4, **policy)),
    "hnssl": lambda **policy: HNSSL(Towers({"image": Tower(Tiny(), nn.Identity())}), HardPairs(top_k=2)),
    "byol": lambda **policy: BYOL(one(), Regression(), DIM, momentum=0.9, hidden=6, batch_norm=False),
    "simsiam": lambda **policy: SimSiam(one(), Regression(), DIM, hidden=3, batch_norm=False),
    "pcl": pcl,
    "swav": lambda **policy: SwAV(one(), SwappedCodes(), DIM, prototypes=4, crops=(SIZE,), queue_size=16),
    "i-mix": lambda **policy: IMix(one(), InfoNCE(0.2, **policy), DIM, momentum=0.9, queue_size=20),
    "instance-once": lambda **policy: InstanceDiscrimination(
        one("linear"), InfoNCE(0.07, **policy), N, DIM, samples=15, draw="once"
    ),
    "instance-expected": lambda **policy: InstanceDiscrimination(
        one("linear"), InfoNCE(0.07, **policy), N, DIM, samples=15, draw="expected"
    ),
    "la": lambda **policy: InstanceDiscrimination(one("linear"), aggregation((3, 5), 9, **policy), N, DIM),
    "cmc-la": lambda **policy: CMC(lab(), aggregation((4,), 0.4, "features", **policy), N, DIM),
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
    "ring": {"negatives": lambda: Ring((0.9, 0.5)) & GloFND(N, alpha=0.2, initial="quantile", lr=0.05)},
    "hardest": {"negatives": lambda: Hardest(3)},
    "debiased": {"negatives": lambda: Debiased(0.02)},
    "hcl": {"negatives": lambda: Ring((0.9, 0.5)) & HCL(0.02, beta=0.5)},
    "cave": {"negatives": lambda: _fitted(Cave(N, (3,)))},
    "table": {"negatives": lambda: Guided(margin=0.8), "guide": lambda method: by_row(method, TableGuide(VECTORS))},
    "history": {
        "negatives": lambda: Guided(alpha=0.5),
        "treatment": "attract",
        "guide": lambda method: RunGuide({name: HistoryGuide(N, DIM, 0.5) for name in method.network.names()}),
    },
    "sgd": {"negatives": lambda: GloFND(N, SHARES, initial="one", lr=0.3, optimizer="sgd", decay=True)},
    "shares": {"negatives": lambda: FNC(SHARES)},
    "collapse": {"negatives": lambda: Ring((1.0, 0.5), anneal="collapse", collapse_limit=0.9)},
    "bcl": {"negatives": lambda: BCL(0.02, bands=5)},
    "chance": {"negatives": lambda: Chance(0.3)},
    "known": {"negatives": lambda: Known(LABELS, torch.tensor([[2, 5], [0, 6]])), "treatment": "attract"},
    "positive-aware": {"negatives": lambda: PositiveAware(-0.02, relative=False)},
    "neighbours": {"negatives": lambda: _fitted(DatasetNeighbours(N, 6))},
    "momentum": {"negatives": lambda: Guided(alpha=0.5), "guide": lambda method: MomentumKeyGuide()},
    "view": {"distill": Distillation(0.5, 0.2), "guide": lambda method: by_row(method, TableGuide(LONG_VECTORS))},
}


def by_row(method: Method, source: TableGuide) -> RunGuide:
    """One source for all towers."""
    return RunGuide(dict.fromkeys(method.network.names(), source))


def _fitted(policy: Fitted) -> Fitted:
    policy.double().fit(torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.5)
    return policy


# SimCLR meets every policy. Another method meets a policy only where it treats one differently: candidates of a
# queue or a bank, draws, two towers, a guide of its own.
MEETS = {
    "simclr": tuple(policy for policy in POLICIES if policy != "momentum"),
    "sogclr": ("attract", "hcl"),
    "moco": ("glofnd", "ifnd", "ring", "history", "momentum", "view"),
    "instance": ("refine", "cave", "supports"),
    "instance-once": ("ring",),
    "instance-expected": ("ring", "refine", "table"),
    "i-mix": ("glofnd", "supports"),
    "cmc": ("fnc", "history"),
    "clip": ("glofnd", "table"),
    "clip-global": ("glofnd",),
    "la": ("ring", "cave"),
    "cmc-la": ("ring",),
}
PLAIN = [(method, "none") for method in METHODS]
CASES = [*PLAIN, *((method, policy) for method, policies in MEETS.items() for policy in policies if policy != "none")]


def build(name: str, policy: str = "none", seed: int = 0) -> Method:
    arguments = dict(POLICIES[policy])
    if "negatives" in arguments:
        arguments["negatives"] = arguments["negatives"]()
    guide: Callable[[Method], RunGuide] | None = arguments.pop("guide", None)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        method = METHODS[name](**arguments).train()
    attach_guide(method, None if guide is None else guide(method), {"guide": policy, "negatives": policy})
    return method


def batch(step: int, method: Method, part: slice = slice(None), dtype: torch.dtype = torch.float32) -> Batch:
    """The samples of a step, of the whole batch or a part of it; pixels in [0, 1]."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randperm(N, generator=generator)[:BATCH]
    count = method.views + method.supports + len(method.crops) + method.plain
    inputs = {}
    for name in dict.fromkeys(plan.input for plan in method.network.plans.values() if plan.input):
        shape = (VECTOR,) if name == "vector" else (3, SIZE, SIZE)
        whole = torch.rand(BATCH, *shape, generator=generator)
        noise = torch.rand(count, BATCH, *shape, generator=generator)
        views = [(0.7 * whole + 0.3 * each)[part].to(dtype) for each in noise]
        plain = views.pop() if method.plain else None
        after = method.views + method.supports
        inputs[name] = InputViews(views[: method.views], views[method.views : after], views[after:], plain)
    return Batch(ids[part], inputs)


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
        loss = self.method.loss(self.network, batch(number, self.method, self.part, self.dtype), number / 10)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.method.after_step()
        if isinstance(self.method.guide, RunGuide):
            self.method.guide.after_step()
        return loss.detach()

    def state(self) -> bytes:
        file = io.BytesIO()
        torch.save({"method": self.method.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        return file.getvalue()

    def load(self, state: bytes) -> None:
        loaded = torch.load(io.BytesIO(state))
        self.method.load_state_dict(loaded["method"])
        self.optimizer.load_state_dict(loaded["optimizer"])
