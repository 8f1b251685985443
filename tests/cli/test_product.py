"""The commands that a folder of photos or a file of embeddings meets: embed, neighbours, audit, baseline, report."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageOps

from antipodes.auditing.embeddings import read_embeddings
from antipodes.encoders import create, patches
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.export import export_backbone
from tests.auditing.scenes import scene
from tests.cli.command import antipodes, here, refused
from tests.pages.browser import opened


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Eight vectors: four directions, each twice, the second a little turned."""
    vectors = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    vectors[1::2] += 0.05
    np.savez(tmp_path / "photos.npz", embeddings=vectors, paths=np.array([f"album/{i}.jpg" for i in range(8)]))
    return tmp_path / "photos.npz"


@pytest.mark.parametrize("command", ["embed", "neighbours", "audit", "report", "baseline"])
def test_help_teaches(command: str) -> None:
    code, text, _ = here(command, "--help")
    assert code == 0
    assert f"antipodes {command} " in text.split("options:")[0].partition("\n\n")[2]  # an example


def test_neighbours_of_all(archive: Path) -> None:
    out = archive.with_name("neighbours.csv")
    code, text, errors = here("neighbours", archive, "--k", 2, "--out", out)
    assert code == 0, errors
    assert "album/1.jpg" in text
    with out.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 16
    assert lines[0] == {
        "path": "album/0.jpg",
        "rank": "1",
        "neighbour": "album/1.jpg",
        "similarity": lines[0]["similarity"],
    }
    assert float(lines[0]["similarity"]) == pytest.approx(1.05 / np.sqrt(1.05**2 + 3 * 0.05**2), abs=1e-5)


@pytest.mark.parametrize("ending", ["parquet", "json", "npz"])
def test_neighbours_in_other_formats(archive: Path, ending: str) -> None:
    out = archive.with_name(f"near.{ending}")
    assert here("neighbours", archive, "--k", 1, "--out", out, "--json")[0] == 0
    if ending == "json":
        found = [record["neighbour"] for record in json.loads(out.read_text())]
    elif ending == "npz":
        with np.load(out) as arrays:
            found = [str(arrays["paths"][row]) for row in arrays["neighbours"][:, 0]]
    else:
        found = pytest.importorskip("pyarrow.parquet").read_table(out)["neighbour"].to_pylist()
    assert found == [f"album/{i ^ 1}.jpg" for i in range(8)]


def test_neighbours_of_some(archive: Path) -> None:
    _, text, _ = here("neighbours", archive, "--queries", "3.jpg", "--k", 1, "--json")
    assert list(json.loads(text)["neighbours"]) == ["album/3.jpg"]
    assert json.loads(text)["neighbours"]["album/3.jpg"][0]["path"] == "album/2.jpg"
    np.save(archive.with_name("new.npy"), np.eye(4)[[2]])
    _, text, _ = here("neighbours", archive, "--queries", archive.with_name("new.npy"), "--k", 1, "--json")
    assert json.loads(text)["neighbours"]["row 0"][0]["path"] == "album/4.jpg"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--k", 0], "k must be at least 1"),
        (["--queries", "9.jpg"], "no path ends so"),
        (["--out", "missing/x.csv"], "the folder missing does not exist"),
        (["--out", "x.txt"], "should end in .csv"),
    ],
)
def test_wrong_calls_of_neighbours(archive: Path, arguments: list[object], sentence: str) -> None:
    before = sorted(archive.parent.iterdir())
    assert sentence in refused("neighbours", archive, *arguments)
    assert sorted(archive.parent.iterdir()) == before


