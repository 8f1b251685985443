"""Mined negatives: compared with a loop over all pairs, in every format, from every kind of input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from antipodes import mine, neighbour_search
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.mined_files import Format
from antipodes.encoders.loading import LoadedEncoder
from antipodes.encoders.text import BagOfWords
from antipodes.tables import read_table, records
from tests.cases import every
from tests.cli.command import antipodes


def unit(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def by_hand(
    queries: NDArray[np.float32],
    corpus: NDArray[np.float32],
    positives: list[list[int]],
    k: int,
    margin: float,
    relative: bool,
    ranks: tuple[int, int | None],
) -> tuple[list[list[int]], set[tuple[int, int, str]], float]:
    """Negatives, suspected candidates and the rate, by loops. Equal rows of the corpus are one document."""
    queries, corpus = unit(queries), unit(corpus)
    negatives, suspected, wrong, leading = [], set(), 0, 0

    def limit(score: float) -> float:
        return score - margin * (abs(score) if relative else 1)

    for place, (query, own) in enumerate(zip(queries, positives, strict=True)):
        seen = {corpus[each].tobytes() for each in own} | {query.tobytes()}
        candidates = []
        for row, document in enumerate(corpus):
            if document.tobytes() not in seen:
                seen.add(document.tobytes())
                candidates.append((-float(query @ document), row))
        lowest = min(float(query @ corpus[each]) for each in own)
        found: list[int] = []
        for rank, (score, row) in enumerate(sorted(candidates)):
            if rank < ranks[0] or (ranks[1] is not None and rank >= ranks[1]):
                continue
            near_query = -score > limit(lowest)
            near = any(float(corpus[row] @ corpus[each]) > limit(float(query @ corpus[each])) for each in own)
            if rank < ranks[0] + k:
                leading += 1
                wrong += near_query or near
            if near_query or near:
                if len(found) < k:
                    suspected.add(
                        (place, row, "both" if near_query and near else "query" if near_query else "positive")
                    )
            elif len(found) < k:
                found.append(row)
        negatives.append(found + [-1] * (k - len(found)))
    return negatives, suspected, wrong / leading


def example(seed: int, copies: bool = True) -> tuple[NDArray[np.float32], NDArray[np.float32], list[list[int]]]:
    draw = np.random.default_rng(seed)
    corpus = draw.standard_normal((90, 5)).astype(np.float32)
    if copies:
        corpus[70:] = corpus[:20]
    queries = np.concatenate((draw.standard_normal((20, 5)).astype(np.float32), corpus[30:40]))
    near = (unit(queries) @ unit(corpus).T).argsort(1)
    return queries, corpus, [near[row, -1 - row % 4 : -1].tolist() or [int(near[row, -2])] for row in range(30)]


@pytest.mark.filterwarnings("ignore:.* queries have fewer than")
@every("ranks", [(0, None), (3, None), (0, 9), (5, 20)])
@every(("margin", "relative"), [(0.05, True), (0.2, False), (-0.3, False)])
@every("copies", [True, False])
def test_negatives_are_those_of_a_loop(
    monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, int | None], margin: float, relative: bool, copies: bool
) -> None:
    monkeypatch.setattr(neighbour_search, "_BLOCK", 32)  # several tiles
    monkeypatch.setattr("antipodes.auditing.mining.QUERIES", 7)
    monkeypatch.setattr("antipodes.auditing.mining.NUMBERS", 1000)
    queries, corpus, positives = example(0, copies)
    mined = mine(queries, corpus, positives, k=4, margin=margin, relative=relative, ranks=ranks)
    indices, suspected, rate = by_hand(queries, corpus, positives, 4, margin, relative, ranks)
    assert mined.indices.tolist() == indices
    table = mined.suspected
    assert set(zip(*(table[name].tolist() for name in ("query", "document", "near")), strict=True)) == suspected
    assert len(table["query"]) == len(suspected)
    assert mined.false_negative_rate == pytest.approx(rate)
    assert mined.method == "exact"
    there = mined.indices >= 0
    expected = (unit(queries) @ unit(corpus).T)[there.nonzero()[0], mined.indices[there]]
    np.testing.assert_allclose(mined.scores[there], expected, atol=1e-6)
    assert np.isnan(mined.scores[~there]).all()


def test_the_margin_by_hand() -> None:
    """The positive has 0.8: a relative margin of 0.1 keeps up to 0.72, an absolute one up to 0.7."""

    def at(*cosines: float) -> NDArray[np.float32]:
        return np.array([(cosine, (1 - cosine**2) ** 0.5) for cosine in cosines], dtype=np.float32)

    query, corpus = at(1.0), at(0.8, 0.85, 0.71, 0.65)
    corpus[1:, 1] *= -1  # on the other side of the query, far from the positive
    options: dict[str, Any] = {"positives": [0], "k": 2, "margin": 0.1}
    mined = mine(query, corpus, **options)
    assert mined.indices.tolist() == [[2, 3]]
    assert {name: column.tolist() for name, column in mined.suspected.items() if name in ("document", "near")} == {
        "document": [1],
        "near": ["query"],
    }
    assert mined.false_negative_rate == 0.5  # one of the two nearest
    with pytest.warns(UserWarning, match="1 of 1 queries have fewer than 2 negatives"):
        assert mine(query, corpus, **options, relative=False).indices.tolist() == [[3, -1]]
    corpus[2:, 1] *= -1  # next to the positive
    with pytest.warns(UserWarning, match="fewer"):
        near = mine(query, corpus, **options)
    assert near.indices.tolist() == [[-1, -1]]
    assert near.suspected["near"].tolist() == ["query", "positive", "positive"]


def test_a_query_without_a_positive_gets_none() -> None:
    queries, corpus, positives = example(1)
    positives[3] = []
    with pytest.warns(UserWarning, match="1 of 30 queries have no positive"):
        mined = mine(queries, corpus, positives, k=2, ranks=(0, 60))
    assert mined.indices[3].tolist() == [-1, -1]
    assert 3 not in mined.suspected["query"]


TEXTS = ["how do I pay", "when is it due", "how do I pay", "pay the bill", "close my account", "open an account"]


def letters(texts: list[str]) -> NDArray[np.float32]:
    """How often every letter comes, as an encoder."""
    return np.array([[text.count(chr(each)) + 0.1 for each in range(97, 123)] for text in texts], dtype=np.float32)


@pytest.mark.filterwarnings("ignore:1 of 1 queries have fewer than")
def test_equal_texts_are_no_negatives() -> None:
    mined = mine([TEXTS[0]], TEXTS[1:], [2], encoder=letters, k=4, margin=-2.0, relative=False)
    assert sorted(mined.indices[0].tolist()) == [-1, 0, 3, 4]  # not 1, the query's own text, nor 2, its positive
    again = mine([TEXTS[0]], [*TEXTS[1:], "pay the bill", "close my account"], [2], encoder=letters, k=5, margin=-2.0)
    assert sorted(again.indices[0].tolist()) == [-1, -1, 0, 3, 4]  # copies of the positive and of a negative


def test_a_margin_that_many_positives_make_impossible_is_explained() -> None:
    draw = np.random.default_rng(0)
    corpus = draw.standard_normal((40, 6))
    positives = [[each for each in range(20) if each != row] for row in range(20)]
    with pytest.warns(UserWarning, match="20 of 20 queries .* 19 a query.* give margin=-2 and relative=False"):
        mine(corpus[:20], corpus, positives, k=4)
    mined = mine(corpus[:20], corpus, positives, k=4, margin=-2, relative=False)
    assert (mined.indices >= 20).all()  # all that no one lists


@pytest.mark.filterwarnings("ignore:.* queries have fewer than")
def test_queries_that_are_documents_too_are_embedded_once() -> None:
    encoder, lengths = LoadedEncoder([BagOfWords(vocabulary_size=500, width=16)], [None], "bag"), []
    encoder.encoders[0].register_forward_hook(lambda _, inputs, __: lengths.append(len(inputs[0])))
    texts = [*TEXTS, TEXTS[0]]
    mined = mine(texts, texts, [[1]] * len(texts), encoder=encoder, k=2, margin=-2.0, relative=False)
    assert sum(lengths) == len(set(TEXTS))
    vectors = encoder(texts).numpy()
    again = mine(vectors, vectors, [[1]] * len(texts), k=2, margin=-2.0, relative=False)
    assert mined.indices.tolist() == again.indices.tolist()


@pytest.mark.filterwarnings("ignore:.* queries have fewer than")
def test_rescoring_decides_by_its_own_scores() -> None:
    queries, corpus, positives = example(2, copies=False)
    asked: list[tuple[Any, Any]] = []

    def rescore(pairs: list[tuple[Any, Any]]) -> list[float]:
        asked.extend(pairs)
        return [float(query[0] * document[0]) for query, document in pairs]

    mined = mine(queries, corpus, positives, k=3, margin=0.1, relative=False, ranks=(0, 12), rescore=rescore)
    plain = mine(queries, corpus, positives, k=12, margin=-9.0, relative=False, ranks=(0, 12))
    assert len(asked) == 30 * 12 + sum(map(len, positives))
    units, documents = unit(queries), unit(corpus)
    for row, candidates in enumerate(plain.indices.tolist()):
        lowest = min(float(queries[row, 0] * corpus[each, 0]) for each in positives[row])
        scored = sorted((-float(queries[row, 0] * corpus[each, 0]), each) for each in candidates)
        kept = [
            each
            for score, each in scored
            if -score <= lowest - 0.1
            and all(documents[each] @ documents[own] <= units[row] @ documents[own] - 0.1 for own in positives[row])
        ]
        assert [each for each in mined.indices[row].tolist() if each >= 0] == kept[:3]
    with pytest.raises(ValueError, match="rescore must return a finite number for each of"):
        mine(queries, corpus, positives, rescore=lambda pairs: [0.0])


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def tables(folder: Path) -> tuple[Path, Path, Path]:
    """Two queries and a corpus of texts, as BEIR has them."""
    queries = write(folder / "queries.jsonl", *(json.dumps({"_id": f"q{n}", "text": TEXTS[n]}) for n in (0, 4)))
    documents = [{"_id": f"d{n}", "title": "FAQ" if n == 3 else "", "text": text} for n, text in enumerate(TEXTS)]
    corpus = write(folder / "corpus.jsonl", *map(json.dumps, documents))
    qrels = write(
        folder / "qrels.tsv", "query-id\tcorpus-id\tscore", "q0\td3\t1", "q4\td5\t1", "q4\td1\t0", "q9\td0\t1"
    )
    return queries, corpus, qrels


def test_every_kind_of_input(tmp_path: Path) -> None:
    queries, corpus, qrels = tables(tmp_path)
    options: dict[str, Any] = {"encoder": letters, "k": 2, "margin": -2.0}
    expected = mine([TEXTS[0], TEXTS[4]], [*TEXTS[:3], f"FAQ {TEXTS[3]}", *TEXTS[4:]], [3, 5], **options)
    assert mine(queries, corpus, qrels, **options).indices.tolist() == expected.indices.tolist()
    trec = write(tmp_path / "qrels.txt", "q0 0 d3 1", "q4 0 d5 1")
    columns = {"_id": ["q0", "q4"], "text": [TEXTS[0], TEXTS[4]]}
    for given in (
        trec,
        {"q0": "d3", "q4": ["d5"]},
        ["d3", "d5"],
        [["d3"], ["d5"]],
        np.array([3, 5]),
        torch.tensor([3, 5]),
    ):
        assert mine(columns, corpus, given, **options).indices.tolist() == expected.indices.tolist()
    texts = write(tmp_path / "corpus.txt", *[*TEXTS[:3], f"FAQ {TEXTS[3]}", *TEXTS[4:]])
    assert mine(queries, texts, [3, 5], **options).indices.tolist() == expected.indices.tolist()
    vectors, rows = letters([TEXTS[0], TEXTS[4]]), letters([*TEXTS[:3], f"FAQ {TEXTS[3]}", *TEXTS[4:]])
    np.save(tmp_path / "queries.npy", vectors)
    np.savez(tmp_path / "corpus.npz", embeddings=rows, paths=[f"d{n}" for n in range(6)])
    embedded = write(
        tmp_path / "embedded.jsonl",
        *(json.dumps({"id": f"d{n}", "embedding": row.tolist()}) for n, row in enumerate(rows)),
    )
    for documents in (tmp_path / "corpus.npz", rows, torch.from_numpy(rows), embedded, Vectors(rows, tuple("abcdef"))):
        assert mine(tmp_path / "queries.npy", documents, [3, 5], k=2, margin=-2.0).indices[1].tolist() == [
            int(each) for each in expected.indices[1]
        ]
    groups = write(tmp_path / "groups.csv", "row,group", *(f"{row},{row // 2}" for row in range(6)))
    others = write(tmp_path / "pairs.csv", "row,other", "0,1", "2,3", "4,5")
    found = [mine(rows, rows, each, k=2, margin=-2.0).indices.tolist() for each in (groups, others, [1, 0, 3, 2, 5, 4])]
    assert found[0] == found[1] == found[2]


def test_photos(tmp_path: Path) -> None:
    from PIL import Image

    paths = []
    for row in range(6):
        paths.append(tmp_path / f"{row}.png")
        Image.effect_noise((40, 40), 10.0 * (row + 1)).convert("RGB").save(paths[-1])
    mined = mine(paths[:2], paths, [2, 3], encoder="patches", k=2, margin=-2.0, relative=False)
    assert (mined.indices >= 0).all()
    assert mined.queries.shown(1) == str(paths[1])
    assert all(own not in row for own, row in zip((2, 3), mined.indices.tolist(), strict=True))
    assert all(row not in mined.indices[row].tolist() for row in range(2))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_files_of_every_format(tmp_path: Path, suffix: str) -> None:
    queries, corpus, _ = tables(tmp_path)
    mined = mine(queries, corpus, {"q0": ["d3", "d5"], "q4": ["d5"]}, encoder=letters, k=2, margin=-2.0)

    def saved(format: Format) -> list[dict[str, Any]]:
        path = tmp_path / f"negatives{suffix}"
        mined.save(path, format=format)  # over an earlier result
        if suffix == ".jsonl":
            return [json.loads(line) for line in path.read_text().splitlines()]
        rows: list[dict[str, Any]] = records(read_table(path))
        return rows

    texts = [*TEXTS[:3], f"FAQ {TEXTS[3]}", *TEXTS[4:]]
    negatives = [[texts[each] for each in row] for row in mined.indices.tolist()]
    anchors = [
        (TEXTS[0], texts[3], negatives[0]),
        (TEXTS[0], texts[5], negatives[0]),
        (TEXTS[4], texts[5], negatives[1]),
    ]
    assert saved("triplet") == [
        {"anchor": query, "positive": own, "negative": each} for query, own, some in anchors for each in some
    ]
    assert saved("n-tuple") == [
        {"anchor": query, "positive": own, "negative_1": some[0], "negative_2": some[1]} for query, own, some in anchors
    ]
    assert saved("list") == [
        {"query": TEXTS[0], "pos": [texts[3], texts[5]], "neg": negatives[0]},
        {"query": TEXTS[4], "pos": [texts[5]], "neg": negatives[1]},
    ]
    assert (tmp_path / f"negatives.suspected{suffix}").is_file()


def test_other_files_stay(tmp_path: Path) -> None:
    queries, corpus, _ = tables(tmp_path)
    mined = mine(queries, corpus, [3, 5], encoder=letters, k=2, margin=-2.0)
    for name in ("negatives.jsonl", "negatives.suspected.jsonl"):
        foreign = write(tmp_path / name, '{"name": "something else"}')
        with pytest.raises(ValueError, match=name):
            mined.save(tmp_path / "negatives.jsonl")
        assert json.loads(foreign.read_text()) == {"name": "something else"}
        foreign.unlink()
    with pytest.raises(ValueError, match=r"should end in \.parquet or \.jsonl"):
        mined.save(tmp_path / "negatives.csv")
    with pytest.raises(ValueError, match="format must be one of triplet, n-tuple, list"):
        mined.save(tmp_path / "negatives.jsonl", format="pairs")  # type: ignore[arg-type]


@every(
    ("change", "sentence"),
    [
        ({"k": 0}, "k must be a whole number of at least 1"),
        ({"margin": float("nan")}, "margin must be a number"),
        ({"ranks": (5, 5)}, "ranks must end after they begin, got 5 to 5"),
        ({"ranks": 10}, "ranks must be two"),
        ({"rescore": 3}, "rescore must be a function of pairs"),
        ({"queries": []}, "queries must be texts, photos, vectors"),
        ({"queries": 3}, "queries must be texts, photos, vectors"),
        ({"queries": np.zeros((2, 3), dtype=np.float32)}, "queries have 3 numbers each and the corpus 26"),
        ({"corpus": Path("nowhere.jsonl")}, "nowhere.jsonl"),
        ({"corpus": {"id": ["a", "a"], "text": ["x", "y"]}}, "corpus has 'a' twice in the column id"),
        ({"corpus": {"id": ["a", "b"], "colour": ["x", "y"]}}, "corpus must have a column of texts .* got id, colour"),
        ({"corpus": {"text": ["x", None]}}, "corpus has no text in the column text of row 2"),
        ({"positives": [0]}, "positives must be .* for each of the 2 queries, got 1"),
        ({"positives": [0, 9]}, "positives of query 1 name 9, and the corpus has 6 documents"),
        ({"positives": ["0", "x"]}, "positives of query 1 name 'x'"),
        ({"positives": {"7": "0"}}, "positives names none of the queries, such as '0'"),
        ({"positives": {"0": "x"}}, "positives names 1 documents that the corpus does not have, such as 'x'"),
        ({"positives": [[], []]}, "positives name no pair"),
        ({"positives": 3}, "positives must be .* got a int"),
    ],
)
def test_refusals(change: dict[str, Any], sentence: str) -> None:
    call: dict[str, Any] = {"queries": [TEXTS[0], TEXTS[4]], "corpus": TEXTS, "positives": [3, 5], "encoder": letters}
    with pytest.raises(ValueError, match=sentence):
        mine(**{**call, **change})


def test_the_command(tmp_path: Path) -> None:
    _, _, qrels = tables(tmp_path)
    np.savez(tmp_path / "queries.npz", embeddings=letters([TEXTS[0], TEXTS[4]]), paths=["q0", "q4"])
    np.savez(tmp_path / "corpus.npz", embeddings=letters(TEXTS), paths=[f"d{n}" for n in range(6)])
    call = [
        "mine",
        tmp_path / "queries.npz",
        tmp_path / "corpus.npz",
        "--positives",
        qrels,
        "--margin",
        "-2",
        "--k",
        "2",
    ]
    out = tmp_path / "negatives.parquet"
    done = antipodes(*call, "--out", out, "--ranks", "0:4", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["queries"], facts["documents"], facts["negatives"], facts["search"]) == (2, 6, 4, "exact")
    assert [row["anchor"] for row in records(read_table(out))] == ["q0", "q0", "q4", "q4"]
    for options, sentence in (
        (["--out", tmp_path / "a.csv"], "should end in"),
        (["--out", out, "--ranks", "5"], "--ranks must be two whole numbers"),
        (["--out", out, "--format", "pairs"], "--format must be one of"),
        (["--out", out, "--k", "0"], "k must be"),
    ):
        wrong = antipodes(*call, *options)
        assert wrong.returncode == 2
        assert sentence in wrong.stderr
        assert len(wrong.stderr.strip().splitlines()) == 1
