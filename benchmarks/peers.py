"""The losses of other libraries and ours in their place: value, gradient, time and memory.

Each loss of `PEERS` is computed in up to three ways: by the formula written out densely in torch, by the library's own
class where it can be imported, and by ours. Value and gradient of ours are compared with the formula in float64, summed
over a few hundred anchors at a time. Time is process CPU time of forward + backward from raw embeddings of 384
dimensions on one thread, the median of several interleaved rounds; memory is the growth of the resident set's peak.
With a rule, samples that show the same thing (an eighth of the batch in pairs) are no negatives of each other: ours by
their ids, the formula by a boolean mask. GIST's guide is a rule by itself.

    python benchmarks/peers.py [--quick] [--pairs 64 512 2048 8192] [--write docs/performance.md]

`--write` replaces the table between the markers in that file. `make bench-peers` runs this where the libraries are
installed. The last line of the output is JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from antipodes import Guided, InfoNCE, OneWay, Oracle, Sigmoid, TwoWay

DIMENSIONS = 384
MOST_CELLS = 2**27
"""The formula is computed for matrices of so many cells at most: it holds about six of them."""
CUBIC = 64
"""The most pairs for the libraries' own losses whose memory is B x B x B or B x B x D."""
MARKERS = "<!-- made by benchmarks/peers.py -->", "<!-- end of benchmarks/peers.py -->"


class Batch(NamedTuple):
    """Pairs of embeddings (B, D), with what rules look at.

    Attributes:
        first: (B, D) with gradient.
        second: (B, D) likewise.
        ids: (B,) what the pairs show; an eighth of them shows what another pair shows.
        guides: (B, 64) a guide's vectors of both.
    """

    first: Tensor
    second: Tensor
    ids: Tensor
    guides: tuple[Tensor, Tensor]