def test_embeddings_that_are_not(tmp_path: Path) -> None:
    assert "does not exist" in refused("neighbours", tmp_path / "none.npz")
    np.savez(tmp_path / "nan.npz", embeddings=np.full((3, 2), np.nan))
    assert "NaN" in refused("neighbours", tmp_path / "nan.npz")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve pictures, one copied, one mirrored, one damaged, one with a hostile name."""
    place = tmp_path / "photos"
    place.mkdir()
    for number in range(12):
        scene(number).save(place / f"{number}.png")
    monkeypatch.setattr(patches, "PATCHES", 4000)  # to be quick
    scene(12).save(place / "<script>alert(1)<.png")
    shutil.copy(place / "3.png", place / "copy.png")
    ImageOps.mirror(scene(5)).save(place / "mirror.jpg", quality=70)
    (place / "broken.jpg").write_bytes(b"no picture")
    return place


def test_audit_of_a_folder(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = folder.with_name("audit")
    code, text, errors = here("audit", folder, "--encoder", "patches", "--out", out, "--json")
    assert code == 0, errors
    summary = json.loads(text)
    assert summary["samples"] == 15
    pairs = parquet.read_table(out / "pairs.parquet").to_pylist()
    kinds = {(Path(pair["path_a"]).name, Path(pair["path_b"]).name): pair["kind"] for pair in pairs}
    assert kinds == {("3.png", "copy.png"): "exact duplicate", ("5.png", "mirror.jpg"): "near duplicate"}
    groups = parquet.read_table(out / "groups.parquet")
    assert groups.column_names == ["row", "path", "group"]
    assert groups["row"].to_pylist() == list(range(15))
    by_name = {Path(row["path"]).name: row["group"] for row in groups.to_pylist()}
    assert by_name["3.png"] == by_name["copy.png"] >= 0
    assert by_name["5.png"] == by_name["mirror.jpg"] not in (by_name["3.png"], -1)
    assert by_name["0.png"] == -1
    with opened(out / "report.html") as page:
        assert page.locator(".review .pair img").count() == 4
        assert page.locator(".pair img").first.evaluate("image => image.naturalWidth") > 50


def test_audit_of_two_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PATCHES", 4000)  # to be quick
    place = tmp_path / "photos"
    place.mkdir()
    scene(5).save(place / "a.png")
    ImageOps.mirror(scene(5)).save(place / "b.jpg", quality=70)
    code, text, errors = here("audit", place, "--encoder", "patches", "--out", tmp_path / "audit", "--json")
    assert code == 0, errors
    assert json.loads(text)["near duplicate pairs"] == 1


def test_audit_of_embeddings(archive: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = archive.with_name("audit")
    code, text, errors = here("audit", archive, "--out", out, "--options.k", 3)
    assert code == 0, errors
    assert "near duplicate pairs" in text
    pairs = parquet.read_table(out / "pairs.parquet").to_pylist()
    assert {(pair["row"], pair["other"]) for pair in pairs if pair["kind"] == "near duplicate"} == {
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    }
    names = ["groups.parquet", "keep.csv", "pairs.parquet", "report.html", "samples.parquet", "skipped.csv"]
    assert sorted(file.name for file in out.iterdir()) == [*names, "summary.json"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["/nonexistent"], "nonexistent"),
        (["none.npz"], "does not exist"),
        (["."], "holds no images"),
        (["PHOTOS", "--out", "missing/audit"], "the folder missing does not exist"),
        (["PHOTOS", "--out", ""], "--out is empty"),
        (["PHOTOS", "--encoder", "nonexistent"], "nonexistent"),
        (["PHOTOS", "--options.k", "0"], "k must be at least 1"),
        (["PHOTOS", "--options.alpha", "2"], "alpha must be in"),
        (["PHOTOS", "--batch_size", "1"], "batch_size must be at least 2"),
    ],
)
def test_wrong_calls_of_audit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    (folder / "broken.jpg").unlink()
    assert sentence in refused("audit", *(str(folder) if each == "PHOTOS" else each for each in arguments))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("ending", ["npz", "parquet", "npy"])
def test_embed_a_folder(folder: Path, ending: str) -> None:
    out = folder.with_name(f"photos.{ending}")
    code, text, errors = here("embed", "patches", folder, "--out", out, "--json")
    assert code == 0, errors
    assert json.loads(text)["vectors"] == 15
    read = read_embeddings(out)
    assert read.embeddings.shape == (15, json.loads(text)["dimensions"]) == (15, 14)  # one less than there are images
    assert ("paths" in json.loads(text)) == (ending == "npy")
    assert [Path(path).name for path in read.paths[:2]] == ["0.png", "1.png"]
    assert all(Path(path).is_file() for path in read.paths)
    _, text, errors = here("neighbours", out, "--queries", "mirror.jpg", "--k", 1, "--json")
    assert Path(next(iter(json.loads(text)["neighbours"].values()))[0]["path"]).name == "5.png"
    assert errors == ""
    left = {file.name for file in folder.parent.iterdir()} - {"photos", out.name, "photos.skipped.csv"}
    assert left == ({"photos.paths.csv"} if ending == "npy" else set())


def test_patches_are_not_found_in_one_image(folder: Path) -> None:
    (folder / "broken.jpg").unlink()
    one = folder.with_name("one.npz")
    assert "at least two pictures" in refused("embed", "patches", folder, "--limit", 1, "--out", one)
    assert not [file for file in folder.parent.iterdir() if "one" in file.name]


def test_embed_continues_where_it_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from antipodes.auditing import parts, vectors

    seen: list[int] = []

    def encoded(encode, images):
        seen.append(len(images))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(encode, images)

    real = vectors._encoded
    monkeypatch.setattr(vectors, "_encoded", encoded)
    monkeypatch.setattr(parts.compute_in_parts, "__defaults__", (None, 4))
    out = folder.with_name("photos.npz")
    assert here("embed", "patches", folder, "--out", out)[0] == 130  # stopped by Control-C
    assert not out.exists()
    code, text, _ = here("embed", "patches", folder, "--out", out, "--json")
    assert code == 0
    assert json.loads(text)["taken from an earlier call"] == 8
    assert seen == [4, 4, 4, 4, 3]
    with np.load(out) as arrays:
        assert arrays["embeddings"].shape[0] == len(arrays["paths"]) == 15
    assert not folder.with_name(".photos.npz.parts").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["patches", "PHOTOS", "--out", "x.csv"], "should end in .npz"),
        (["patches", "PHOTOS", "--out", "missing/x.npz"], "does not exist"),
        (["patches", "--out", "x.npz"], "say which folder"),
        (["patches", "/nonexistent", "--out", "x.npz"], "nonexistent"),
        (["nonexistent", "PHOTOS", "--out", "x.npz"], "nonexistent"),
        (["patches", "PHOTOS", "--out", "x.npz", "--batch_size", "0"], "batch_size must be at least 1"),
    ],
)
def test_wrong_calls_of_embed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    assert sentence in refused("embed", *(str(folder) if each == "PHOTOS" else each for each in arguments))
    assert list(Path().iterdir()) == []


def test_baseline_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from antipodes.auditing import vectors

    def colours(images: list) -> np.ndarray:
        return np.stack([np.asarray(image.resize((3, 3)), dtype=np.float32).reshape(-1) for image in images])

    monkeypatch.setattr(vectors, "load", lambda name, tower: colours)
    out = folder.with_name("baseline.csv")
    code, text, errors = here(
        "baseline", folder, "--limit", 12, "--epochs", 0, "--runs", "mine", "--out", out, "--json"
    )
    assert code == 0, errors
    rows = json.loads(text)["encoders"]
    assert list(rows) == ["random weights", "patches", "efficientnet-lite0", "mine"]
    assert rows["patches"]["two-view retrieval"] > 0.2
    assert rows["mine"] == rows["efficientnet-lite0"]
    assert len(out.read_text().splitlines()) == 5
    assert "limit must be" in refused("baseline", folder, "--limit", 1)
    assert "should end in" in refused("baseline", folder, "--out", "x.txt")


def test_baseline_trains_simclr_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["baseline", folder, "--encoder", "resnet8-slim", "--limit", 6, "--json", "--epochs"]
    code, text, errors = here(*call, 1)
    assert code == 0, errors
    assert "epoch 1/1" in errors or "images" in errors
    first = json.loads(text)["encoders"]
    assert "simclr, 1 epochs" in first
    run = tmp_path / "runs" / f"baseline-{folder.name}"
    kept = (run / "checkpoints" / "last.pt").read_bytes()
    assert json.loads(here(*call, 1)[1])["encoders"] == first  # nothing is trained again
    assert (run / "checkpoints" / "last.pt").read_bytes() == kept
    code, text, errors = here(*call, 2)  # it goes on
    assert code == 0, errors
    assert "simclr, 2 epochs" in json.loads(text)["encoders"]
    assert "--simclr names another folder" in refused(*call[:3], "resnet18-slim", "--limit", 12)
    assert "epochs must be" in refused(*call, -1)


def _stopped_in_its_third_part(monkeypatch: pytest.MonkeyPatch, *call: object) -> None:
    """Call embed in parts of four images and stop it in the third."""
    from antipodes.auditing import parts, vectors

    seen: list[int] = []
    real = vectors._encoded

    def encoded(encode, images):
        seen.append(len(images))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(encode, images)

    monkeypatch.setattr(parts.compute_in_parts, "__defaults__", (None, 4))
    with monkeypatch.context() as patched:
        patched.setattr(vectors, "_encoded", encoded)
        assert here(*call)[0] == 130


@pytest.mark.parametrize("encoder", ["patches", "file"])
def test_photos_and_encoders_that_were_replaced_get_new_vectors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, encoder: str
) -> None:
    out, weights = folder.with_name("photos.npz"), folder.with_name("encoder.safetensors")
    if encoder == "file":
        export_backbone(create("resnet8-slim"), weights, Preprocessing(32))
        encoder = str(weights)
    _stopped_in_its_third_part(monkeypatch, "embed", encoder, folder, "--out", out)
    before = (folder / "0.png").stat()
    scene(40).save(folder / "0.png")
    os.utime(folder / "0.png", ns=(before.st_atime_ns, before.st_mtime_ns))  # a copy may keep its time
    code, text, errors = here("embed", encoder, folder, "--out", out, "--json")
    assert code == 0, errors
    assert json.loads(text)["taken from an earlier call"] == 0
    whole = folder.with_name("whole.npz")
    assert here("embed", encoder, folder, "--out", whole)[0] == 0
    np.testing.assert_array_equal(read_embeddings(out).embeddings, read_embeddings(whole).embeddings)
    if encoder != "patches":
        _stopped_in_its_third_part(monkeypatch, "embed", encoder, folder, "--out", out)
        time = weights.stat()
        export_backbone(create("resnet8-slim"), weights, Preprocessing(32))
        os.utime(weights, ns=(time.st_atime_ns, time.st_mtime_ns))
        assert json.loads(here("embed", encoder, folder, "--out", out, "--json")[1])["taken from an earlier call"] == 0


def test_a_folder_in_the_way_of_the_parts_is_left_alone(folder: Path) -> None:
    other = folder.with_name(".photos.npz.parts")
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    assert other.name in refused_after_warnings("embed", "patches", folder, "--out", folder.with_name("photos.npz"))
    assert (other / "letter.txt").read_text() == "dear"


def refused_after_warnings(*arguments: object) -> str:
    code, _, errors = here(*arguments)
    assert code == 2, errors
    return errors.splitlines()[-1]


def test_audit_of_a_collapsed_encoder_has_a_page_without_a_map(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    vectors = np.tile(np.random.default_rng(0).normal(size=(1, 16)).astype(np.float32), (60, 1))
    np.savez(tmp_path / "same.npz", embeddings=vectors, paths=np.array([f"{row}.jpg" for row in range(60)]))
    done = antipodes("audit", tmp_path / "same.npz", "--out", tmp_path / "audit")  # t-SNE would end the process
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "There is no map" in page
    assert "<canvas" not in page


def test_audit_takes_its_options_from_a_file(archive: Path) -> None:
    pytest.importorskip("pyarrow")
    options = archive.with_name("options.yaml")
    call = ["audit", archive, "--out", archive.with_name("audit"), "--json"]
    options.write_text("k: 3\nduplicate: 1.0\n")
    code, of_file, errors = here(*call, "--options", options)
    assert code == 0, errors
    assert of_file == here(*call, "--options.k", 3, "--options.duplicate", 1.0)[1]
    assert of_file != here(*call)[1]
    options.write_text("k: 0\n")
    assert "k must be at least 1" in refused(*call, "--options", options)


@pytest.mark.parametrize("command", ["audit", "baseline", "report", "compare", "neighbours"])
def test_a_link_to_itself_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert "loop" in refused(command, "loop")
