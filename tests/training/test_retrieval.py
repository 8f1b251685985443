"""`train --method retrieval` as a user calls it: tables, BEIR, one encoder or two, resume, frozen encoders."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import antipodes
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.opening import open_method
from tests.cli.command import here, refused
from tests.training.test_resume import equal

TINY = ["--encoder", "bag-of-words", "--encoder.width", 16, "--batch_size", 16, "--learning_rate", 0.3]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions with answers in other words, which training has to learn, and a given negative in most rows."""
    path, draw = tmp_path_factory.mktemp("pairs") / "pairs.csv", random.Random(0)
    words = [f"w{number}" for number in range(80)]
    lines = ["question,answer,negative_1,split,source_file"]
    for place in range(96):
        query, answer = (f"{language}{place % 32} {' '.join(draw.choices(words, k=2))}" for language in "qa")
        negative = " ".join(draw.choices(words, k=5)) if place % 5 else ""
        lines.append(f"{query},{answer},{negative},{'test' if place >= 64 else 'train'},x")
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def trained(table: Path) -> Path:
    run = table.parent / "run"
    code, _, errors = here(
        "train", "--method", "retrieval", "--data", table, *TINY, "--epochs", 20, "--out", run, "--negatives", "known"
    )
    assert code == 0, errors
    assert "not used: source_file" in errors
    assert "64 rows of query and document with up to 1 negatives" in errors
    return run


def test_training_finds_more_of_the_held_out_answers(table: Path, trained: Path) -> None:
    code, text, errors = here("evaluate", trained, "--json")  # without labels, retrieval is the default
    assert code == 0, errors
    (scores,) = json.loads(text).values()
    assert set(scores) == {"nDCG@10", "MRR@10", "MAP@R", "recall@1", "recall@5", "recall@10"}
    untrained = table.parent / "untrained"
    here("train", "--method", "retrieval", "--data", table, *TINY, "--epochs", 0, "--out", untrained)
    (before,) = json.loads(here("evaluate", untrained, "--protocol", "retrieval", "--json")[1]).values()
    assert scores["MRR@10"] > before["MRR@10"] + 5
    encoder = antipodes.load(trained)  # one encoder for both
    rows = [line.split(",") for line in table.read_text().splitlines()[65:]]
    queries, answers = (encoder([row[place] for row in rows]) for place in (0, 1))
    similarity = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(answers).T
    first = (similarity.argmax(1) == torch.arange(len(rows))).double().mean()
    assert scores["recall@1"] == pytest.approx(100 * float(first), abs=1e-3)


def test_a_resumed_run_ends_with_the_same_weights(table: Path, trained: Path, tmp_path: Path) -> None:
    call = ["train", "--method", "retrieval", "--data", table, *TINY, "--negatives", "known", "--schedule", "constant"]
    for name, epochs in (("whole", 2), ("part", 1)):
        assert here(*call, "--epochs", epochs, "--warmup", 0, "--out", tmp_path / name)[0] == 0
    assert here("train", "--resume", tmp_path / "part", "--epochs", 2)[0] == 0
    states = [load_checkpoint(Run(tmp_path / name).last)["model"] for name in ("whole", "part")]
    assert equal(*states)


def test_two_encoders_and_frozen_ones(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    call = ["train", "--method", "retrieval", "--data", table, *TINY, "--epochs", 1]
    code, _, errors = here(
        *call, "--encoders.document", "bag-of-words", "--encoders.document.width", 16, "--out", tmp_path / "two"
    )
    assert code == 0, errors
    assert {path.name for path in (tmp_path / "two").glob("encoder*.safetensors")} == {
        "encoder-query.safetensors",
        "encoder-document.safetensors",
    }
    method, _ = open_method(Run(tmp_path / "two"))
    assert method.network["query"] is not method.network["document"]
    frozen = [*call, "--freeze", "[query,document]", "--head.kind", "linear", "--head.dim", 8]
    assert here(*frozen, "--out", tmp_path / "frozen")[0] == 0
    assert "embedding" in here(*frozen, "--data.negatives", 0, "--out", tmp_path / "fewer")[2]
    assert "retrieval" in refused("train", "--method", "simclr", "--data", table, *TINY, "--out", tmp_path / "wrong")


def test_a_folder_of_beir_is_searched_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": f"t{i % 9}", "text": f"a{i} b{i % 7}"} for i in range(50)]
    queries = [{"_id": f"q{i}", "text": f"b{i % 7} a{i}"} for i in range(30)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for split, some in (("train", range(20)), ("test", range(20, 30))):
        lines = [f"q{i}\td{i + shift}\t{2 - shift}" for i in some for shift in (0, 1, 2)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    code, _, errors = here(
        "train", "--method", "retrieval", "--data", folder, *TINY, "--epochs", 1, "--out", tmp_path / "run"
    )
    assert code == 0, errors
    assert "40 rows of query and document" in errors  # the score 0 is no pair
    code, text, errors = here(
        "evaluate", tmp_path / "run", "--protocol", "retrieval", "--retrieval.cutoffs", "[1,100]", "--json"
    )
    assert code == 0, errors
    (scores,) = json.loads(text).values()
    assert scores["recall@100"] == 100
    assert scores["recall@1"] <= 50  # of two relevant documents one is first
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\tmany\n")
    assert "score in row 1" in refused(
        "train", "--method", "retrieval", "--data", folder, *TINY, "--out", tmp_path / "x"
    )