def make_batch(pairs: int) -> Batch:
    """Return pairs that are alike but for noise."""
    generator = torch.Generator().manual_seed(pairs)
    centre = torch.randn(pairs, DIMENSIONS, generator=generator)
    first, second = (
        (centre + 0.5 * torch.randn(pairs, DIMENSIONS, generator=generator)).requires_grad_() for _ in range(2)
    )
    ids = torch.arange(pairs)
    ids[: pairs // 16] = ids[pairs // 2 : pairs // 2 + pairs // 16].clone()
    groups = torch.randn(pairs // 4, 64, generator=generator)[
        torch.randint(0, pairs // 4, (pairs,), generator=generator)
    ]
    guides = [groups + 0.5 * torch.randn(pairs, 64, generator=generator) for _ in range(2)]
    return Batch(first, second, ids, (guides[0], guides[1]))


Loss = Callable[[Batch, bool], Tensor]
"""A batch, and whether the rule applies, to the mean loss."""

Part = Callable[[Batch, bool, slice], Tensor]
"""The formula's sum of the losses of some anchors, from a batch of any precision."""


class Peer(NamedTuple):
    """A loss of another library.

    Attributes:
        name: its name.
        part: the formula.
        anchors: how many losses its mean has, per pair.
        ours: the same loss by antipodes.
        theirs: makes the library's own loss without a rule; raises ImportError where it cannot be imported.
        rules: whether it is shown without and with the rule.
        most: the most pairs for which the library's own is computed.
    """

    name: str
    part: Part
    anchors: int
    ours: Loss
    theirs: Callable[[], Callable[[Batch], Tensor]]
    rules: tuple[bool, ...] = (False, True)
    most: int = 8192

    def formula(self, batch: Batch, rule: bool) -> Tensor:
        """The mean loss by the formula, densely."""
        count = self.anchors * len(batch.first)
        return self.part(batch, rule, slice(0, count)) / count


def _logits(anchors: Tensor, candidates: Tensor, rows: slice, tau: float) -> Tensor:
    return F.normalize(anchors[rows], dim=1) @ F.normalize(candidates, dim=1).T / tau


def _same(ids: Tensor, rows: slice, but: Tensor) -> Tensor:
    """(h, C) which candidates show what the anchor shows, but for the positive at this place."""
    same = ids[rows, None] == ids
    same[torch.arange(len(but)), but] = False
    return same


def one_way(anchors: Tensor, candidates: Tensor, ids: Tensor | None, rows: slice, tau: float) -> Tensor:
    """The softmax loss of anchors whose positives are the candidates in their rows."""
    logits = _logits(anchors, candidates, rows, tau)
    target = torch.arange(rows.start, rows.stop)
    if ids is not None:
        logits = logits.masked_fill(_same(ids, rows, target), -torch.inf)
    return F.cross_entropy(logits, target, reduction="sum")


def mnrl(batch: Batch, rule: bool, rows: slice) -> Tensor:
    """Queries find their documents."""
    return one_way(batch.first, batch.second, batch.ids if rule else None, rows, 0.05)


def clip(batch: Batch, rule: bool, rows: slice) -> Tensor:
    """The mean of both directions."""
    ids = batch.ids if rule else None
    there = one_way(batch.first, batch.second, ids, rows, 0.05)
    return (there + one_way(batch.second, batch.first, ids, rows, 0.05)) / 2


def gist(batch: Batch, _: bool, rows: slice) -> Tensor:
    """Documents, other queries, and pairs of documents in one softmax, without those that the guide finds closer."""
    guides = [F.normalize(each.to(batch.first), dim=1) for each in batch.guides]
    bound = (guides[0] * guides[1]).sum(1)[rows, None]
    target = torch.arange(rows.start, rows.stop)
    ends = (batch.first, batch.second)
    blocks = []
    for one, other in ((0, 1), (0, 0), (1, 1)):
        flagged = guides[one][rows] @ guides[other].T > bound
        flagged[torch.arange(len(target)), target] = one == other
        blocks.append(_logits(ends[one], ends[other], rows, 0.05).masked_fill(flagged, -torch.inf))
    return F.cross_entropy(torch.cat(blocks, dim=1), target, reduction="sum")


def siglip(batch: Batch, rule: bool, rows: slice) -> Tensor:
    """Each pair is a question of its own."""
    logits = _logits(batch.first, batch.second, rows, 0.1) - 10.0
    target = torch.arange(rows.start, rows.stop)
    signs = -torch.ones_like(logits)
    signs[torch.arange(len(target)), target] = 1.0
    losses = -F.logsigmoid(signs * logits)
    return (losses.masked_fill(_same(batch.ids, rows, target), 0.0) if rule else losses).sum()


def nt_xent(batch: Batch, rule: bool, rows: slice) -> Tensor:
    """Each view finds the other view of its sample among all views."""
    views, pairs = torch.cat((batch.first, batch.second)), len(batch.first)
    logits = _logits(views, views, rows, 0.1)
    here = torch.arange(rows.start, rows.stop)
    target = (here + pairs) % (2 * pairs)
    ids = batch.ids if rule else torch.arange(pairs)
    return F.cross_entropy(logits.masked_fill(_same(ids.repeat(2), rows, target), -torch.inf), target, reduction="sum")


def sup_con(batch: Batch, _: bool, rows: slice) -> Tensor:
    """Views of the same label are positives, whose mean is outside the logarithm."""
    views = torch.cat((batch.first, batch.second))
    logits = _logits(views, views, rows, 0.1)
    here = torch.arange(rows.start, rows.stop)
    own = torch.zeros_like(logits, dtype=torch.bool)
    own[torch.arange(len(here)), here] = True
    logits = logits.masked_fill(own, -torch.inf)
    positive = _same(batch.ids.repeat(2), rows, here)
    terms = (logits.logsumexp(1, keepdim=True) - logits).masked_fill(~positive, 0.0)
    return (terms.sum(1) / positive.sum(1)).sum()


def their_mnrl() -> Callable[[Batch], Tensor]:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    loss = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    return lambda batch: loss.compute_loss_from_embeddings([batch.first, batch.second], None)


def their_gist() -> Callable[[Batch], Tensor]:
    from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss

    from tests.losses.test_gist_embed import Reads, tokenizer

    loss = GISTEmbedLoss(Reads("embedding", tokenizer()), Reads("seen", tokenizer()), temperature=0.05)

    def value(batch: Batch) -> Tensor:
        token = torch.zeros(len(batch.first), 1, dtype=torch.int64)
        ends = zip((batch.first, batch.second), batch.guides, strict=True)
        return loss([{"embedding": one, "seen": seen, "input_ids": token} for one, seen in ends], None)

    return value


def their_clip() -> Callable[[Batch], Tensor]:
    from tests.integrations.peers import open_clip_losses

    loss = open_clip_losses().ClipLoss()
    return lambda batch: loss(F.normalize(batch.first, dim=1), F.normalize(batch.second, dim=1), torch.tensor(20.0))


def their_siglip() -> Callable[[Batch], Tensor]:
    from tests.integrations.peers import open_clip_losses

    loss, scale, bias = open_clip_losses().SigLipLoss(), torch.tensor(10.0), torch.tensor(-10.0)
    return lambda batch: loss(F.normalize(batch.first, dim=1), F.normalize(batch.second, dim=1), scale, bias)


def their_nt_xent() -> Callable[[Batch], Tensor]:
    from tests.integrations.peers import with_empty_torchvision

    loss = with_empty_torchvision("lightly.loss").NTXentLoss(temperature=0.1)
    return lambda batch: loss(batch.first, batch.second)


def their_cubic() -> Callable[[Batch], Tensor]:
    from pytorch_metric_learning.losses import NTXentLoss

    loss = NTXentLoss(temperature=0.1)
    return lambda batch: loss(torch.cat((batch.first, batch.second)), torch.arange(len(batch.first)).repeat(2))


def their_sup_con() -> Callable[[Batch], Tensor]:
    from pytorch_metric_learning.losses import SupConLoss

    loss = SupConLoss(temperature=0.1)
    return lambda batch: loss(torch.cat((batch.first, batch.second)), batch.ids.repeat(2))


def our_losses() -> list[Peer]:
    """Return all comparisons."""

    def ids(batch: Batch, rule: bool) -> Tensor:
        return batch.ids if rule else torch.arange(len(batch.first))

    retrieval, two = OneWay(InfoNCE(0.05)), TwoWay(InfoNCE(0.05))
    guided = OneWay(InfoNCE(0.05, Guided(0.0)), also=("query_to_query", "positive_to_positive"))
    sigmoid, views = OneWay(Sigmoid(0.1, bias=-10.0, learnable=False)), InfoNCE(0.1)

    def pair_of(loss_fn: Any) -> Loss:
        return lambda batch, rule: loss_fn(batch.first, batch.second, ids(batch, rule))

    def labelled(batch: Batch, _: bool) -> Tensor:
        return InfoNCE(0.1, Oracle(batch.ids), "attract")(batch.first, batch.second, torch.arange(len(batch.first)))

    def by_guide(batch: Batch, _: bool) -> Tensor:
        return guided(batch.first, batch.second, torch.arange(len(batch.first)), guide=batch.guides)

    return [
        Peer("sentence-transformers `MultipleNegativesRankingLoss`", mnrl, 1, pair_of(retrieval), their_mnrl),
        Peer("sentence-transformers `GISTEmbedLoss`", gist, 1, by_guide, their_gist, (True,), CUBIC),
        Peer("open_clip `ClipLoss`", clip, 1, pair_of(two), their_clip),
        Peer("open_clip `SigLipLoss`", siglip, 1, pair_of(sigmoid), their_siglip),
        Peer("lightly `NTXentLoss`", nt_xent, 2, pair_of(views), their_nt_xent),
        Peer("pytorch-metric-learning `NTXentLoss`", nt_xent, 2, pair_of(views), their_cubic, (False,), CUBIC),
        Peer("pytorch-metric-learning `SupConLoss`", sup_con, 2, labelled, their_sup_con, (True,)),
    ]


class Row(NamedTuple):
    """One line of the table; ratios are ours to the formula and to the library's own, None where these were not run."""

    peer: str
    pairs: int
    rule: bool
    value: float
    gradient: float
    milliseconds: float
    time: float | None
    time_theirs: float | None
    megabytes: float
    memory: float | None
    memory_theirs: float | None

    def cells(self) -> tuple[str, ...]:
        """The line as texts."""

        def ratio(number: float | None) -> str:
            return "-" if number is None else f"{number:.2f}"

        return (
            self.peer, f"{self.pairs:,}", "with" if self.rule else "without", f"{self.value:.0e}",
            f"{self.gradient:.0e}", f"{self.milliseconds:,.1f}", ratio(self.time), ratio(self.time_theirs),
            f"{self.megabytes:,.0f}", ratio(self.memory), ratio(self.memory_theirs),
        )  # fmt: skip


HEADER = (
    "loss", "pairs", "rule", "value", "gradient", "ms", "/ formula", "/ library's", "MB", "/ formula", "/ library's",
)  # fmt: skip


def differences(peer: Peer, batch: Batch, rule: bool) -> tuple[float, float]:
    """Return how far our value and gradient are from the formula in float64, relative to its largest numbers."""
    exact = Batch(*(each.detach().double().requires_grad_() for each in batch[:2]), *batch[2:])
    count, total = peer.anchors * len(batch.first), 0.0
    for start in range(0, count, 256):
        part = peer.part(exact, rule, slice(start, min(start + 256, count))) / count
        part.backward()
        total += part.item()
    loss = peer.ours(batch, rule)
    found = torch.autograd.grad(loss, batch[:2])
    expected = [each.grad for each in exact[:2]]
    apart = max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))
    return abs(loss.item() - total) / abs(total), apart / max(float(each.abs().max()) for each in expected)


