"""`OneWay`: queries against documents, given negatives and further blocks, against loops; on one rank and on two."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import (
    FNC,
    GlobalContrastive,
    GloFND,
    Guided,
    Hardness,
    InfoNCE,
    Known,
    OneWay,
    Oracle,
    PositiveAware,
    Ring,
    Sigmoid,
    Temperature,
    TwoWay,
    content_ids,
)
from antipodes.losses import Loss
from tests.cases import every
from tests.ranks import Ranks
from tests.reference import losses as reference

B, K, D, TAU = 8, 2, 5, 0.2
QUERY_IDS = [0, 1, 2, 0, 3, 4, 5, 6]
DOCUMENT_IDS = [10, 11, 12, 13, 11, 14, 15, 15]
GIVEN_IDS = [[20, 10], [11, 21], [-1, -1], [22, 23], [24, -1], [25, 14], [15, 26], [27, 28]]
ALSO = ("query_to_query", "document_to_query", "document_to_document", "positive_to_positive")


def embeddings(seed: int = 0, count: int = B) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, d = torch.randn(2, count, D, generator=generator, dtype=torch.float64)
    h = torch.randn(count, K, D, generator=generator, dtype=torch.float64)
    return q.requires_grad_(), (d + 0.5 * q.detach()).requires_grad_(), h.requires_grad_()


def compare(ours: Tensor, theirs: Tensor, *wanted: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    mine = torch.autograd.grad(ours, wanted, allow_unused=True, retain_graph=True)
    others = torch.autograd.grad(theirs, wanted, allow_unused=True, retain_graph=True)
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(
            one if one is not None else torch.zeros(()), other if one is not None else torch.zeros(())
        )


quiet = pytest.mark.filterwarnings("ignore:.*of their own anchor", "ignore:some anchors")


def every_also() -> list[tuple[str, ...]]:
    return [(), *((each,) for each in ALSO), ALSO[:3], ALSO]


@every("also", every_also())
@every("given", [False, True])
def test_blocks_equal_loops(also: tuple[str, ...], given: bool) -> None:
    q, d, h = embeddings()
    loss = OneWay(InfoNCE(TAU), also=also)(q, d, hard_negatives=h if given else None)  # type: ignore[arg-type]
    expected = reference.joint(q, d, TAU, given=h if given else None, also=also)
    compare(loss, expected, q, d, *([h] if given else []))


@quiet
@every("also", every_also())
@every("kind", ["numbers", "texts", "one space"])
def test_identities_equal_loops(also: tuple[str, ...], kind: str) -> None:
    """The same document, or a document of the same query, is never a negative; nor is padding."""
    q, d, h = embeddings()
    ids: Any = (torch.tensor(QUERY_IDS), DOCUMENT_IDS)
    given_ids: Any = torch.tensor(GIVEN_IDS)
    queries: list[int] = QUERY_IDS
    if kind == "texts":
        ids = tuple(content_ids([f"text {each}" for each in side]) for side in (QUERY_IDS, DOCUMENT_IDS))
        ids = ([f"q{each}" for each in QUERY_IDS], [f"d{each}" for each in DOCUMENT_IDS])
        hashes = [[int(content_ids([f"d{each}"])[0]) if each >= 0 else -1 for each in row] for row in GIVEN_IDS]
        given_ids = torch.tensor(hashes)
    if kind == "one space":
        ids, queries = DOCUMENT_IDS, DOCUMENT_IDS
    loss_fn = OneWay(InfoNCE(TAU), also=also)  # type: ignore[arg-type]
    loss = loss_fn(q, d, ids, hard_negatives=h, hard_negative_ids=given_ids)
    expected = reference.joint(
        q, d, TAU, query_ids=queries, document_ids=DOCUMENT_IDS, given=h, given_ids=GIVEN_IDS, also=also
    )
    compare(loss, expected, q, d, h)
    assert loss_fn.stats["given_ignored"] == 4


@quiet
@pytest.mark.parametrize("count", [B, 700])
def test_only_own_negatives_equal_loops(count: int) -> None:
    """700 queries of two negatives are several chunks of few pairs."""
    q, d, h = embeddings(count=count)
    given_ids = None if count > B else GIVEN_IDS
    dids = list(range(count)) if count > B else DOCUMENT_IDS
    loss_fn = OneWay(InfoNCE(TAU, reduction="none"), in_batch=False)
    losses = loss_fn(q, d, None if count > B else dids, hard_negatives=h, hard_negative_ids=given_ids)
    some = slice(0, B) if count == B else slice(690, 700)
    expected = reference.joint(
        q[some], d[some], TAU, document_ids=dids[some], given=h[some], given_ids=given_ids, in_batch=False, reduce=False
    )
    compare(losses[some].sum(), expected.sum(), q, d, h)
    kept = [sum(each not in (-1, own) for each in row) for row, own in zip(GIVEN_IDS, DOCUMENT_IDS, strict=True)]
    assert loss_fn.stats["kept_per_anchor"] == (sum(kept) / B if count == B else K)


def test_only_own_negatives_are_refused_without_any() -> None:
    q, d, _ = embeddings()
    with pytest.raises(ValueError, match="hard_negatives"):
        OneWay(InfoNCE(TAU), in_batch=False)(q, d)
    with pytest.raises(ValueError, match="in_batch"):
        OneWay(InfoNCE(TAU), in_batch=False, also=("query_to_query",))


POLICIES: dict[str, Callable[[], Any]] = {
    "fnc": lambda: FNC(0.3),
    "ring": lambda: Ring(outer=(0.7, 0.7), inner=0.3, anneal="none"),
    "positive-aware": lambda: PositiveAware(0.1, relative=False),
    "oracle": lambda: Oracle(torch.arange(30) % 3),
    "glofnd": lambda: GloFND(30, alpha=0.3),
    "joined": lambda: FNC(0.2) & PositiveAware(0.05),
}


@quiet
@every("name", POLICIES)
def test_policies_judge_own_negatives_as_a_query_alone_does(name: str) -> None:
    """What a policy says of an anchor with its own negatives is what it says when there is no other anchor."""
    q, d, h = embeddings()
    rows = torch.arange(B)
    loss = OneWay(InfoNCE(TAU, POLICIES[name](), reduction="none"), in_batch=False)(q, d, rows, hard_negatives=h)
    alone = [
        OneWay(InfoNCE(TAU, POLICIES[name]()))(q[i : i + 1], d[i : i + 1], rows[i : i + 1], hard_negatives=h[i : i + 1])
        for i in range(B)
    ]
    compare(loss.sum(), torch.stack(alone).sum(), q, d, h)


def positive_of(q: Tensor, d: Tensor) -> list[float]:
    return torch.nn.functional.cosine_similarity(q.detach(), d.detach()).tolist()


@every("treatment", ["eliminate", "attract", "attract_inside"])
@every("limited", [False, True])
def test_a_policy_judges_every_block_by_the_pair_of_its_anchor(treatment: Any, limited: bool) -> None:
    q, d, h = embeddings()
    policy: Any = PositiveAware(0.3, relative=False)
    blocks = ("query_to_document", "document_to_document")
    positives = positive_of(q, d)

    def flagged(block: str, i: int, key: tuple[str, int], s: float) -> bool:
        return s > positives[i] - 0.3 and (block in blocks or not limited)

    loss_fn = OneWay(InfoNCE(TAU, policy.on(*blocks) if limited else policy, treatment), also=ALSO)  # type: ignore[arg-type]
    loss = loss_fn(q, d, hard_negatives=h)
    expected = reference.joint(q, d, TAU, given=h, also=ALSO, flagged=flagged, treatment=treatment)
    compare(loss, expected, q, d, h)
    assert 0 < loss_fn.stats["flagged_share"] < 1


def test_on_names_blocks() -> None:
    with pytest.raises(ValueError, match="blocks"):
        PositiveAware().on("query_to_doc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="OneWay"):
        InfoNCE(TAU, PositiveAware().on("query_to_query"))(*embeddings()[:2])


def test_tables_learn_from_the_first_block_alone() -> None:
    q, d, h = embeddings()
    one, also = (OneWay(InfoNCE(TAU, GloFND(B, alpha=0.3)), also=each) for each in ((), ALSO))  # type: ignore[arg-type]
    for loss_fn in (one, also):
        loss_fn(q, d, torch.arange(B), hard_negatives=h)
    torch.testing.assert_close(one.negatives.threshold, also.negatives.threshold)


@pytest.mark.parametrize("temperature", [0.07, torch.tensor(0.07, dtype=torch.float64), torch.tensor([0.3]).double()])
def test_temperature_of_a_call(temperature: float | Tensor) -> None:
    q, d, h = embeddings()
    wanted = [q, d, h]
    if isinstance(temperature, Tensor):
        temperature = temperature.clone().requires_grad_()
        wanted.append(temperature)
    scalar = temperature.reshape(()) if isinstance(temperature, Tensor) else temperature
    loss = OneWay(InfoNCE(1.0), also=ALSO)(q, d, hard_negatives=h, temperature=temperature)  # type: ignore[arg-type]
    compare(loss, reference.joint(q, d, scalar, given=h, also=ALSO), *wanted)
    torch.testing.assert_close(
        TwoWay(InfoNCE(1.0))(q, d, temperature=temperature), TwoWay(InfoNCE(float(scalar)))(q, d)
    )
    torch.testing.assert_close(InfoNCE(1.0)(q, d, temperature=temperature), InfoNCE(float(scalar))(q, d))


@every("bad", [0.0, -1.0, math.nan, math.inf, torch.ones(3), "warm"])
def test_a_temperature_that_is_none(bad: Any) -> None:
    q, d, _ = embeddings()
    with pytest.raises(ValueError, match="temperature"):
        OneWay(InfoNCE(TAU))(q, d, temperature=bad)


@pytest.mark.parametrize("treatment", ["eliminate", "attract_inside"])
@pytest.mark.parametrize("both", [False, True])
def test_log_q_equals_loops(treatment: Any, both: bool) -> None:
    q, d, h = embeddings()
    log_q = torch.linspace(-4, -1, B, dtype=torch.float64)
    of_given = torch.linspace(-3, -2, B * K, dtype=torch.float64).view(B, K) if both else None
    positives = positive_of(q, d)
    policy = PositiveAware(0.3, relative=False)
    loss = OneWay(InfoNCE(TAU, policy, treatment), also=ALSO)(  # type: ignore[arg-type]
        q, d, hard_negatives=h, log_q=log_q, hard_negative_log_q=of_given
    )
    expected = reference.joint(
        q, d, TAU, given=h, also=ALSO, log_q=log_q, given_log_q=of_given, treatment=treatment,
        flagged=lambda block, i, key, s: s > positives[i] - 0.3,
    )  # fmt: skip
    compare(loss, expected, q, d, h)


@quiet
@pytest.mark.parametrize("on", ["given", "in_batch", "all"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("in_batch", [False, True])
def test_hardness_equals_loops(on: Any, learned: bool, in_batch: bool) -> None:
    q, d, h = embeddings()
    tau = torch.tensor(TAU, dtype=torch.float64, requires_grad=True)
    temperature: Any = Temperature(TAU, learnable=True, form="linear").double() if learned else TAU
    loss_fn = OneWay(InfoNCE(temperature, hardness=Hardness(9.0, on)), in_batch, also=ALSO if in_batch else ())  # type: ignore[arg-type]
    loss = loss_fn(q, d, (QUERY_IDS, DOCUMENT_IDS), hard_negatives=h, hard_negative_ids=GIVEN_IDS)
    expected = reference.joint(
        q, d, tau, query_ids=QUERY_IDS, document_ids=DOCUMENT_IDS, given=h, given_ids=GIVEN_IDS, in_batch=in_batch,
        also=ALSO if in_batch else (), hardness=(9.0, on),
    )  # fmt: skip
    compare(loss, expected, q, d, h)
    if learned:
        (ours,) = torch.autograd.grad(loss, [temperature.parameter])
        (theirs,) = torch.autograd.grad(expected, [tau])
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("policy", [None, lambda: FNC(0.2), lambda: PositiveAware(0.3, relative=False)])
def test_hardness_with_policies(policy: Any) -> None:
    """A policy judges all negatives at once, whichever of them are weighed."""
    q, d, h = embeddings()
    plain = OneWay(InfoNCE(TAU, policy and policy()))
    none = OneWay(InfoNCE(TAU, policy and policy(), hardness=Hardness(0.0, "given")))
    compare(none(q, d, hard_negatives=h), plain(q, d, hard_negatives=h), q, d, h)
    assert none.stats["kept_per_anchor"] == plain.stats["kept_per_anchor"]


def test_hardness_without_given_negatives() -> None:
    q, d, _ = embeddings()
    with pytest.raises(ValueError, match="given"):
        OneWay(InfoNCE(TAU, hardness=Hardness(5.0, "given")))(q, d)
    in_batch, everything = (OneWay(InfoNCE(TAU, hardness=Hardness(5.0, on)))(q, d) for on in ("in_batch", "all"))
    torch.testing.assert_close(in_batch, everything)
    compare(everything, reference.joint(q, d, TAU, hardness=(5.0, "all")), q, d)


def test_the_decoupled_loss_equals_loops() -> None:
    q, d, h = embeddings()
    loss = OneWay(InfoNCE(TAU, positive_in_sum=False), also=ALSO)(q, d, hard_negatives=h)  # type: ignore[arg-type]
    compare(loss, reference.joint(q, d, TAU, given=h, also=ALSO, positive_in_sum=False), q, d, h)


def test_dot_products_equal_loops() -> None:
    q, d, h = embeddings()
    positives = (q * d).sum(1).tolist()
    policy = PositiveAware(0.5, relative=False)
    loss_fn = OneWay(InfoNCE(3.0, policy, "attract", similarity="dot", hardness=Hardness(0.1, "given")), also=ALSO)  # type: ignore[arg-type]
    expected = reference.joint(
        q, d, 3.0, given=h, also=ALSO, dot=True, treatment="attract", hardness=(0.1, "given"),
        flagged=lambda block, i, key, s: s > positives[i] - 0.5,
    )  # fmt: skip
    compare(loss_fn(q, d, hard_negatives=h), expected, q, d, h)
    assert math.isclose(loss_fn.stats["positive_similarity"], sum(positives) / B, rel_tol=1e-6)
    with pytest.raises(ValueError, match=r"GloFND.*\[-1, 1\]"):
        InfoNCE(negatives=GloFND(B), similarity="dot")
    with pytest.raises(ValueError, match="similarity"):
        InfoNCE(similarity="euclid")  # type: ignore[arg-type]


def test_dot_products_of_two_views_and_queues() -> None:
    q, d, h = embeddings()
    loss = InfoNCE(3.0, similarity="dot")(q, d)
    views = torch.cat((q, d))
    logits = (views @ views.T / 3.0).masked_fill(torch.eye(2 * B, dtype=torch.bool), -torch.inf)
    labels = torch.arange(2 * B).roll(B)
    compare(loss, torch.nn.functional.cross_entropy(logits, labels), q, d)
    queue = h[:, 0].detach()
    loss = InfoNCE(3.0, similarity="dot")(q, d, torch.arange(B), candidates=queue, candidate_ids=torch.arange(B) + B)
    logits = torch.cat(((q * d).sum(1, keepdim=True), q @ queue.T), 1) / 3.0
    compare(loss, torch.nn.functional.cross_entropy(logits, torch.zeros(B, dtype=torch.int64)), q, d)


@pytest.mark.parametrize("inside", [False, True])
def test_one_view_a_sample_equals_loops(inside: bool) -> None:
    z = embeddings()[0]
    labels = [0, 0, 1, 2, 1, 0, 3, 4]
    loss_fn = InfoNCE(TAU, Oracle(torch.tensor(labels)), "attract_inside" if inside else "attract")
    compare(loss_fn(z, None, torch.arange(B)), reference.supcon(z, labels, TAU, inside), z)
    alone = InfoNCE(TAU, Oracle(torch.arange(B)), "attract", reduction="none")(z, None, torch.arange(B))
    assert alone.tolist() == [0.0] * B  # no sample has a positive
    with pytest.raises(ValueError, match="z2"):
        InfoNCE(TAU)(z, None)
    with pytest.raises(ValueError, match="z2"):
        InfoNCE(TAU, PositiveAware(), "attract")(z, None)
    with pytest.raises(ValueError, match="z2"):
        Sigmoid(negatives=Oracle(torch.arange(B)), treatment="attract")(z, None, torch.arange(B))


@pytest.mark.parametrize("treatment", ["attract", "attract_inside"])
def test_several_positives_of_two_views(treatment: Any) -> None:
    """Both views of all samples of the label are positives, inside or outside of the logarithm."""
    z1, z2, _ = embeddings()
    labels = [0, 0, 1, 2, 1, 0, 3, 4]
    loss = InfoNCE(TAU, Oracle(torch.tensor(labels)), treatment)(z1, z2, torch.arange(B))
    expected = reference.supcon(torch.cat((z1, z2)), labels * 2, TAU, treatment == "attract_inside")
    compare(loss, expected, z1, z2)
    many = torch.arange(600)  # several tiles
    first, second = (torch.randn(600, D, dtype=torch.float64).requires_grad_() for _ in range(2))
    loss = InfoNCE(TAU, Oracle(many % 7), treatment)(first, second, many)
    views = torch.nn.functional.normalize(torch.cat((first, second)), dim=1)
    logits = (views @ views.T / TAU).masked_fill(torch.eye(1200, dtype=torch.bool), -torch.inf)
    same = ((many.repeat(2)[:, None] % 7) == (many.repeat(2) % 7)) & ~torch.eye(1200, dtype=torch.bool)
    every = logits.logsumexp(1)
    if treatment == "attract_inside":
        dense = every - logits.masked_fill(~same, -torch.inf).logsumexp(1)
    else:
        dense = every - logits.masked_fill(~same, 0.0).sum(1) / same.sum(1)
    compare(loss, dense.mean(), first, second)


@pytest.mark.parametrize("build", [lambda: Sigmoid(0.3, -2.0).double(), lambda: GlobalContrastive(B, TAU, gamma=1.0)])
def test_other_losses_take_given_negatives(build: Callable[[], Loss]) -> None:
    q, d, h = embeddings()
    loss_fn = build()
    loss = OneWay(loss_fn)(q, d, torch.arange(B), hard_negatives=h)
    n = functools.partial(torch.nn.functional.normalize, dim=-1)
    s = torch.cat((n(q) @ n(d).T, n(q) @ n(h.flatten(0, 1)).T), 1)
    own = torch.cat((torch.eye(B), torch.zeros(B, B * K)), 1).bool()
    if isinstance(loss_fn, Sigmoid):
        z = s / 0.3 - 2.0
        expected = torch.nn.functional.softplus(torch.where(own, -z, z)).sum(1).mean()
    else:
        g = (s / TAU).exp().masked_fill(own, 0.0).sum(1) / (B * K + B - 1)
        expected = (TAU * g / g.detach() - s[own]).mean()
    compare(loss, expected, q, d, h)


def test_rows_are_ids_where_these_are_numbers_in_one_space() -> None:
    q, d, h = embeddings()
    policy = Known([0, 0, 1, 1, 2, 3, 4, 5])
    by_ids = OneWay(InfoNCE(TAU, policy))(q, d, torch.arange(B), hard_negatives=h)
    by_rows = OneWay(InfoNCE(TAU, policy))(q, d, [f"t{i}" for i in range(B)], rows=torch.arange(B), hard_negatives=h)
    torch.testing.assert_close(by_ids, by_rows)
    expected = reference.joint(
        q, d, TAU, given=h, flagged=lambda block, i, key, s: key[0] == "d" and policy.groups[i] == policy.groups[key[1]]
    )
    compare(by_ids, expected, q, d, h)
    for ids in ([f"t{i}" for i in range(B)], (QUERY_IDS, DOCUMENT_IDS)):
        with pytest.raises(ValueError, match="rows"):
            OneWay(InfoNCE(TAU, policy))(q, d, ids)
    with pytest.raises(ValueError, match="ids"):
        OneWay(InfoNCE(TAU, policy))(q, d)


def test_a_given_negative_of_the_own_document_is_counted_and_warned_of_once() -> None:
    q, d, _ = embeddings()
    h = d.detach()[:, None]
    loss_fn = OneWay(InfoNCE(TAU))
    with pytest.warns(UserWarning, match=r"8 of 8 hard_negatives"):
        loss = loss_fn(q, d, torch.arange(B), hard_negatives=h, hard_negative_ids=torch.arange(B)[:, None])
    assert loss_fn.stats["given_ignored"] == B
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn(q, d, torch.arange(B), hard_negatives=h, hard_negative_ids=torch.arange(B)[:, None])
        fresh = loss_fn(q, d, torch.arange(B), hard_negatives=h)
    assert loss_fn.stats["given_ignored"] == 0
    expected = reference.joint(q, d, TAU, given=h, given_ids=[[i] for i in range(B)])
    torch.testing.assert_close(loss, expected)
    assert fresh > loss


@pytest.mark.parametrize("filler", [0.0, math.nan])
def test_padding_is_no_vector(filler: float) -> None:
    q, d, h = embeddings()
    padded = torch.cat((h.detach(), torch.full((B, 2, D), filler, dtype=torch.float64)), 1)
    ids = torch.cat((torch.arange(B * K).view(B, K) + 100, torch.full((B, 2), -1)), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = OneWay(InfoNCE(TAU), also=ALSO)(q, d, torch.arange(B), hard_negatives=padded, hard_negative_ids=ids)  # type: ignore[arg-type]
    torch.testing.assert_close(loss, reference.joint(q, d, TAU, given=h, also=ALSO))
    every = OneWay(InfoNCE(TAU))(q, d, hard_negatives=padded[:, K:], hard_negative_ids=ids[:, K:])
    torch.testing.assert_close(every, reference.joint(q, d, TAU))


GIVEN = torch.ones(B, K, D).double()
GUIDE = torch.ones(B, 3)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "shape of h": ({"hard_negatives": torch.ones(B, D).double()}, "hard_negatives"),
    "dim of h": ({"hard_negatives": torch.ones(B, 1, D + 1).double()}, "hard_negatives"),
    "empty h": ({"hard_negatives": torch.ones(B, 0, D).double()}, "hard_negatives"),
    "half h": ({"hard_negatives": torch.ones(B, 1, D)}, "precision"),
    "ids of h alone": ({"hard_negative_ids": torch.zeros(B, 1)}, "hard_negative_ids"),
    "log_q of h alone": ({"hard_negative_log_q": torch.zeros(B, 1)}, "hard_negative_log_q"),
    "length of ids of h": ({"hard_negatives": GIVEN, "hard_negative_ids": [1, 2]}, "hard_negative_ids"),
    "shape of log_q of h": ({"hard_negatives": GIVEN, "hard_negative_log_q": torch.ones(B)}, "hard_negative_log_q"),
    "log_q": ({"log_q": torch.zeros(B + 1)}, "log_q"),
    "three spaces": ({"ids": ([1], [2], [3])}, "ids"),
    "length of ids": ({"ids": (QUERY_IDS[1:], DOCUMENT_IDS)}, r"ids\[0\]"),
    "negative query": ({"ids": ([-1, *QUERY_IDS[1:]], DOCUMENT_IDS)}, "ids"),
    "mixed ids": ({"ids": ["a", 1, *"bcdefg"]}, "ids"),
    "gather": ({"gather": 1}, "gather"),
    "guide of h": ({"guide": (GUIDE, GUIDE), "hard_negatives": GIVEN}, "guide"),
    "shape of guide of h": (
        {"guide": (GUIDE, GUIDE, GUIDE), "hard_negatives": GIVEN},
        r"guide\[2\]",
    ),
    "nan": ({"hard_negatives": torch.full((B, 1, D), math.nan).double()}, "NaN"),
    "weights": ({"weights": torch.full((B,), -1.0)}, "weights"),
}  # fmt: skip


@every("name", REFUSED)
def test_refusals_name_the_argument(name: str) -> None:
    q, d, _ = embeddings()
    arguments, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        OneWay(InfoNCE(TAU))(q, d, **arguments)


@pytest.mark.parametrize(
    "build",
    [
        lambda: OneWay(InfoNCE),
        lambda: OneWay(InfoNCE(), also="query_to_query"),
        lambda: OneWay(InfoNCE(), also=("query_to_document",)),
        lambda: OneWay(InfoNCE(), also=("query_to_query",) * 2),
    ],
)
def test_constructors_refuse(build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"loss|also"):
        build()


def test_two_spaces_are_for_one_way() -> None:
    q, d, _ = embeddings()
    for ids in ((QUERY_IDS, DOCUMENT_IDS), (torch.tensor(QUERY_IDS), torch.tensor(DOCUMENT_IDS))):
        with pytest.raises(ValueError, match="OneWay"):
            InfoNCE(TAU)(q, d, ids)


def test_texts_as_ids_of_views() -> None:
    q, d, _ = embeddings()
    names = ["a", "b", "a", "c", "d", "e", "f", "g"]
    torch.testing.assert_close(InfoNCE(TAU)(q, d, names), InfoNCE(TAU)(q, d, [0, 1, 0, 2, 3, 4, 5, 6]))
    with pytest.raises(ValueError, match="rows"):
        InfoNCE(TAU, Oracle(torch.arange(B)))(q, d, names)


@quiet
def test_nothing_is_ever_nan() -> None:
    """Everything flagged, one pair, zero vectors, one document for all: finite, with finite gradients."""
    q, d, h = embeddings()
    everything = Known([0] * B)
    cases: list[tuple[OneWay, dict[str, Any]]] = []
    for positive_in_sum, also in itertools.product((True, False), ((), ALSO)):
        for treatment in ("eliminate", "attract", "attract_inside"):
            if positive_in_sum or treatment != "attract_inside":
                loss = InfoNCE(TAU, everything, treatment, positive_in_sum=positive_in_sum, hardness=Hardness(5.0))  # type: ignore[arg-type]
                cases.append((OneWay(loss, also=also), {"ids": torch.arange(B)}))  # type: ignore[arg-type]
                cases.append((OneWay(loss, also=also), {"ids": torch.arange(B), "hard_negatives": h}))  # type: ignore[arg-type]
    cases += [
        (OneWay(InfoNCE(TAU), also=ALSO), {"ids": [5] * B, "hard_negatives": h, "hard_negative_ids": [[5] * K] * B})
    ]  # type: ignore[arg-type]
    cases += [(OneWay(InfoNCE(TAU), in_batch=False), {"hard_negatives": h, "hard_negative_ids": [[-1] * K] * B})]
    cases += [(OneWay(InfoNCE(TAU, similarity="dot")), {"hard_negatives": 1e3 * h})]
    for (loss_fn, arguments), zero in itertools.product(cases, (False, True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = loss_fn(0 * q if zero else q, d, **arguments)
        assert loss.isfinite()
        for gradient in torch.autograd.grad(loss, (q, d), allow_unused=True):
            assert gradient is None or gradient.isfinite().all()
    single = OneWay(InfoNCE(TAU), also=ALSO[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert single(q[:1], d[:1]).item() == 0.0


@quiet
def test_two_way_with_given_negatives_and_two_spaces() -> None:
    q, d, h = embeddings()
    ids = (QUERY_IDS, DOCUMENT_IDS)
    loss = TwoWay(InfoNCE(TAU))(q, d, ids, hard_negatives=h, hard_negative_ids=GIVEN_IDS)
    there = reference.joint(q, d, TAU, query_ids=QUERY_IDS, document_ids=DOCUMENT_IDS, given=h, given_ids=GIVEN_IDS)
    back = reference.joint(d, q, TAU, query_ids=QUERY_IDS, document_ids=DOCUMENT_IDS)
    compare(loss, (there + back) / 2, q, d, h)
    log_q = torch.linspace(-2, -1, B, dtype=torch.float64)
    by_log_q = TwoWay(InfoNCE(TAU))(q, d, ids, log_q=log_q)
    torch.testing.assert_close(by_log_q, TwoWay(InfoNCE(TAU))(q, d, ids, log_weights=(0 * log_q, -log_q)))


def test_state_and_copies() -> None:
    """Tables are saved once, and the policy and the temperature are those of the loss."""
    loss_fn = OneWay(InfoNCE(Temperature(0.1, learnable=True), GloFND(B, alpha=0.3)))
    assert loss_fn.negatives is loss_fn.loss.negatives
    assert loss_fn.temperature is loss_fn.loss.temperature
    assert len(list(loss_fn.parameters())) == 1
    assert all(name.startswith("loss.") for name in loss_fn.state_dict())
    q, d, _ = embeddings()
    loss_fn(q, d, torch.arange(B))
    other = OneWay(InfoNCE(Temperature(0.1, learnable=True), GloFND(B, alpha=0.3)))
    other.load_state_dict(loss_fn.state_dict())
    torch.testing.assert_close(other(q, d, torch.arange(B)), loss_fn(q, d, torch.arange(B)))


def share(rank: int, world: int, of: Any) -> Any:
    count = len(of) // world
    return of[rank * count : (rank + 1) * count]


CALLS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "mnrl": (lambda: OneWay(InfoNCE(TAU)), {"h": True}),
    "blocks": (lambda: OneWay(InfoNCE(TAU), also=ALSO), {"h": True, "given_ids": True, "spaces": True}),  # type: ignore[arg-type]
    "own": (lambda: OneWay(InfoNCE(TAU), in_batch=False), {"h": True, "given_ids": True, "ids": True}),
    "policy": (
        lambda: OneWay(InfoNCE(TAU, GloFND(B, alpha=0.3) & PositiveAware(0.2), "attract"), also=ALSO),  # type: ignore[arg-type]
        {"h": True, "ids": True},
    ),
    "inside": (lambda: OneWay(InfoNCE(TAU, FNC(0.3), "attract_inside"), also=ALSO[:2]), {"h": True, "log_q": True}),  # type: ignore[arg-type]
    "guided": (lambda: OneWay(InfoNCE(TAU, Guided(0.1)), also=ALSO), {"h": True, "guide": True}),  # type: ignore[arg-type]
    "hardness": (lambda: OneWay(InfoNCE(TAU, hardness=Hardness(9.0, "given"))), {"h": True}),
    "hardness of others": (lambda: OneWay(InfoNCE(TAU, hardness=Hardness(9.0, "in_batch"))), {"h": True}),
    "dot": (lambda: OneWay(InfoNCE(3.0, similarity="dot")), {"h": True}),
    "sigmoid": (lambda: OneWay(Sigmoid(0.3, -2.0).double()), {"h": True}),
    "global": (lambda: OneWay(GlobalContrastive(B, TAU)), {"h": True, "ids": True}),
    "two ways": (lambda: TwoWay(InfoNCE(TAU)), {"h": True, "spaces": True, "given_ids": True}),
    "weights": (lambda: OneWay(InfoNCE(TAU)), {"weights": True}),
    "texts": (lambda: OneWay(InfoNCE(TAU)), {"texts": True}),
}


def run(rank: int, world: int, name: str, steps: int = 2) -> tuple[list[Tensor], list[Tensor], dict[str, float], Any]:
    """The last loss and its gradients on this rank's share, and what the tables hold."""
    build, wanted = CALLS[name]
    loss_fn = build()
    guides = [torch.randn(shape, generator=torch.Generator().manual_seed(9)) for shape in ((B, 3), (B, 3), (B, K, 3))]
    mine = functools.partial(share, rank, world)
    losses: list[Tensor] = []
    for step in range(steps):
        q, d, h = (mine(z.detach()).clone().requires_grad_() for z in embeddings(step))
        arguments: dict[str, Any] = {}
        if "h" in wanted:
            arguments["hard_negatives"] = h
        if "ids" in wanted:
            arguments["ids"] = torch.arange(B) if name != "own" else torch.tensor(DOCUMENT_IDS)
            arguments["ids"] = mine(arguments["ids"])
        if "spaces" in wanted:
            arguments["ids"] = (mine(QUERY_IDS), mine(DOCUMENT_IDS))
        if "texts" in wanted:
            arguments["ids"] = mine([f"text {each}" for each in DOCUMENT_IDS])
        if "given_ids" in wanted:
            arguments["hard_negative_ids"] = mine(GIVEN_IDS)
        if "log_q" in wanted:
            arguments["log_q"] = mine(torch.linspace(-4, -1, B).double())
            arguments["hard_negative_log_q"] = mine(torch.linspace(-4, -1, B * K).double().view(B, K))
        if "guide" in wanted:
            arguments["guide"] = tuple(mine(each).double() for each in guides)
        if "weights" in wanted:
            arguments["weights"] = mine(torch.linspace(0, 2, B).double())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses.append(loss_fn(q, d, **arguments))
    gradients = torch.autograd.grad(losses[-1], [q, d, *([h] if "h" in wanted else [])])
    tables = [policy.threshold for policy in loss_fn.policies() if isinstance(policy, GloFND)]
    tables += [loss_fn.loss.log_u.rows] if name == "global" else []
    return [loss.detach() for loss in losses], list(gradients), loss_fn.stats, tables


