"""Every command as a function: the same answers as the command, and nothing written that was not asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import antipodes
from antipodes.auditing.embeddings import Vectors
from antipodes.encoders.heads import IdentityVector
from antipodes.encoders.loading import LoadedEncoder
from antipodes.encoders.text import BagOfWords
from tests.auditing.scenes import scene
from tests.cli.command import here

SMALL = {
    "data": {"name": "shapes", "count": 256, "size": 32, "test_count": 32},
    "encoder": "resnet8-slim",
    "encoder.width": 4,
    "epochs": 1,
    "batch_size": 16,
    "knn_every": 0,
    "threads": 1,
    "workers": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("functions") / "a"
    return antipodes.train(out=out, negatives="glofnd", **{"negatives.alpha": 0.1}, **SMALL)


@pytest.fixture
def photos() -> list[Image.Image]:
    return [*(scene(number) for number in range(5)), scene(2)]


def test_train_gives_a_run_with_its_configuration_and_metrics(run: Any) -> None:
    assert run.path.name == "a"
    assert run.config["negatives"] | {"name": "glofnd", "alpha": 0.1} == run.config["negatives"]
    assert run.config["encoder"]["width"] == 4
    assert run.metrics["epoch"].tolist() == [1.0]
    assert np.isfinite(run.metrics["loss"]).all()


def test_train_goes_on_with_a_run_and_refuses_another_configuration(run: Any, tmp_path: Path) -> None:
    longer = antipodes.train(resume_from=run.path, epochs=2)
    assert longer.metrics["epoch"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="seed 0"):
        antipodes.train(resume_from=run.path, seed=1)
    with pytest.raises(ValueError, match="no_such_option"):
        antipodes.train(data="shapes", out=tmp_path / "b", no_such_option=1)
    with pytest.raises(ValueError, match="which data"):
        antipodes.train(out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_evaluate_writes_only_when_it_is_asked_to(run: Any, tmp_path: Path) -> None:
    scores = antipodes.evaluate(run.path, "knn", options={"knn": {"k": 5}})
    assert scores["knn top-1"] == scores.scores["knn top-1"] >= 0
    assert not (run.path / "evaluation.json").exists()
    scores.save(tmp_path / "scores.json")
    assert json.loads((tmp_path / "scores.json").read_text())["a"]["knn top-1"] == round(scores["knn top-1"], 3)
    antipodes.evaluate(run.path, "knn", save=True)
    assert "a" in json.loads((run.path / "evaluation.json").read_text())
    found = antipodes.compare([run.path])
    assert set(found.table["score"]) >= {"knn top-1"}
    found.save(tmp_path / "table.csv")
    assert "knn top-1" in (tmp_path / "table.csv").read_text()
    with pytest.raises(ValueError, match="no evaluation protocol"):
        antipodes.evaluate(run.path, "no_such_protocol")


def test_report_and_export_of_a_run(run: Any, tmp_path: Path) -> None:
    page = antipodes.report(run.path, samples=0)
    assert page.html.lower().startswith("<!doctype html>")
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page.html
    written = antipodes.export(run.path, safetensors=tmp_path / "encoder.safetensors")
    assert written == {"safetensors": tmp_path / "encoder.safetensors"}
    assert written["safetensors"].is_file()
    with pytest.raises(ValueError, match="say what to write"):
        antipodes.export(run.path)


def test_vectors_are_audited_as_the_command_does(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    vectors[7] = vectors[3]
    found = antipodes.audit(vectors)
    exact = found.pairs["kind"] == "exact duplicate"
    assert found.pairs["row"][exact].tolist() == [3]
    assert found.pairs["other"][exact].tolist() == [7]
    assert found.groups["group"][[3, 7]].tolist() == [0, 0]
    assert list(tmp_path.iterdir()) == []
    np.savez(tmp_path / "x.npz", embeddings=vectors)
    code, text, errors = here("audit", tmp_path / "x.npz", "--out", tmp_path / "audit", "--json")
    assert code == 0, errors
    same = json.loads(text)
    assert {name: same[name] for name in found.summary if name not in ("subject", "encoder")} == {
        name: value for name, value in found.summary.items() if name not in ("subject", "encoder")
    }
    found.save(tmp_path / "again")
    files = sorted(file.name for file in (tmp_path / "audit").iterdir())
    assert sorted(file.name for file in (tmp_path / "again").iterdir()) == files


def test_photos_are_audited_and_embedded_from_memory_and_from_paths(photos: list[Image.Image], tmp_path: Path) -> None:
    def mean_colours(images: list[Image.Image]) -> torch.Tensor:
        return torch.stack([torch.from_numpy(np.asarray(each.resize((4, 4)))).flatten().float() for each in images])

    audited = antipodes.audit(photos, encoder=mean_colours)
    near = {(a, b) for a, b, kind in zip(*(audited.pairs[n] for n in ("row", "other", "kind")), strict=True)}
    assert (2, 5) in near
    paths = []
    for number, photo in enumerate(photos):
        photo.save(tmp_path / f"{number}.png")
        paths.append(tmp_path / f"{number}.png")
    by_path = antipodes.audit(paths, encoder=mean_colours)
    assert by_path.pairs["kind"].tolist() == ["exact duplicate"]
    vectors = antipodes.embed(mean_colours, paths)
    assert vectors.paths == tuple(map(str, paths))
    np.testing.assert_array_equal(vectors.embeddings, antipodes.embed(mean_colours, photos).embeddings)
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name for path in paths]
    nearest = antipodes.neighbours(vectors, k=1)
    assert nearest.indices[[2, 5], 0].tolist() == [5, 2]
    assert antipodes.neighbours(vectors, k=1, queries=["2.png"]).indices.tolist() == [[5]]


def test_vectors_go_through_an_encoder_of_vectors() -> None:
    encoder = LoadedEncoder([IdentityVector(3)], [None], "mlp")
    given = np.eye(3, dtype=np.float32)
    found = antipodes.embed(encoder, given)
    assert isinstance(found, Vectors)
    np.testing.assert_array_equal(found.embeddings, encoder(torch.eye(3)).numpy())
    with pytest.raises(ValueError, match="an encoder of vectors"):
        antipodes.embed(encoder, ["a text"])


def test_neighbours_of_texts_and_of_a_new_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = LoadedEncoder([BagOfWords(vocabulary_size=5000, width=64)], [None], "bag")
    table = tmp_path / "questions.csv"
    table.write_text("id,asked\n1,how do I pay\n2,where is my parcel\n3,how do I pay now\n")
    found = antipodes.neighbours(table, encoder=encoder, columns=["asked"], k=1)
    assert found.indices[[0, 2], 0].tolist() == [2, 0]
    assert antipodes.embed(encoder, table, columns=["asked"]).embeddings.shape == (3, 64)
    new = antipodes.neighbours(table, encoder=encoder, columns=["asked"], k=1, queries=["my parcel"])
    assert new.queries == ("my parcel",)
    assert new.indices.tolist() == [[1]]
    known = antipodes.neighbours(table, encoder=encoder, columns=["asked"], k=1, queries=["questions.csv/0"])
    assert known.indices.tolist() == [[2]]
    with pytest.raises(ValueError, match="name the encoder"):
        antipodes.neighbours(found.indices, tower="text")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(["a text", 3], "list of texts"), ([], "empty"), ([3, 4], "data must be a list"), ("no/such/place", "no/such")],
)
def test_what_cannot_be_audited_is_refused_in_one_sentence(data: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        antipodes.audit(data, out=tmp_path / "audit")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_an_option_of_the_command_line_wins_over_a_file_wherever_it_stands(tmp_path: Path) -> None:
    from antipodes.cli.train import parse

    (tmp_path / "c.yaml").write_text("epochs: 7\nnegatives: {name: glofnd, alpha: 0.2}\n")
    before, _ = parse(["--epochs", "3", "--config", str(tmp_path / "c.yaml")])
    after, _ = parse(["--config", str(tmp_path / "c.yaml"), "--epochs", "3"])
    assert before == after
    assert (before.settings.epochs, before.components["negatives"]["alpha"]) == (3, 0.2)
    replaced, _ = parse(["--config", str(tmp_path / "c.yaml"), "--negatives", "fnc"])
    assert replaced["negatives"]["name"] == "fnc"
