"""`antipodes export` on a run as `antipodes train` left it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import antipodes
from antipodes.data import open_dataset
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import plain_view
from tests.cli.command import here, refused


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    call = ["train", "--data", "shapes", "--data.count", 32, "--encoder", "resnet8-slim", "--batch_size", 16]
    code, _, errors = here(*call, "--epochs", 1, "--knn_every", 0, "--out", folder)
    assert code == 0, errors
    return folder


def test_a_run_is_loaded_as_it_was_evaluated(run: Path) -> None:
    method, data = open_method(Run.open(run))
    expected = embed_dataset(method.backbone(), data, preprocess=plain_view(method, data.image_size))
    pixels = open_dataset("shapes", count=32).fetch(torch.arange(32))
    loaded = antipodes.load(run)
    torch.testing.assert_close(loaded.features(pixels), expected, rtol=1e-4, atol=1e-5)
    assert loaded.size == 32
    assert "1 epochs" in (run / "encoder.md").read_text()


def test_safetensors_of_a_checkpoint_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    code, out, errors = here("export", run, "--safetensors", tmp_path / "a.safetensors", "--checkpoint", "last")
    assert code == 0, errors
    assert (
        out == f"{tmp_path}/a.safetensors: safetensors, 64 features of 32 x 32 images; next to it the model card a.md\n"
    )
    assert (tmp_path / "a.safetensors").read_bytes() == (run / "encoder.safetensors").read_bytes()


def test_onnx(run: Path, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is absent")
    code, out, errors = here("export", run, "--onnx", tmp_path / "a.onnx", "--json")
    assert code == 0, errors
    facts = json.loads(out)["onnx"]
    assert facts["files"] == [f"{tmp_path}/a.onnx"]
    assert facts["difference"] < 1e-5
    assert (tmp_path / "a.onnx").is_file()


def test_detectron2(tmp_path: Path) -> None:
    from antipodes.encoders import create
    from antipodes.encoders.encoder import Preprocessing
    from antipodes.encoders.export import export_backbone

    export_backbone(create("resnet18"), tmp_path / "encoder.safetensors", Preprocessing())
    (tmp_path / "d2").mkdir()
    code, out, errors = here("export", tmp_path / "encoder.safetensors", "--detectron2", tmp_path / "d2" / "a.pkl")
    assert code == 0, errors
    assert "RGB (not BGR)" in out
    assert sorted(file.name for file in (tmp_path / "d2").iterdir()) == [
        "a-coco.yaml",
        "a-keypoints.yaml",
        "a-voc.yaml",
        "a.pkl",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "say what to write: --onnx FILE"),
        (["--detectron2", "a.pkl"], "a stem of 7x7 on RGB"),
        (["--detectron2", "a.pkl", "--safetensors", "a.safetensors"], "a stem of 7x7 on RGB"),
        (["--safetensors", "."], "is a folder: give the name of the file"),
        (["--safetensors", "a.safetensors", "--tower", "text"], "no encoder of tower 'text'"),
    ],
)
def test_wrong_calls_are_refused_and_write_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("export", run, *options)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_there_is_named() -> None:
    assert "/nonexistent does not exist" in refused("export", "/nonexistent", "--safetensors", "a")


@pytest.fixture(scope="module")
def clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP run with linear heads on photos of noise and captions about their numbers."""
    pytest.importorskip("tokenizers", reason="tokenizers is absent")
    folder = tmp_path_factory.mktemp("clip")
    photos = folder / "photos"
    photos.mkdir()
    lines = ["image,caption"]
    for number in range(16):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
        lines.append(f"{number}.png,a photo of the number {number}")
    (photos / "captions.csv").write_text("\n".join(lines))
    call = ["train", "--method", "clip", "--data", photos, "--data.size", 32, "--encoder", "resnet18"]
    call += ["--encoders.text", "text-transformer", "--head.kind", "linear", "--head.dim", 8]
    code, _, errors = here(*call, "--batch_size", 8, "--epochs", 1, "--knn_every", 0, "--out", folder / "run")
    assert code == 0, errors
    return folder / "run"


def test_embeddings_of_both_towers_of_a_clip_run_are_the_methods_own(clip_run: Path) -> None:
    method, data = open_method(Run.open(clip_run))
    method.eval()
    photos = clip_run.parent / "photos"
    rows = torch.arange(4)
    for tower in ("image", "text"):
        plan = method.network.plans[tower]
        raw = data.inputs(rows)[plan.input]
        with torch.no_grad():
            inputs = plain_view(method, data.image_size, plan.input)(raw)
            expected = torch.nn.functional.normalize(method.network[tower](inputs), dim=1)
        loaded = antipodes.load(clip_run, tower=tower, embeddings=True)
        given = [photos / Path(path).name for path in data.paths[:4]] if tower == "image" else list(raw)
        assert tower == "text" or torch.equal(loaded.prepare(given), raw)
        torch.testing.assert_close(loaded(given), expected, rtol=1e-4, atol=1e-5)
        assert loaded.num_features == 8