def median_times(runs: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Return each run's median CPU time; all take turns until so much time has passed, three times at least."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end, number = time.monotonic() + seconds, 0
    while number < 3 or (time.monotonic() < end and number < 400):
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.process_time()
            runs[name]()
            times[name].append(time.process_time() - start)
        number += 1
    return {name: statistics.median(each) for name, each in times.items()}


def peak_growth(run: Callable[[], None]) -> float:
    """Return by how many MB a run raises the peak of the resident set."""

    def resident(field: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that memory left over from before is not used unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def measure(peer: Peer, pairs: int, rule: bool, seconds: float) -> Row:
    """Return one line of the table."""
    batch = make_batch(pairs)

    def run(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def once() -> None:
            batch.first.grad = batch.second.grad = None
            loss().backward()

        return once

    runs = {"ours": run(lambda: peer.ours(batch, rule))}
    if (peer.anchors * pairs) ** 2 <= MOST_CELLS:
        runs["formula"] = run(lambda: peer.formula(batch, rule))
    own_rule = len(peer.rules) == 1  # the library's own has no other rule
    if pairs <= peer.most and "formula" in runs and (own_rule or not rule):
        try:
            theirs = peer.theirs()
            runs["theirs"] = run(lambda: theirs(batch))
        except BaseException as error:  # pytest skips where a package is missing
            print(f"  {peer.name}: {type(error).__name__}: {error}", file=sys.stderr)
    times = median_times(runs, seconds)
    memory = {name: peak_growth(each) for name, each in runs.items()}

    def ratios(numbers: dict[str, float]) -> tuple[float | None, float | None]:
        formula, own = numbers.get("formula"), numbers.get("theirs")
        return (formula and numbers["ours"] / formula, own and numbers["ours"] / own)

    apart = differences(peer, batch, rule)
    return Row(
        peer.name, pairs, rule, *apart, 1000 * times["ours"], *ratios(times), memory["ours"],
        *(ratios(memory) if pairs >= 512 else (None, None)),
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """The lines in Markdown."""
    lines = [HEADER, ("---", *("---:" for _ in HEADER[1:])), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The losses of other libraries, and ours in their place.")
    parser.add_argument("--quick", action="store_true", help="64 and 512 pairs, few rounds")
    parser.add_argument("--pairs", type=int, nargs="+", help="sizes of batches")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long all ways take turns, per line")
    parser.add_argument("--only", help="losses whose names hold this text")
    parser.add_argument("--write", type=Path, help="a page that holds the two markers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.path.append(str(Path(__file__).parents[1]))  # the tests know how to import the libraries
    rows = []
    for peer in our_losses():
        if arguments.only and arguments.only not in peer.name:
            continue
        for pairs in arguments.pairs or ([64, 512] if arguments.quick else [64, 512, 2048, 8192]):
            for rule in peer.rules:
                rows.append(measure(peer, pairs, rule, 0.5 if arguments.quick else arguments.seconds))
                print(" ".join(rows[-1].cells()), flush=True)
    if arguments.write:
        before, _, after = arguments.write.read_text().partition(MARKERS[0])
        _, marker, rest = after.partition(MARKERS[1])
        if not marker:
            raise SystemExit(f"{arguments.write} holds no markers {MARKERS[0]} and {MARKERS[1]}")
        arguments.write.write_text(f"{before}{MARKERS[0]}\n\n{table(rows)}\n\n{MARKERS[1]}{rest}")
    ratios: dict[str, float] = {}
    for row in rows:
        name = f"{row.peer.replace('`', '')} {row.pairs}{' rule' if row.rule else ''}"
        found = {
            "time": row.time,
            "time / own": row.time_theirs,
            "memory": row.memory,
            "memory / own": row.memory_theirs,
        }
        ratios |= {f"{name} {what}": round(number, 4) for what, number in found.items() if number is not None}
    print()
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
