"""Random losses, policies, treatments, shapes, temperatures and precisions against float64 with whole matrices.

The reference sees the very numbers that the loss was given, in float64, and masks instead of rules. Compared are the
losses of all anchors and the gradients of embeddings, candidates, temperature and bias. The tolerances are those of a
similarity in float32 divided by the temperature (`tolerance`). A case whose float32 similarities could fall on either
side of a policy's bound is drawn again.
"""

from __future__ import annotations

import copy
import math
import random as random_
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import antipodes
from antipodes.losses import Refine
from tests.attack.harness import Failure, Outcome
from tests.reference.hard_pairs import hard_pairs

SIZES = (1, 2, 3, 5, 8, 17, 40, 64, 130, 257, 300)
DTYPES = (torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16)
POLICIES = (
    "none",
    "oracle",
    "known",
    "fnc",
    "ring",
    "hardest",
    "positive-aware",
    "guided",
    "glofnd",
    "debiased",
    "hcl",
)
ROWS = 1000  # of the dataset that ids point into


@dataclass
class Scene:
    """Similarities of anchors and candidates as the reference sees them: float64, with gradient."""

    similarities: Tensor  # (A, C)
    positives: Tensor  # (A,)
    allowed: Tensor  # (A, C) candidates of other samples
    teachers: Tensor  # (A, D) the positives' embeddings
    keys: Tensor  # (C, D)
    ids: Tensor  # (A,)
    key_ids: Tensor  # (C,)
    guide: Tensor | None = None  # (A, C)
    guide_positives: Tensor | None = None


@dataclass
class Case:
    """What was drawn."""

    loss: str
    policy: str
    joined: bool  # with the oracle
    treatment: str
    mode: str  # batch, queue or two-way
    batch: int
    dim: int
    candidates: int
    temperature: float
    learnable: bool
    dtype: torch.dtype
    autocast: torch.dtype | None
    duplicates: bool
    steps: int
    numbers: dict[str, float] = field(default_factory=dict)
    seed: int = 0


def draw(random: random_.Random) -> Case:
    loss = random.choice(("info-nce", "info-nce", "info-nce", "sigmoid", "global", "hard-pairs"))
    policy = random.choice(POLICIES)
    if policy in ("debiased", "hcl") and loss != "info-nce":
        policy = "oracle"
    finds = policy not in ("none", "ring", "hardest", "debiased", "hcl")
    dtype = random.choice(DTYPES)
    half = random.choice((torch.bfloat16, torch.float16)) if dtype != torch.float64 and random.random() < 0.3 else None
    return Case(
        loss=loss,
        policy=policy,
        joined=policy in ("ring", "hardest", "fnc", "positive-aware") and random.random() < 0.3,
        treatment=random.choice(("eliminate", "attract", "refine")) if finds else "eliminate",
        mode=random.choice(("batch", "batch", "queue", "two-way")),
        batch=random.choice(SIZES),
        dim=random.choice((2, 3, 8, 32, 100)),
        candidates=random.choice((1, 2, 7, 50, 300, 700)),
        temperature=math.exp(random.uniform(math.log(0.02), math.log(2.0))),
        learnable=random.random() < 0.3,
        dtype=dtype,
        autocast=half,
        duplicates=random.random() < 0.3,
        steps=2 if policy == "glofnd" or loss == "global" else 1,
        numbers={
            "alpha": random.choice((0.01, 0.1, 0.5)),
            "margin": random.choice((-0.1, 0.0, 0.05, 0.5)),
            "relative": random.random() < 0.5,
            "outer": random.choice((0.1, 0.46, 1.0)),
            "inner": random.choice((0.0, 0.1, 0.5)),
            "k": random.choice((1, 3, 20)),
            "tau_plus": random.choice((0.0, 0.05, 0.1)),
            "beta": random.choice((0.0, 0.5, 1.0)),
            "mu": random.choice((0.0, 0.3, 1.0, 10.0)),
            "tau_prime": random.choice((0.1, 0.8, 1.0)),
            "lr": random.choice((0.5, 2.0, 8.0)),
            "gamma": random.choice((0.1, 0.9, 1.0)),
        },
        seed=random.randrange(2**31),
    )