def test_open_clip(clip_run: Path, tmp_path: Path) -> None:
    from antipodes.encoders.open_clip import load_open_clip

    code, out, errors = here("export", clip_run, "--open_clip", tmp_path / "model")
    assert code == 0, errors
    assert out.startswith(f"{tmp_path}/model: two towers under open_clip's names")
    towers = load_open_clip(tmp_path / "model")
    embeddings = antipodes.load(clip_run, tower="text", embeddings=True)(["a photo"])
    with torch.no_grad():
        text = towers.text_projection(towers.text(towers.text.tokenize(["a photo"])))
    torch.testing.assert_close(torch.nn.functional.normalize(text, dim=1), embeddings)
    assert abs(towers.logit_scale.exp().item() * 0.07 - 1) < 0.1


def test_open_clip_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    assert "a tower for images and one for texts" in refused("export", run, "--open_clip", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def class_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders of photos, with two and three classes."""
    top = tmp_path_factory.mktemp("classes")
    for folder, names in (("pets", ("cat", "hot_dog")), ("colours", ("red", "green", "blue"))):
        for number in range(6):
            place = top / folder / names[number % len(names)]
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    return [top / "pets", top / "colours"]


def scores(*call: object) -> dict[str, float]:
    code, out, errors = here("evaluate", *call, "--json")
    assert code == 0, errors
    (found,) = json.loads(out).values()
    return dict(found)


def test_zero_shot_of_a_run_on_folders_of_classes(clip_run: Path, class_folders: list[Path]) -> None:
    """Against the towers by hand: the mean over prompts of unit vectors, and the nearest class of every photo."""
    templates = ("a photo of a {}.", "one {}")
    call = ["--protocol", "zero-shot", "--zero_shot.templates", json.dumps(templates), "--transfer", *class_folders]
    found = scores(clip_run, *call)
    assert "transfer pets top-1" not in found  # the datasets are for this protocol
    image, text = (antipodes.load(clip_run, tower=tower, embeddings=True) for tower in ("image", "text"))
    expected = []
    for folder in class_folders:
        names = sorted(path.name for path in folder.iterdir())
        prompts = torch.stack([text([one.format(name.replace("_", " ")) for one in templates]) for name in names])
        classes = torch.nn.functional.normalize(prompts.mean(1), dim=1)
        files = sorted(folder.rglob("*.png"))
        nearest = (image(files) @ classes.T).argmax(1).tolist()
        right = [names[one] == file.parent.name for one, file in zip(nearest, files, strict=True)]
        expected.append(100 * sum(right) / len(right))
        assert found[f"zero-shot {folder.name} top-1"] == pytest.approx(expected[-1], abs=1e-3)
    assert found["zero-shot mean"] == pytest.approx(sum(expected) / 2, abs=1e-3)


def test_a_model_of_open_clip_scores_as_its_run(clip_run: Path, class_folders: list[Path], tmp_path: Path) -> None:
    photos = clip_run.parent / "photos"
    assert here("export", clip_run, "--open_clip", tmp_path / "model")[0] == 0
    before = sorted(path.name for path in (tmp_path / "model").iterdir())
    own = scores(clip_run, "--protocol", "retrieval,zero-shot", "--transfer", *class_folders)
    for path in (tmp_path / "model", tmp_path / "model" / "open_clip_model.safetensors"):
        assert scores(path, "--data", photos, "--transfer", *class_folders) == own
    assert scores(tmp_path / "model", "--data", photos, "--protocol", "retrieval") == {
        name: score for name, score in own.items() if "zero-shot" not in name
    }
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == before  # no run, so nothing is kept in it
    assert "measured on? Give --data" in refused("evaluate", tmp_path / "model")
    assert "has no checkpoints" in refused("evaluate", tmp_path / "model", "--data", photos, "--checkpoint", "best")


def test_a_model_of_open_clip_with_another_trunk_is_one_sentence(clip_run: Path, tmp_path: Path) -> None:
    assert here("export", clip_run, "--open_clip", tmp_path / "model")[0] == 0
    file = tmp_path / "model" / "open_clip_config.json"
    content = json.loads(file.read_text())
    content["model_cfg"]["vision_cfg"]["timm_model_name"] = "vit_base_patch16_224"
    file.write_text(json.dumps(content))
    sentence = refused("evaluate", tmp_path / "model", "--data", clip_run.parent / "photos")
    assert "'vit_base_patch16_224' is not one of ours: resnet18, resnet34" in sentence
