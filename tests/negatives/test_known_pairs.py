"""Pairs by identity: found as a loop over all pairs finds them, joined as a search by hand joins them."""

from __future__ import annotations

import copy
import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antipodes import InfoNCE, Known, OneWay, Pairs, TwoWay, content_ids
from antipodes.negatives.known_pairs import PairTable, make_table
from antipodes.pairs import Block
from tests.cases import every
from tests.ranks import Ranks

numbers = st.integers(0, 6)


def found(table: PairTable, queries: list[int], documents: list[int]) -> list[tuple[int, int]]:
    positions = table.find(torch.tensor(queries, dtype=torch.int64), torch.tensor(documents, dtype=torch.int64))
    return list(zip(*(each.tolist() for each in positions), strict=True))


@given(st.lists(st.tuples(numbers, numbers), max_size=20), st.lists(numbers, max_size=9), st.lists(numbers, max_size=9))
def test_every_listed_pair_of_a_batch_is_found_once(
    listed: list[tuple[int, int]], queries: list[int], documents: list[int]
) -> None:
    table = make_table([query for query, _ in listed], [document for _, document in listed])
    expected = [(i, k) for i, q in enumerate(queries) for k, d in enumerate(documents) if (q, d) in listed]
    assert sorted(found(table, queries, documents)) == expected


def test_empty_slots_match_nothing() -> None:
    assert found(make_table([0, 0], [0, 1]), [-1, 0], [-1, 0, -1]) == [(1, 1)]
    assert found(make_table([], []), [0], [0]) == []


def test_positions_are_those_of_anchors_and_candidates() -> None:
    table = make_table(["ann", "bob"], ["tea", "milk"])
    queries, documents = content_ids(["ann", "eve", "bob"]), content_ids(["milk", "tea"])
    one = table.listed(queries, documents)
    assert (one.anchors.tolist(), one.candidates.tolist()) == ([0, 2], [1, 0])
    other = table.listed(queries, documents, anchors_are_queries=False)
    assert (other.anchors.tolist(), other.candidates.tolist()) == ([1, 0], [0, 2])


def components_by_hand(pairs: list[tuple[int, int]]) -> list[set[tuple[str, int]]]:
    groups: list[set[tuple[str, int]]] = []
    for query, document in pairs:
        group: set[tuple[str, int]] = {("query", query), ("document", document)}
        for other in [each for each in groups if each & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    return groups


@pytest.mark.filterwarnings("ignore:closure=True joins")
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40))
def test_closure_finds_connected_components(pairs: list[tuple[int, int]]) -> None:
    table = make_table([query for query, _ in pairs], [document for _, document in pairs], closure=True)
    assert table.closure
    every = torch.arange(32)
    of = {
        **{("query", place): group for place, group in enumerate(table.number_queries(every).tolist())},
        **{("document", place): group for place, group in enumerate(table.number_documents(every).tolist())},
    }
    expected = components_by_hand(pairs)
    for one, group in of.items():
        home = next((each for each in expected if one in each), None)
        assert (group < 0) == (home is None)
        assert {other for other, number in of.items() if number == group >= 0} == (home or set())


def test_a_long_chain_is_one_component() -> None:
    links = torch.randperm(20_000, generator=torch.Generator().manual_seed(0))
    queries, documents = torch.cat((links, links[1:])), torch.cat((links, links[:-1]))
    with pytest.warns(UserWarning, match=r"joins 39999 of 39999 pairs \(100%\)"):
        table = PairTable(queries, documents, closure=True)
    assert table.number_queries(links).unique().tolist() == [0]


