"""Random bad calls of everything public: each must work, or be refused by a sentence of ours that names the argument.

`run(count, seed)` draws a constructor or a call, replaces one or more of its arguments by something odd, and says what
became of it. `python -m tests.attack.bad_calls 10000 0` prints the counts and every failure; it ends
with exit code 1 if there is one.
"""

from __future__ import annotations

import random
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import antipodes
from antipodes import schedules
from antipodes.candidates import MemoryBank, Queue
from antipodes.losses import SoftLabel

B, D, N = 8, 6, 40
SECONDS = 2.0
FAILURES = ("foreign", "not finite", "hang")


class Hang(BaseException):
    """A call took too long."""


@dataclass
class Result:
    """How many calls ended how, and what the failures were."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)

    @property
    def failed(self) -> int:
        return sum(self.counts[kind] for kind in FAILURES)


@dataclass(frozen=True)
class Target:
    """Something to call, with good arguments by name: functions of a generator, so that each call has fresh ones."""

    name: str
    call: Callable[..., Any]
    arguments: dict[str, Callable[[], Any]]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def views() -> dict[str, Callable[[], Any]]:
    return {
        "z1": lambda: numbers(B, D).requires_grad_(),
        "z2": lambda: numbers(B, D) + 0.1,
        "ids": lambda: torch.arange(B),
    }


def odd(chooser: random.Random) -> Any:
    """Something that an argument seldom means."""
    makers: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chooser.choice(["", "x", "mean", "0.1", "\x00"]),
        lambda: chooser.choice([float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1.5, 1e300, -1e300, 1e-300]),
        lambda: chooser.choice([0, -1, 2, 2**62, 2**63, 10**15, 10**30, -(10**30)]),
        lambda: chooser.choice([True, False]),
        lambda: chooser.choice([(), [], {}, set(), (0.5,), (1, 2, 3), [None], ["a"], [[1.0]], (float("nan"),) * 2]),
        lambda: chooser.choice([object(), 1j, b"bytes", range(3), lambda: 0, torch.nn.Linear, len]),
        lambda: torch.empty(chooser.choice([(0,), (B, 0), (0, D), (0, 0), (1, 0, 0)])),
        lambda: torch.randn(chooser.choice([(), (1,), (B,), (B, 1), (B - 1, D), (B, D, 1), (D, B), (2, B)])),
        lambda: torch.full(chooser.choice([(B, D), (B,), ()]), chooser.choice([float("nan"), float("inf"), 1e38, 0.0])),
        lambda: torch.randint(-3, 3, chooser.choice([(B,), (B, D), ()])),
        lambda: torch.full((B,), chooser.choice([2**62, -(2**63), 10**6])),
        lambda: torch.randn(B, D).to(
            chooser.choice([torch.complex64, torch.float64, torch.float16, torch.int8, torch.bool])
        ),
        lambda: torch.ones(B, dtype=torch.bool),
        lambda: chooser.choice([np.ones((B, D)), np.arange(B), np.float32(0.3), np.array(["a"]), np.array(None)]),
        lambda: chooser.choice([antipodes.InfoNCE(), antipodes.FNC(), nn.Linear(2, 2), antipodes.Temperature()]),
        lambda: chooser.choice([(numbers(B, D), None), (numbers(B, D), numbers(B, D + 1)), (numbers(B),) * 2]),
        lambda: torch.randn(B, D).to_sparse(),
    ]
    return chooser.choice(makers)()


def losses() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "InfoNCE", antipodes.InfoNCE
    yield "InfoNCE none", lambda: antipodes.InfoNCE(antipodes.Temperature(0.1, learnable=True), reduction="none")
    yield "InfoNCE GloFND", lambda: antipodes.InfoNCE(0.1, antipodes.GloFND(N, 0.2), "attract")
    yield "InfoNCE FNC", lambda: antipodes.InfoNCE(0.1, antipodes.FNC(0.2), "refine")
    yield "InfoNCE Guided", lambda: antipodes.InfoNCE(0.1, antipodes.Guided(0.1), distill=antipodes.Distillation())
    yield "InfoNCE Ring", lambda: antipodes.InfoNCE(0.1, antipodes.Ring(), total_steps=9)
    yield "InfoNCE BCL", lambda: antipodes.InfoNCE(0.1, antipodes.BCL())
    yield "InfoNCE Known", lambda: antipodes.InfoNCE(0.1, antipodes.Known(list(range(N))))
    yield "InfoNCE samples", lambda: antipodes.InfoNCE(antipodes.Temperature(0.1, per_sample=N))
    yield "GlobalContrastive", lambda: antipodes.GlobalContrastive(N)
    yield "Sigmoid", antipodes.Sigmoid
    yield "LocalAggregation", lambda: antipodes.LocalAggregation(antipodes.Cave(N, (3,)))


def call_targets() -> Iterator[Target]:
    more: dict[str, Callable[[], Any]] = {
        "guide": lambda: (numbers(B, D), numbers(B, D)),
        "weights": lambda: torch.ones(B),
        "rows": lambda: torch.arange(B),
        "supports": lambda: numbers(2, B, D),
        "progress": lambda: 0.5,
    }
    given: dict[str, Callable[[], Any]] = {
        "candidates": lambda: numbers(20, D),
        "candidate_ids": lambda: torch.arange(20),
        "candidate_rows": lambda: torch.arange(20),
        "candidate_guide": lambda: numbers(20, D),
        "candidate_log_weights": lambda: numbers(20).float(),
        "positive_log_weights": lambda: torch.zeros(B),
        "gathered": lambda: True,
    }
    for name, build in losses():
        yield Target(f"{name}()", lambda build=build, **options: build()(**options), views() | more)
        if "Sigmoid" not in name:
            yield Target(
                f"{name}(candidates)", lambda build=build, **options: build()(**options), views() | more | given
            )
    for name, build in (("InfoNCE", antipodes.InfoNCE), ("Sigmoid", antipodes.Sigmoid)):
        both = {"first": views()["z1"], "second": views()["z2"], "ids": views()["ids"]}
        both |= {name: more[name] for name in ("rows", "guide", "weights", "progress")}
        yield Target(f"TwoWay({name})()", lambda build=build, **o: antipodes.TwoWay(build())(**o), both)
    online = {"online": views()["z1"], "target": views()["z2"], "ids": views()["ids"], "rows": more["rows"]}
    yield Target("HardPairs()", lambda **o: antipodes.HardPairs()(**o), online)
    soft: dict[str, Callable[[], Any]] = {
        "students": lambda: nn.functional.normalize(numbers(B, D), dim=1),
        "keys": lambda: nn.functional.normalize(numbers(20, D), dim=1),
        "key_ids": lambda: torch.arange(20),
        "label_keys": lambda: torch.stack((torch.arange(B), torch.arange(B).flip(0))),
        "theta": lambda: torch.full((B,), 0.5),
        "progress": lambda: 0.5,
        "key_rows": lambda: torch.arange(20),
    }
    yield Target("SoftLabel()", lambda **o: SoftLabel()(**o), soft)
    rows = {"rows": lambda: torch.arange(B), "embeddings": lambda: numbers(B, D)}
    yield Target("MemoryBank.write", lambda **o: _then_read(MemoryBank(N, D), **o), rows)
    yield Target("MemoryBank.read", lambda rows: MemoryBank(N, D).read(rows), {"rows": rows["rows"]})
    yield Target("MemoryBank.draw", lambda count: MemoryBank(N, D).draw(count), {"count": lambda: 4})
    pushed = {"keys": lambda: numbers(B, D), "ids": lambda: torch.arange(B), "rows": lambda: torch.arange(B)}
    yield Target("Queue.push", lambda **o: Queue(12, D).push(**o), pushed)
    table = {"ids": lambda: torch.arange(B), "values": lambda: torch.ones(B)}
    yield Target("SampleTable.write", lambda **o: antipodes.SampleTable(N).write(**o), table)
    yield Target("SampleTable.read", lambda ids: antipodes.SampleTable(N).read(ids), {"ids": table["ids"]})
    yield Target(
        "HistoryGuide.update",
        lambda rows, view: antipodes.HistoryGuide(N, D).update(rows, view),
        {"rows": rows["rows"], "view": rows["embeddings"]},
    )
    yield Target("HistoryGuide()", lambda rows: antipodes.HistoryGuide(N, D)(rows), {"rows": rows["rows"]})
    yield Target("TableGuide()", lambda rows: antipodes.TableGuide(numbers(N, D))(rows), {"rows": rows["rows"]})
    yield Target(
        "TableGuide.principal", lambda dim: antipodes.TableGuide(numbers(N, D)).principal(dim), {"dim": lambda: 2}
    )
    yield Target(
        "Temperature()",
        lambda rows, progress: antipodes.Temperature(0.1, per_sample=N)(rows, progress),
        {"rows": rows["rows"], "progress": more["progress"]},
    )


def _then_read(bank: MemoryBank, rows: Any, embeddings: Any) -> Tensor:
    bank.write(rows, embeddings)
    return bank.table.rows


def constructor_targets() -> Iterator[Target]:
    def of(name: str, kind: Callable[..., Any], /, **arguments: Any) -> Target:
        return Target(name, kind, {key: (lambda value=value: value) for key, value in arguments.items()})

    base = {
        "temperature": 0.1,
        "treatment": "eliminate",
        "reduction": "mean",
        "total_steps": 9,
        "negatives": antipodes.FNC(),
        "distill": None,
    }
    yield of("InfoNCE", antipodes.InfoNCE, **base)
    yield of("Sigmoid", antipodes.Sigmoid, bias=-10.0, learnable=True, **base)
    yield of(
        "GlobalContrastive",
        antipodes.GlobalContrastive,
        num_samples=N,
        gamma=0.9,
        gamma_until=0.0,
        rho=0.0,
        folder=None,
        **base,
    )
    yield of(
        "HardPairs",
        antipodes.HardPairs,
        top_k=None,
        quantile=None,
        threshold=None,
        positive_weight=0.8,
        negative_weight=0.1,
        epsilon=1e-6,
        scale="largest",
    )
    yield of("SoftLabel", SoftLabel, temperature=0.2, tau_prime=0.8, mu=(0.0, 1.0), targets="pq")
    yield of(
        "LocalAggregation",
        antipodes.LocalAggregation,
        close=antipodes.Cave(N, (3,)),
        temperature=0.1,
        negatives=None,
        start=0.0,
    )
    yield of("TwoWay", antipodes.TwoWay, loss_fn=antipodes.InfoNCE(), names=("a", "b"))
    yield of("Refine", antipodes.Refine, mu=1.0, tau_prime=0.8, space="own", share=None, positive=True, among="all")
    yield of("Distillation", antipodes.Distillation, weight=1.0, temperature=0.1)
    yield of(
        "Temperature",
        antipodes.Temperature,
        value=0.1,
        learnable=False,
        floor=None,
        schedule=schedules.linear(0.2, 0.1),
        per_sample=None,
        form="log",
    )
    yield of(
        "GloFND",
        antipodes.GloFND,
        num_samples=N,
        alpha=0.1,
        start=0.0,
        lr=0.05,
        betas=(0.9, 0.98),
        optimizer="adam",
        decay=False,
        initial="one",
        folder=None,
    )
    yield of("FNC", antipodes.FNC, alpha=0.1, start=0.0, supports=0)
    yield of(
        "IFND",
        antipodes.IFND,
        num_samples=N,
        clusters=(3, 4),
        acceptance="linear",
        final_rate=1.0,
        step_at=0.1,
        every=1,
        temperature=0.4,
        space="features",
        seed=0,
        towers="anchor",
    )
    yield of(
        "Ring",
        antipodes.Ring,
        outer=(1.0, 0.1),
        inner=0.1,
        until=0.3,
        anneal="linear",
        patience=1,
        start=0.0,
        collapse_limit=0.9,
    )
    yield of("Cave", antipodes.Cave, num_samples=N, clusters=(3,), every=1, space="seen", seed=0)
    yield of("Chance", antipodes.Chance, alpha=0.1, start=0.0, seed=0)
    yield of("Guided", antipodes.Guided, margin=0.1, relative=False, start=0.0, alpha=None)
    yield of("PositiveAware", antipodes.PositiveAware, margin=0.05, relative=True, guide=False, start=0.0)
    yield of("Hardest", antipodes.Hardest, k=2)
    yield of("Known", antipodes.Known, groups=list(range(N)), pairs=None, num_samples=N, weights=None)
    yield of(
        "DatasetNeighbours",
        antipodes.DatasetNeighbours,
        num_samples=N,
        k=3,
        mutual=False,
        every=1,
        space="features",
        start=0.0,
        identities=None,
    )
    yield of("Oracle", antipodes.Oracle, labels=list(range(N)))
    yield of("Debiased", antipodes.Debiased, tau_plus=0.1)
    yield of("HCL", antipodes.HCL, tau_plus=0.1, beta=1.0)
    yield of("BCL", antipodes.BCL, tau_plus=0.1, alpha=0.8, beta=0.8, bands=4)
    yield of("MemoryBank", MemoryBank, num_samples=N, dim=D, momentum=0.5, seed=0, identities=None)
    yield of("Queue", Queue, size=9, dim=D)
    yield of("SampleTable", antipodes.SampleTable, num_samples=N, shape=(2,), fill=0.0, folder=None)
    yield of("HistoryGuide", antipodes.HistoryGuide, num_samples=N, dim=D, momentum=0.9, folder=None)
    yield of("TableGuide", antipodes.TableGuide, table=numbers(N, D), name=None)
    yield of("NetworkGuide", antipodes.NetworkGuide, network=nn.Linear(2, 2))
    yield of("MomentumGuide", antipodes.MomentumGuide, network=nn.Linear(2, 2), momentum=0.9)
    yield of("Rule", antipodes.Rule, ranks=antipodes.Ranks(0, 3), groups=(), lists=())


def use(made: Any) -> Any:
    """Call what was constructed, so that a number that was stored unseen shows what it does."""
    guide = (numbers(B, D), numbers(B, D))
    if isinstance(made, antipodes.Policy):
        if made.needs.reweighs:
            made = antipodes.InfoNCE(0.1, made)
        else:
            made = antipodes.InfoNCE(0.1, made, "attract")
    if isinstance(made, antipodes.Refine):
        made = antipodes.InfoNCE(0.1, antipodes.FNC(), made)
    if isinstance(made, antipodes.Distillation):
        made = antipodes.InfoNCE(0.1, distill=made)
    if isinstance(made, antipodes.Temperature):
        made = antipodes.InfoNCE(made)
    if isinstance(made, antipodes.HardPairs):
        return made(numbers(B, D), numbers(B, D) + 0.1, torch.arange(B))
    if isinstance(made, antipodes.LocalAggregation):
        return made(numbers(B, D), numbers(B, D) + 0.1, torch.arange(B), progress=0.5)
    if isinstance(made, (antipodes.InfoNCE, antipodes.Sigmoid, antipodes.GlobalContrastive, antipodes.TwoWay)):
        supports = getattr(made.negatives, "supports", 0)
        further = {} if isinstance(made, antipodes.TwoWay) else {"supports": numbers(2, B, D) if supports else None}
        return made(numbers(B, D), numbers(B, D) + 0.1, torch.arange(B), guide=guide, progress=0.5, **further)
    return made


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the main thread after so long."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def classify(target: Target, arguments: dict[str, Any], construct: bool) -> tuple[str, str]:
    """What becomes of a call, and the error if there is one."""
    try:
        with alarm(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = target.call(**arguments)
            found = use(made) if construct else made
            if isinstance(found, Tensor) and found.is_floating_point() and not bool(found.detach().isfinite().all()):
                return "not finite", f"{found.detach().flatten()[:3].tolist()}"
    except Hang:
        return "hang", ""
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = (
            "antipodes" in frames[-1].filename.split("/tests/")[0].rpartition("site-packages")[2]
            and "/tests/" not in frames[-1].filename
        )
        if ours and isinstance(error, (ValueError, TypeError)):
            return "refused", ""
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}"
        last = next((f for f in reversed(frames) if "src/antipodes" in f.filename), frames[-1])
        return (
            "foreign",
            f"{type(error).__name__}: {str(error)[:90]} at {where} from {Path(last.filename).name}:{last.lineno}",
        )
    return "fine", ""


def run(count: int, seed: int) -> Result:
    """Make so many bad calls; the same seed makes the same calls."""
    chooser = random.Random(seed)
    torch.manual_seed(seed)
    constructors, calls = list(constructor_targets()), list(call_targets())
    result = Result()
    for _ in range(count):
        construct = chooser.random() < 0.5
        target = chooser.choice(constructors if construct else calls)
        names = chooser.sample(sorted(target.arguments), min(len(target.arguments), chooser.choice([1, 1, 1, 2, 3])))
        arguments = {name: make() for name, make in target.arguments.items()}
        if chooser.random() < 0.5:  # only those that are required or replaced
            required = {"z1", "z2", "ids", "candidates", "candidate_ids", "candidate_guide", "guide"}
            arguments = {
                name: value
                for name, value in arguments.items()
                if construct or name in required or name in names or len(target.arguments) < 8
            }
        arguments |= {name: odd(chooser) for name in names}
        kind, error = classify(target, arguments, construct)
        result.counts[kind] += 1
        result.reached.add(target.name.partition("(")[0].partition(" ")[0].partition(".")[0])
        if kind in FAILURES:
            shown = ", ".join(f"{name}={_shown(arguments[name])}" for name in names)
            result.failures.append(f"{kind}: {target.name} with {shown}: {error}")
    return result


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}"
    return repr(value)[:50].replace("\n", " ")


if __name__ == "__main__":
    outcome = run(int(sys.argv[1]), int(sys.argv[2]))
    print("\n".join(outcome.failures))
    print(dict(outcome.counts))
    sys.exit(int(outcome.failed > 0))
