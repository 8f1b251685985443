"""Runs on texts by the command line: pairs are evaluated, towers embed, columns that are not read are named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

import antipodes
from antipodes.auditing.embeddings import read_embeddings
from antipodes.data import open_dataset
from tests.cli.command import here, refused

TINY = ["--encoder", "bag-of-words", "--batch_size", 16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    words = [f"word{number}" for number in range(60)]
    texts = [" ".join(draw.choices(words, k=8)) for _ in range(48)]
    with (folder / "pairs.jsonl").open("w") as file:
        for place, text in enumerate(texts):
            row = {"query": text, "document": f"{text} more", "negative": "x", "split": "train", "note": place}
            file.write(json.dumps(row) + "\n")
    (folder / "texts.txt").write_text("\n".join(texts))
    return folder


@pytest.fixture(scope="module")
def pairs(folder: Path) -> Path:
    run = folder / "pairs"
    code, _, errors = here(
        "train", "--method", "clip", "--data", folder / "pairs.jsonl", *TINY, "--epochs", 2, "--out", run
    )
    assert code == 0, errors
    assert "not used: note" in errors
    assert "equal" not in errors
    return run


def test_a_run_on_pairs_of_texts_is_evaluated(pairs: Path) -> None:
    code, text, errors = here("evaluate", pairs, "--protocol", "retrieval", "--json")
    assert code == 0, errors
    (scores,) = json.loads(text).values()
    assert set(scores) == {"nDCG@10", "MRR@10", "MAP@R", "recall@1", "recall@5", "recall@10"}
    vectors = [
        antipodes.load(pairs, tower, embeddings=True)(list(open_dataset(str(pairs) + ".jsonl").corpus(tower)))
        for tower in ("query", "document")
    ]
    similarity = vectors[0] @ vectors[1].T  # query i belongs to document i
    ranks = (similarity > similarity.diagonal()[:, None]).sum(1)
    assert scores["recall@5"] == pytest.approx(100 * (ranks < 5).double().mean().item(), abs=1e-3)
    assert here("evaluate", pairs, "--json")[1] == text  # without labels it is the default


def test_each_tower_embeds_texts(folder: Path, pairs: Path, tmp_path: Path) -> None:
    assert "tower" in refused("embed", pairs, "--out", tmp_path / "a.npz")
    vectors = {}
    for tower in ("query", "document"):
        assert here("embed", pairs, folder / "texts.txt", "--tower", tower, "--out", tmp_path / f"{tower}.npz")[0] == 0
        vectors[tower] = read_embeddings(tmp_path / f"{tower}.npz")
        assert vectors[tower].embeddings.shape[0] == 48
        assert vectors[tower].paths[3].endswith("texts.txt/3")
    assert not np.array_equal(vectors["query"].embeddings, vectors["document"].embeddings)
    code, text, errors = here("embed", pairs, "--tower", "query", "--out", tmp_path / "own.npz", "--json")
    assert code == 0, errors
    assert json.loads(text)["vectors"] == 48
    np.testing.assert_array_equal(read_embeddings(tmp_path / "own.npz").embeddings, vectors["query"].embeddings)
    assert "nonsense" in refused("embed", pairs, "--tower", "nonsense", "--out", tmp_path / "x.npz")
    (tmp_path / "photos").mkdir()
    assert refused("embed", pairs, folder / "pairs", "--tower", "query", "--out", tmp_path / "x.npz")


def test_two_equal_views_of_texts_are_warned_of(folder: Path, tmp_path: Path) -> None:
    call = ["train", "--method", "simclr", "--data", folder / "texts.txt", *TINY, "--epochs", 1]
    code, _, errors = here(*call, "--out", tmp_path / "run")
    assert code == 0, errors
    (sentence,) = [line for line in errors.splitlines() if line.startswith("warning")]
    assert "views of every text are equal" in sentence
    assert "retrieval" in refused("evaluate", tmp_path / "run", "--protocol", "retrieval")
    assert "label-free" in refused("evaluate", tmp_path / "run", "--protocol", "label-free")


def test_unused_columns_are_named_for_every_kind_of_table(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    tables = {
        "captions.csv": "image,caption,split,author\na.png,a square,train,me\n",
        "labels.csv": "image,label,split,author\na.png,square,train,me\n",
        "texts.csv": "text,label,group,author\nhello,a,1,me\n",
        "plain.csv": "text\nhello\n",
    }
    for name, content in tables.items():
        (tmp_path / name).write_text(content)
        unused = ["author"] if "author" in content else []
        assert list(open_dataset(str(tmp_path / name)).unused_columns) == unused, name