class Tensors:
    """The numbers of a case; `views` and `queue` require gradients."""

    def __init__(self, case: Case, step: int = 0) -> None:
        made = torch.Generator().manual_seed(case.seed + step)
        count, dim = case.batch, case.dim
        self.labels = torch.randint(-1, 5, (ROWS,), generator=torch.Generator().manual_seed(case.seed))
        first = torch.randn(count, dim, generator=made)
        second = first + torch.randn(count, dim, generator=made) * 10 ** (torch.rand((), generator=made) * 2 - 1.5)
        scale = 10 ** torch.rand(2, count, 1, generator=made)
        self.views = [
            (view * size).to(case.dtype).requires_grad_() for view, size in zip((first, second), scale, strict=False)
        ]
        known = torch.Generator().manual_seed(case.seed)  # the same samples in every step
        self.ids = torch.randperm(ROWS, generator=known)[:count]
        if case.duplicates:
            self.ids = self.ids[torch.randint(0, max(1, count // 2), (count,), generator=known)]
        self.queue = torch.randn(case.candidates, dim, generator=made).to(case.dtype).requires_grad_()
        self.queue_ids = torch.randint(-1, ROWS, (case.candidates,), generator=made)
        shared = torch.rand(case.candidates, generator=made) < 0.05  # stale copies of the anchors' own samples
        self.queue_ids = torch.where(shared, self.ids[: len(shared)].repeat(len(shared))[: len(shared)], self.queue_ids)
        self.guide = [torch.randn(count, 6, generator=made).to(case.dtype) for _ in range(2)]
        self.queue_guide = torch.randn(case.candidates, 6, generator=made).to(case.dtype)
        self.coefficients = torch.rand(2 * count, generator=made)


def unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.double(), dim=1, eps=0.0)


def scenes(case: Case, tensors: Tensors) -> list[Scene]:
    """One scene for every direction of the loss."""
    first, second = map(unit, tensors.views)
    ids = tensors.ids
    seen = [unit(vectors) for vectors in tensors.guide]
    both = (seen[0] * seen[1]).sum(1)
    if case.mode == "batch":
        views, twice, guides = torch.cat((first, second)), ids.repeat(2), torch.cat(seen)
        triples = [(views, twice, views, twice, torch.cat((second, first)), guides, guides, both.repeat(2))]
    elif case.mode == "queue":
        keys, guides = unit(tensors.queue), unit(tensors.queue_guide)
        triples = [(first, ids, keys, tensors.queue_ids, second, seen[0], guides, both)]
    else:
        triples = [
            (first, ids, second, ids, second, seen[0], seen[1], both),
            (second, ids, first, ids, first, seen[1], seen[0], both),
        ]
    return [
        Scene(
            anchors @ keys.T,
            (anchors * positive).sum(1),
            (key_ids >= 0) & (key_ids != own[:, None]),
            positive.detach(),
            keys.detach(),
            own,
            key_ids,
            guide @ guide_keys.T,
            guide_positives,
        )
        for anchors, own, keys, key_ids, positive, guide, guide_keys, guide_positives in triples
    ]


class Ambiguous(Exception):
    """A bound lies so close to a similarity that float32 may decide otherwise."""


def clear(similarities: Tensor, bounds: Tensor, allowed: Tensor, exact: bool) -> None:
    gaps = (similarities - bounds[:, None]).abs()[allowed]
    if gaps.numel() and gaps.min() < (1e-12 if exact else 2e-6):
        raise Ambiguous


def ranks(similarities: Tensor, allowed: Tensor) -> Tensor:
    """(A, C) the place of every allowed candidate, the most similar first; others come last."""
    order = similarities.masked_fill(~allowed, -torch.inf).argsort(dim=1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))


def clear_ranks(similarities: Tensor, allowed: Tensor, cut: Tensor, exact: bool) -> None:
    """Refuse a cut between ranks cut - 1 and cut where both are nearly equal."""
    ordered = similarities.masked_fill(~allowed, -torch.inf).sort(dim=1, descending=True).values
    ordered = F.pad(ordered, (1, 1), value=math.nan)
    gap = ordered.gather(1, cut[:, None]) - ordered.gather(1, cut[:, None] + 1)
    if bool((gap < (1e-12 if exact else 2e-6)).any()):
        raise Ambiguous


class Reference:
    """The loss of a case in float64, with its state."""

    def __init__(self, case: Case, labels: Tensor) -> None:
        self.case, self.labels = case, labels
        self.thresholds: dict[int, float] = {}
        self.u: dict[int, float] = {}
        self.exact = case.dtype == torch.float64

    def judged(self, scene: Scene) -> tuple[Tensor, Tensor]:
        """(A, C) what is not ignored, and what is flagged."""
        case, numbers, seen = self.case, self.case.numbers, scene.similarities.detach()
        kept, flagged, count = scene.allowed.clone(), torch.zeros_like(scene.allowed), scene.allowed.sum(1)
        known = self.labels[scene.ids][:, None], torch.where(scene.key_ids < 0, -1, self.labels[scene.key_ids])
        same = (known[0] == known[1]) & (known[0] >= 0)
        if case.policy in ("oracle", "known") or case.joined:
            flagged = flagged | same
        if case.policy == "fnc":
            top = torch.tensor([max(1, round(numbers["alpha"] * n)) for n in count.tolist()])
            clear_ranks(seen, scene.allowed, top.clamp(max=seen.shape[1]), self.exact)
            flagged = flagged | (ranks(seen, scene.allowed) < top[:, None])
        elif case.policy in ("ring", "hardest"):
            first, last = torch.zeros_like(count), torch.full_like(count, int(numbers["k"]))
            if case.policy == "ring":
                shares = numbers["inner"] * numbers["outer"], numbers["outer"]
                first, last = ((share * count + 1e-6).floor().long() for share in shares)
                last = torch.maximum(last, first + 1)
            for cut in (first, last):
                clear_ranks(seen, scene.allowed, cut.clamp(max=seen.shape[1]), self.exact)
            places = ranks(seen, scene.allowed)
            kept = kept & (places >= first[:, None]) & (places < last[:, None])
        elif case.policy in ("positive-aware", "guided"):
            own = case.policy == "positive-aware"
            looked, positives = (seen, scene.positives.detach()) if own else (scene.guide, scene.guide_positives)
            assert looked is not None
            assert positives is not None
            margin = numbers["margin"] * (positives.abs() if numbers["relative"] else 1.0)
            clear(looked, positives - margin, scene.allowed, self.exact)
            flagged = flagged | (looked > (positives - margin)[:, None])
        elif case.policy == "glofnd":
            self.move(scene, seen)
            bounds = torch.tensor([self.thresholds[own] for own in scene.ids.tolist()], dtype=torch.float64)
            clear(seen, bounds, scene.allowed, exact=False)
            flagged = flagged | (seen > bounds[:, None])
        return kept, flagged & kept

    def move(self, scene: Scene, seen: Tensor) -> None:
        """GloFND's step of every sample, by plain gradient descent."""
        for own in set(scene.ids.tolist()):
            rows, old = scene.ids == own, self.thresholds.get(own, 1.0)
            clear(seen[rows], torch.full((int(rows.sum()),), old), scene.allowed[rows], exact=False)
            total = int(scene.allowed[rows].sum())
            above = int((scene.allowed[rows] & (seen[rows] > old)).sum()) if old < 1 else 0
            gradient = self.case.numbers["alpha"] - above / total if total else 0.0
            self.thresholds[own] = min(1.0, max(-1.0, old - self.case.numbers["lr"] * gradient))

    def __call__(self, scene: Scene, tau: Tensor, bias: Tensor) -> Tensor:
        """The loss of every anchor, (A,)."""
        case, numbers, treatment = self.case, self.case.numbers, self.case.treatment
        remaining, flagged = self.judged(scene)
        kept = remaining & ~flagged if treatment == "eliminate" else remaining
        weights = flagged.double() if treatment == "attract" else torch.zeros_like(scene.similarities).detach()
        if treatment == "refine":
            alike = (scene.teachers @ scene.keys.T - 1) / (tau.detach() * numbers["tau_prime"])
            weights = torch.where(flagged, alike.exp(), 0.0)
            confidence = numbers["mu"] / (1 + weights.sum(1, keepdim=True)) ** 2
            weights = weights * confidence / (1 + confidence)
        logits = scene.similarities / tau
        if case.loss == "sigmoid":
            answers = F.softplus(logits + bias)
            pulled = weights * (logits + bias)  # softplus(-z) is softplus(z) - z
            return F.softplus(-(scene.positives / tau + bias)) + (torch.where(kept, answers, 0.0) - pulled).sum(1)
        target = (scene.positives + (weights * scene.similarities).sum(1)) / (1 + weights.sum(1))
        if case.loss == "global":
            return self.sogclr(scene, logits, kept, target, tau)
        count = kept.sum(1)
        log_sum = logits.masked_fill(~kept, -torch.inf).logsumexp(1)
        if case.policy in ("debiased", "hcl"):
            log_sum = self.debiased(scene, logits, kept, log_sum, tau)
        log_sum = torch.where(count > 0, log_sum, -torch.inf)
        return F.softplus(log_sum - scene.positives / tau) + (scene.positives - target) / tau

    def debiased(self, scene: Scene, logits: Tensor, kept: Tensor, log_sum: Tensor, tau: Tensor) -> Tensor:
        tau_plus, beta = self.case.numbers["tau_plus"], self.case.numbers["beta"]
        count = kept.sum(1).clamp(min=1).double()
        if self.case.policy == "hcl":
            hard = ((1 + beta) * logits).masked_fill(~kept, -torch.inf).logsumexp(1)
            log_sum = hard - (beta * logits).masked_fill(~kept, -torch.inf).logsumexp(1) + count.log()
        if not tau_plus:
            return log_sum
        taken = tau_plus * count * (scene.positives / tau - log_sum).exp()
        if bool(((1 - taken).abs() < (1e-9 if self.exact else 1e-2)).any()):
            raise Ambiguous  # a difference of two nearly equal sums
        floor = count.log() - 1 / tau
        rest = torch.where(taken < 1, 1 - taken, 1.0).log() + log_sum - math.log(1 - tau_plus)
        if bool(((rest - floor).abs() < 1e-4).any()):
            raise Ambiguous
        return torch.where(taken < 1, torch.maximum(rest, floor), floor)

    def sogclr(self, scene: Scene, logits: Tensor, kept: Tensor, target: Tensor, tau: Tensor) -> Tensor:
        fixed, count = tau.detach(), kept.sum(1)
        g = torch.where(kept, (logits.detach() + (logits - logits.detach())).exp(), 0.0).sum(1) / count.clamp(min=1)
        for own in set(scene.ids.tolist()):
            new = g.detach()[(scene.ids == own) & (count > 0)]
            if len(new):
                old = self.u.get(own)
                gamma = 1.0 if old is None else self.case.numbers["gamma"]
                self.u[own] = (1 - gamma) * (old or 0.0) + gamma * new.mean().item()
        u = torch.tensor([self.u.get(own, 1.0) for own in scene.ids.tolist()], dtype=torch.float64)
        loss = -target + torch.where(count > 0, fixed * g / u, 0.0)
        return loss + (tau - fixed) * torch.where(count > 0, u.log(), 0.0) if tau.requires_grad else loss


def policy_of(case: Case, labels: Tensor) -> Any:
    numbers: Any = case.numbers
    policy: Any = {
        "none": lambda: None,
        "oracle": lambda: antipodes.Oracle(labels),
        "known": lambda: antipodes.Known(labels),
        "fnc": lambda: antipodes.FNC(numbers["alpha"]),
        "ring": lambda: antipodes.Ring((numbers["outer"],) * 2, numbers["inner"], anneal="none"),
        "hardest": lambda: antipodes.Hardest(numbers["k"]),
        "positive-aware": lambda: antipodes.PositiveAware(numbers["margin"], numbers["relative"]),
        "guided": lambda: antipodes.Guided(numbers["margin"], numbers["relative"]),
        "glofnd": lambda: antipodes.GloFND(ROWS, numbers["alpha"], lr=numbers["lr"], optimizer="sgd", initial="one"),
        "debiased": lambda: antipodes.Debiased(numbers["tau_plus"]),
        "hcl": lambda: antipodes.HCL(numbers["tau_plus"], numbers["beta"]),
    }[case.policy]()
    return policy & antipodes.Oracle(labels) if case.joined else policy


def loss_of(case: Case, labels: Tensor) -> Any:
    numbers: Any = case.numbers
    temperature = antipodes.Temperature(case.temperature, learnable=True) if case.learnable else case.temperature
    treatment = Refine(numbers["mu"], numbers["tau_prime"]) if case.treatment == "refine" else case.treatment
    shared: Any = {"negatives": policy_of(case, labels), "treatment": treatment, "reduction": "none"}
    if case.loss == "sigmoid":
        loss: Any = antipodes.Sigmoid(temperature, -2.0, learnable=case.learnable, **shared)
    elif case.loss == "global":
        loss = antipodes.GlobalContrastive(ROWS, temperature, gamma=numbers["gamma"], **shared)
    else:
        loss = antipodes.InfoNCE(temperature, **shared)
    loss = antipodes.TwoWay(loss) if case.mode == "two-way" else loss
    return loss.double() if case.dtype == torch.float64 else loss


def tolerance(case: Case) -> tuple[float, float]:
    """The largest error of a loss, relative to it or to 1, and of a gradient, relative to the largest entry."""
    if case.dtype == torch.float64 and case.loss != "global" and case.policy != "glofnd":
        return 1e-10 / case.temperature, 1e-9 / case.temperature
    returned = {torch.bfloat16: 2**-7, torch.float16: 2**-9}.get(case.dtype, 0.0)  # of the gradient that is returned
    single = (1 + 1 / case.temperature) * (10 if case.policy in ("debiased", "hcl") else 1)  # these subtract two sums
    return 2e-6 * single, 2e-5 * single + returned


def rounding(case: Case, leaf: Tensor) -> float:
    """The error that the gradient of embeddings (n, D) must be allowed even where it is nearly 0.

    1. Pairs of a coefficient of at most 1 add vectors of up to 1 / (tau |z|), or 1 / |z| in SogCLR's loss, which may
       cancel.
    2. float16 has no numbers between 0 and 2**-24: two values that round to either side of one differ by that.
    """
    if leaf.dim() < 2:
        return 0.0
    eps = torch.finfo(torch.float64 if case.dtype == torch.float64 else torch.float32).eps
    shortest = leaf.detach().double().norm(dim=1).min().item()
    return eps * max(1.0, 1.0 / case.temperature) / shortest + (1.01 * 2**-24 if leaf.dtype == torch.float16 else 0.0)


def compare(
    case: Case, name: str, ours: Tensor, theirs: Tensor, bound: float, relative: bool, least: float = 0.0
) -> None:
    """Refuse numbers that are further apart than the bound, relative to the largest, and than `least`."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if not bool(ours.isfinite().all()):
        raise Failure(f"{name} is not finite in {case}")
    scale = theirs.abs().max().item() if relative else 1.0
    error = ((ours - theirs).abs() / (theirs.abs().clamp(min=1.0) if not relative else 1.0)).max().item()
    if relative:  # the derivative of a temperature is a difference of large sums; an entry below 1e-6 is rounding
        scale = max(scale, 1.0 if ours.dim() == 0 else 1e-6)
    if error > max(bound * scale, least):
        raise Failure(f"{name} is off by {error / scale:.2g}, allowed are {bound:.2g}, in {case}")


def parameters_of(loss: Any) -> tuple[Tensor | None, Tensor | None]:
    """Those of temperature and bias, as far as they are learned."""
    named = dict(loss.named_parameters())
    found = [next((value for key, value in named.items() if part in key), None) for part in ("parameter", "bias")]
    return found[0], found[1]


def check(case: Case) -> None:
    if case.loss == "hard-pairs":
        check_hard_pairs(case)
        return
    labels = Tensors(case).labels
    loss = loss_of(case, labels)
    one = Reference(case, labels)
    references = [one, copy.deepcopy(one)]
    for step in range(case.steps):
        tensors = Tensors(case, step)
        log_tau, bias = parameters_of(loss)
        tau = torch.tensor(case.temperature, dtype=torch.float64)
        their_log_tau = None if log_tau is None else log_tau.detach().double().requires_grad_()
        their_bias = torch.tensor(-2.0, dtype=torch.float64).requires_grad_(bias is not None)
        tau = tau if their_log_tau is None else their_log_tau.exp()
        parts = [each(scene, tau, their_bias) for each, scene in zip(references, scenes(case, tensors), strict=False)]
        theirs = sum(parts[1:], parts[0]) / len(parts)
        leaves = [*tensors.views, *([tensors.queue] if case.mode == "queue" else [])]
        names = ["the gradient of z1", "the gradient of z2", "the gradient of candidates"][: len(leaves)]
        more = [(log_tau, their_log_tau, "log tau"), (bias, their_bias, "bias")]
        mine = [*leaves, *(each for each, _, _ in more if each is not None)]
        other = [*leaves, *(each for own, each, _ in more if own is not None and each is not None)]
        names += [f"the gradient of {name}" for own, _, name in more if own is not None]
        arguments: dict[str, Any] = {}
        if case.mode == "queue":
            arguments = {"candidates": tensors.queue, "candidate_ids": tensors.queue_ids}
        if case.policy == "guided":
            arguments["guide"] = tuple(tensors.guide)
            arguments |= {"candidate_guide": tensors.queue_guide} if case.mode == "queue" else {}
        with torch.autocast("cpu", case.autocast or torch.bfloat16, enabled=case.autocast is not None):
            ours = loss(*tensors.views, tensors.ids, **arguments)
            gradients = torch.autograd.grad(
                (ours * tensors.coefficients[: len(ours)].to(ours)).sum(), mine, allow_unused=True
            )
        total = theirs @ tensors.coefficients[: len(theirs)].double()
        expected = torch.autograd.grad(total, other, allow_unused=True)
        of_loss, of_gradient = tolerance(case)
        compare(case, "the loss", ours, theirs, of_loss, relative=False)
        for name, leaf, gradient, wanted in zip(names, mine, gradients, expected, strict=True):
            zero = torch.zeros_like(leaf)
            pair = (zero if gradient is None else gradient, zero if wanted is None else wanted)
            bound = of_gradient * (10 if leaf.dim() == 0 else 1)
            compare(case, name, *pair, bound, relative=True, least=rounding(case, leaf))


def check_hard_pairs(case: Case) -> None:
    case.batch, case.dim = min(case.batch, 40), max(case.dim, 8)
    tensors, k = Tensors(case), int(case.numbers["k"])
    views, ids = tensors.views, tensors.ids
    for view in views:  # which of two equal entries is the largest, nobody can say
        first, second = view.detach().double().abs().topk(2).values.T
        if bool((first - second < 1e-6 * first).any()):
            raise Ambiguous
    loss = antipodes.HardPairs(top_k=k)
    with torch.autocast("cpu", case.autocast or torch.bfloat16, enabled=case.autocast is not None):
        ours = loss(*views, ids)
        gradients = torch.autograd.grad(ours, tensors.views)
    theirs = hard_pairs(*(view.double() for view in views), ids.tolist(), top_k=k)
    case.temperature = 0.1  # a distance has about ten times the rounding of a similarity
    of_loss, of_gradient = tolerance(case)
    compare(case, "the loss", ours, theirs, of_loss, relative=False)
    for name, gradient, wanted in zip("12", gradients, torch.autograd.grad(theirs, tensors.views), strict=True):
        compare(case, f"the gradient of z{name}", gradient, wanted, of_gradient, relative=True)


def prepare(folder: Path) -> None:
    warnings.simplefilter("ignore")


def attempt(random: random_.Random, folder: Path) -> Outcome:
    for _ in range(50):
        try:
            check(draw(random))
        except Ambiguous:
            continue
        return "ok"
    raise Failure("fifty draws in a row were ambiguous")