@every("name", CALLS)
def test_two_ranks_equal_one(name: str, two_ranks: Ranks) -> None:
    losses, gradients, _, tables = run(0, 1, name)
    parts = two_ranks(run, name)
    for step, loss in enumerate(losses):
        torch.testing.assert_close(torch.stack([part[0][step] for part in parts]).mean(), loss)
    for place, gradient in enumerate(gradients):
        torch.testing.assert_close(torch.cat([part[1][place] for part in parts]) / 2, gradient)
    for part in parts:
        for mine, table in zip(part[3], tables, strict=True):
            torch.testing.assert_close(mine, table)


def alone(rank: int, world: int) -> Tensor:
    q, d, h = (share(rank, world, z.detach()) for z in embeddings())
    return OneWay(InfoNCE(TAU), also=ALSO)(q, d, hard_negatives=h, gather=False)  # type: ignore[arg-type]


def test_a_rank_may_keep_to_itself(two_ranks: Ranks) -> None:
    for rank, loss in enumerate(two_ranks(alone)):
        torch.testing.assert_close(loss, alone_on_one(rank))


def alone_on_one(rank: int) -> Tensor:
    q, d, h = (share(rank, 2, z.detach()) for z in embeddings())
    return OneWay(InfoNCE(TAU), also=ALSO)(q, d, hard_negatives=h)  # type: ignore[arg-type]