def test_closure_warns_beyond_a_tenth_only() -> None:
    pairs = [(place // 2, place) for place in range(20)]  # ten components of two pairs: a tenth each
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Known.from_pairs(*zip(*pairs, strict=True), closure=True)
    with pytest.warns(UserWarning, match=r"joins 3 of 21 pairs \(14%\) .* leave closure out"):
        Known.from_pairs(*zip(*pairs, (0, 40), strict=True), closure=True)


def test_memory_is_linear_in_the_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(2**62, (2_000,), generator=generator)[torch.randint(2_000, (100_000,), generator=generator)]
    documents = torch.randint(2**62, (9_000,), generator=generator)[
        torch.randint(9_000, (100_000,), generator=generator)
    ]
    policy = Known.from_pairs(queries, documents)
    state = policy.state_dict()
    assert sum(each.numel() * each.element_size() for each in state.values()) < 8 * 100_000
    both = copy.deepcopy(policy)
    assert both.table is policy.table


def test_it_is_saved() -> None:
    policy, other = Known.from_pairs([5, 5, 6], [1, 2, 2]), Known.from_pairs([7, 8, 8], [1, 2, 1])
    other.load_state_dict(policy.state_dict())
    assert other.table is not None
    assert found(other.table, [5, 6, 7], [1, 2]) == [(0, 0), (0, 1), (1, 1)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_files_of_every_kind(tmp_path: Path) -> None:
    lines = ["q1\td1\t1", "q1\td2\t0", "q2\td2\t2"]
    swapped = [f"{score},{document},x,{query}" for query, document, score in (line.split() for line in lines)]
    judged = ["q1 0 d1 1", "q1 0 d2 0", "q2\t0\td2\t2", ""]
    rows = [dict(zip(("query-id", "corpus-id", "score"), line.split("\t"), strict=True)) for line in lines]
    files = [
        write(tmp_path / "beir.tsv", "query-id\tcorpus-id\tscore", *lines),
        write(tmp_path / "a.csv", "score,document,split,query_id", *swapped),
        write(tmp_path / "b.csv", "query,document", "q1,d1", "q2,d2"),
        write(tmp_path / "c.csv", "user,item", "q1,d1", "", "q2,d2"),
        write(tmp_path / "trec.txt", *judged),
        write(tmp_path / "trec.qrels", *judged),
        write(tmp_path / "trec.tsv", *judged),
        write(tmp_path / "a.jsonl", *(json.dumps(row | {"score": int(row["score"]), "more": None}) for row in rows)),
    ]  # fmt: skip
    files.append(tmp_path / "packed.tsv.gz")
    with gzip.open(files[-1], "wt") as file:
        file.write(files[0].read_text())
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    files.append(tmp_path / "a.parquet")
    columns = {"query-id": ["q1", "q1", "q2"], "corpus-id": ["d1", "d2", "d2"], "score": [1, 0, 2]}
    parquet.write_table(pyarrow.table(columns), files[-1])
    queries, documents = content_ids(["q2", "q1"]).tolist(), content_ids(["d1", "d2"]).tolist()
    for path in files:
        for policy in (Known.read(path), Known(str(path))):
            assert policy.table is not None
            assert found(policy.table, queries, documents) == [(0, 1), (1, 0)], path
    with pytest.warns(UserWarning, match="closure=True joins 1 of 2"):
        closed = Known.read(files[0], closure=True)
    assert closed.table is not None
    assert closed.table.closure


def test_an_identity_goes_before_the_text_of_its_query(tmp_path: Path) -> None:
    policy = Known.read(write(tmp_path / "a.csv", "query,query-id,document,corpus-id", "how?,7,so,9"))
    assert policy.table is not None
    assert found(policy.table, [7], [9]) == [(0, 0)]


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.filterwarnings("ignore:closure=True joins")
def test_whole_numbers_in_a_file_of_text_are_numbers_and_texts(tmp_path: Path, closure: bool) -> None:
    table = Known.read(write(tmp_path / "a.tsv", "3 0 12 1", "12 0 a7 1"), closure=closure).table
    assert table is not None
    twelve, of_twelve = content_ids(["12", "3"]).tolist(), content_ids(["12", "a7"]).tolist()
    assert table.number_queries(torch.tensor([12, twelve[0]])).unique().numel() == 1
    assert table.number_queries(torch.tensor([3, twelve[1]])).unique().numel() == 1
    assert (table.number_documents(torch.tensor([12])) < 0).all()  # the other document is no number
    if not closure:
        assert found(table, [3, *twelve], of_twelve) == [(0, 0), (1, 1), (2, 0)]
    typed = Known.read(write(tmp_path / "a.jsonl", '{"user": 3, "item": 4}'), closure=closure).table
    assert typed is not None
    assert (typed.number_queries(twelve_of_text := content_ids(["3"])) < 0).all(), twelve_of_text


def test_refusals_of_files(tmp_path: Path) -> None:
    for path, sentence in (
        (
            write(tmp_path / "a.csv", "query,score", "1,1"),
            "must have columns .* query and document .* got query, score",
        ),
        (write(tmp_path / "b.csv", "query,document,score", "1,2,much"), "column score of .*b.csv must be numbers"),
        (write(tmp_path / "c.csv", "query,document,score", "1,2,0"), "c.csv lists no pair with a score above 0"),
        (write(tmp_path / "d.csv", "query,document"), "d.csv lists no pair"),
        (write(tmp_path / "e.csv", "query,document", "1,2", "3,"), "e.csv: a pair has no value .* documents: the 2."),
        (write(tmp_path / "f.tsv", "1 0 2 1", "1 0 2"), "line 2 of .*f.tsv is no judgement"),
        (write(tmp_path / "g.jsonl", '{"query": 1}', "{"), "line 2 of .*g.jsonl is no JSON"),
        (write(tmp_path / "h.jsonl", "[1, 2]"), "line 1 of .*h.jsonl must be a JSON object"),
        (write(tmp_path / "i.jsonl", '{"query": -1, "document": 2}'), r"i.jsonl: queries must be in 0\.\.2\^63-1"),
        (
            write(tmp_path / "j.jsonl", '{"query": 1, "document": 2}', '{"query": "a", "document": 2}'),
            "all of one kind",
        ),
        (write(tmp_path / "k.xml", "x"), "are read from .*k.xml"),
        (tmp_path / "none.tsv", "none.tsv does not exist"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Known.read(path)
    with pytest.raises(ValueError, match="lists queries and documents by identity: leave pairs of rows out"):
        Known(write(tmp_path / "l.csv", "query,document", "1,2"), pairs=[[0, 1]])
    with pytest.raises(ValueError, match="leave it out"):
        Known.read(write(tmp_path / "m.csv", "row,group", "1,2"), closure=True)


@every(
    ("queries", "documents", "sentence"),
    [
        ([1, 2], [1], "queries and documents must be equally many, .* got 2 and 1"),
        ([0.5], [1], "queries must be whole numbers or texts"),
        ([1], [-1], r"documents must be in 0\.\.2\^63-1"),
        ([1, "a"], [1, 2], "queries must be whole numbers or texts, all of one kind"),
        ("ab", [1, 2], "queries must be"),
        (np.zeros((2, 2)), [1, 2], "queries must be"),
    ],
)
def test_refusals(queries: Any, documents: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Known.from_pairs(queries, documents)


QUERIES, DOCUMENTS = [3, 5, 5, 8, 9, 3], ["a", "b", "c", "a", "d", "e"]
LISTED = [(3, "b"), (5, "d"), (9, "a"), (7, "z"), (8, "e"), (3, "a")]


def vectors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(2, 6, 5, generator=generator, dtype=dtype)
    return queries, documents, torch.randn(6, 2, 5, generator=generator, dtype=dtype)


def listed_policy(closure: bool = False) -> Known:
    return Known.from_pairs([query for query, _ in LISTED], [document for _, document in LISTED], closure=closure)


def is_known(query: int, document: str) -> bool:
    return (query, document) in LISTED


def same(i: int, k: int) -> bool:
    return QUERIES[i] == QUERIES[k] or DOCUMENTS[i] == DOCUMENTS[k]


def dense(blocks: tuple[str, ...], attract: bool = False) -> Tensor:
    """The loss of each query by loops: a document is no negative of a query that it is listed with."""
    queries, documents, given = (torch.nn.functional.normalize(each, dim=-1) for each in vectors())
    hard = given.flatten(0, 1)
    losses = []
    for i in range(6):
        positive = queries[i] @ documents[i] / 0.2
        logits, pulled = [positive], [positive]
        for block in ("query_to_document", *blocks):
            anchor = queries[i] if block.startswith("query") else documents[i]
            to_queries = block.endswith("query")
            for k in range(6):
                counts_again = block == "document_to_query" and k == i
                if same(i, k) and not counts_again:
                    continue
                logit = anchor @ (queries[k] if to_queries else documents[k]) / 0.2
                if is_known(QUERIES[k], DOCUMENTS[i]) if to_queries else is_known(QUERIES[i], DOCUMENTS[k]):
                    if not attract:
                        continue
                    pulled.append(logit)
                logits.append(logit)
            if block in ("query_to_document", "document_to_document"):
                own = {2 * i, 2 * i + 1} if block == "document_to_document" else set()
                logits += [anchor @ hard[k] / 0.2 for k in range(12) if k not in own]
        losses.append(torch.stack(logits).logsumexp(0) - torch.stack(pulled).mean())
    return torch.stack(losses)


@pytest.mark.parametrize("attract", [False, True])
def test_queries_and_documents_of_one_way_equal_the_dense_formula(attract: bool) -> None:
    queries, documents, given = vectors()
    loss_fn = OneWay(InfoNCE(0.2, listed_policy(), "attract" if attract else "eliminate", reduction="none"))
    ids = (torch.tensor(QUERIES), DOCUMENTS)
    torch.testing.assert_close(loss_fn(queries, documents, ids, hard_negatives=given), dense((), attract))


@pytest.mark.parametrize("block", ["query_to_query", "document_to_document", "positive_to_positive"])
def test_further_blocks_ask_what_answers_the_query(block: Block) -> None:
    queries, documents, given = vectors()
    loss_fn = OneWay(InfoNCE(0.2, listed_policy(), reduction="none"), also=(block,))
    loss = loss_fn(queries, documents, (torch.tensor(QUERIES), DOCUMENTS), hard_negatives=given)
    torch.testing.assert_close(loss, dense((block,)))


def test_two_way_looks_in_both_directions() -> None:
    queries, documents, _ = vectors()
    clip = TwoWay(InfoNCE(0.2, listed_policy(), reduction="none"))
    loss = clip(queries, documents, (QUERIES, DOCUMENTS))
    there, back = [], []
    q, d = (torch.nn.functional.normalize(each, dim=1) for each in (queries, documents))
    s = q @ d.T / 0.2
    for i in range(6):
        theirs = [k for k in range(6) if k == i or not (same(i, k) or is_known(QUERIES[i], DOCUMENTS[k]))]
        ours = [k for k in range(6) if k == i or not (same(i, k) or is_known(QUERIES[k], DOCUMENTS[i]))]
        there.append(s[i, theirs].logsumexp(0) - s[i, i])
        back.append(s[ours, i].logsumexp(0) - s[i, i])
    torch.testing.assert_close(loss, (torch.stack(there) + torch.stack(back)) / 2)
    one, other = clip.policies()
    assert isinstance(one, Known)
    assert isinstance(other, Known)
    assert one.table is other.table


@pytest.mark.filterwarnings("ignore:closure=True joins")
def test_components_are_groups() -> None:
    queries, documents, _ = vectors()
    ids = (QUERIES, DOCUMENTS)
    names = {name: place for place, name in enumerate("abcdez")}
    components = components_by_hand([(query, names[document]) for query, document in LISTED])
    of = [next((n for n, each in enumerate(components) if ("query", query) in each), -1) for query in QUERIES]
    to = [
        next((n for n, each in enumerate(components) if ("document", "abcdez".index(d)) in each), -1) for d in DOCUMENTS
    ]
    s = torch.nn.functional.normalize(queries, dim=1) @ torch.nn.functional.normalize(documents, dim=1).T / 0.2
    expected = []
    for i in range(6):
        kept = [k for k in range(6) if k == i or not (same(i, k) or to[k] in {of[i], to[i]} - {-1})]
        expected.append(s[i, kept].logsumexp(0) - s[i, i])
    loss = OneWay(InfoNCE(0.2, listed_policy(closure=True), reduction="none"))(queries, documents, ids)
    torch.testing.assert_close(loss, torch.stack(expected))


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
def test_everything_listed_stays_finite() -> None:
    queries, documents, _ = (each.requires_grad_() for each in vectors())
    every = [(query, document) for query in range(6) for document in range(6)]
    loss_fn = OneWay(InfoNCE(0.2, Known.from_pairs(*zip(*every, strict=True))))
    loss = loss_fn(queries, documents, (list(range(6)), list(range(6))))
    assert loss.item() == 0
    assert loss_fn.stats["kept_per_anchor"] == 0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (queries, documents)))


def one_step(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    part = slice(6 * rank // world_size, 6 * (rank + 1) // world_size)
    queries, documents, given = (each[part].clone().requires_grad_() for each in vectors())
    loss_fn = OneWay(InfoNCE(0.2, listed_policy()), also=("query_to_query", "document_to_document"))
    loss = loss_fn(queries, documents, (QUERIES[part], DOCUMENTS[part]), hard_negatives=given)
    gradients = torch.autograd.grad(loss, (queries, documents))
    return loss.detach() / world_size, torch.stack(gradients) / world_size


def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    loss, gradient = one_step(0, 1)
    (first_loss, first), (second_loss, second) = two_ranks(one_step)
    torch.testing.assert_close(first_loss + second_loss, loss)
    torch.testing.assert_close(torch.cat((first, second), dim=1), gradient)


def test_one_space_of_identity_is_refused() -> None:
    queries, documents, _ = vectors()
    for call in (
        lambda: OneWay(InfoNCE(0.2, listed_policy()))(queries, documents, torch.arange(6)),
        lambda: OneWay(InfoNCE(0.2, listed_policy()))(queries, documents),
        lambda: InfoNCE(0.2, listed_policy())(queries, documents, torch.arange(6)),
        lambda: listed_policy().flags(Pairs(torch.eye(2), torch.arange(2), torch.ones(2))),
    ):
        with pytest.raises(ValueError, match=r"ids=\(query_ids, document_ids\)"):
            call()