def single_view(rank: int, world: int, inside: bool) -> tuple[Tensor, Tensor]:
    z = share(rank, world, embeddings()[0].detach()).clone().requires_grad_()
    labels = torch.tensor([0, 0, 1, 2, 1, 0, 3, 4])
    loss_fn = InfoNCE(TAU, Oracle(labels), "attract_inside" if inside else "attract")
    loss = loss_fn(z, None, share(rank, world, torch.arange(B)))
    return loss.detach(), torch.autograd.grad(loss, z)[0]


@pytest.mark.parametrize("inside", [False, True])
def test_one_view_a_sample_on_two_ranks(inside: bool, two_ranks: Ranks) -> None:
    loss, gradient = single_view(0, 1, inside)
    parts = two_ranks(single_view, inside)
    torch.testing.assert_close(torch.stack([part[0] for part in parts]).mean(), loss)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]) / 2, gradient)


def unlike(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """Two given negatives a query; of the first half of the queries the second one is padding, which rank 0 has not."""
    q, d, h = embeddings()
    ids = torch.arange(B)
    padded = torch.stack((ids + 20, torch.where(ids < B // 2, -1, ids + 40)), dim=1)
    columns = slice(0, 1) if world > 1 and rank == 0 else slice(0, 2)
    q = share(rank, world, q.detach()).clone().requires_grad_()
    of_rank = {
        "hard_negatives": share(rank, world, h)[:, columns],
        "hard_negative_ids": share(rank, world, padded)[:, columns],
    }
    loss = OneWay(InfoNCE(TAU))(q, share(rank, world, d), share(rank, world, ids), **of_rank)
    return loss.detach(), torch.autograd.grad(loss, q)[0]


def test_ranks_may_give_different_numbers_of_negatives(two_ranks: Ranks) -> None:
    loss, gradient = unlike(0, 1)
    parts = two_ranks(unlike)
    torch.testing.assert_close(torch.stack([part[0] for part in parts]).mean(), loss)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]) / 2, gradient)


def test_a_guide_needs_no_further_arguments_where_the_candidates_are_the_second_view() -> None:
    q, d, _ = embeddings()
    first, second = (torch.randn(B, 3, generator=torch.Generator().manual_seed(seed)).double() for seed in (1, 2))
    for candidates in (d, d.detach().clone()):
        loss = InfoNCE(TAU, Guided(0.1))(
            q, d, torch.arange(B), candidates=candidates, candidate_ids=torch.arange(B), guide=(first, second)
        )
        torch.testing.assert_close(loss, OneWay(InfoNCE(TAU, Guided(0.1)))(q, d, guide=(first, second)))
    with pytest.raises(ValueError, match="candidate_guide"):
        InfoNCE(TAU, Guided())(
            q, d, torch.arange(B), candidates=q, candidate_ids=torch.arange(B), guide=(first, second)
        )
