"""Commands write only where they were told, and replace only what they made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import here, refused

TINY = ["--data", "shapes", "--data.count", 128, "--batch_size", 64, "--encoder", "resnet8-slim", "--head.hidden", 16]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign") / "run"
    for seed, number in enumerate(("", "2")):
        assert here("train", *TINY, "--epochs", 1, "--seed", seed, "--out", f"{folder}{number}")[0] == 0
        assert here("evaluate", f"{folder}{number}", "--protocol", "knn")[0] == 0
    assert here("embed", folder, "--out", folder.parent / "vectors.npz")[0] == 0
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder.parent / f"{number}.png")
    return folder


CALLS = {
    "export safetensors": (["export", "RUN", "--safetensors", "OUT/a.safetensors"], ["a.safetensors", "a.md"]),
    "export onnx": (["export", "RUN", "--onnx", "OUT/a.onnx"], ["a.onnx"]),
    "report": (["report", "RUN", "--samples", "0", "--out", "OUT/a.html"], ["a.html"]),
    "pictures": (["pictures", "RUN", "--out", "OUT/p"], ["p/map.png"]),
    "embed npz": (["embed", "RUN", "--out", "OUT/a.npz"], ["a.npz"]),
    "embed npy": (["embed", "RUN", "--out", "OUT/a.npy"], ["a.npy", "a.paths.csv"]),
    "embed parquet": (["embed", "RUN", "--out", "OUT/a.parquet"], ["a.parquet"]),
    **{
        f"neighbours {kind}": (["neighbours", "VECTORS", "--out", f"OUT/a.{kind}"], [f"a.{kind}"])
        for kind in ("csv", "json", "npz", "parquet")
    },
    "baseline": (["baseline", "PHOTOS", "--epochs", "0", "--out", "OUT/a.csv"], ["a.csv"]),
    "audit": (
        ["audit", "VECTORS", "--out", "OUT/audit"],
        [
            f"audit/{name}"
            for name in (
                "pairs.parquet",
                "groups.parquet",
                "samples.parquet",
                "keep.csv",
                "skipped.csv",
                "summary.json",
                "report.html",
            )
        ],
    ),
    "compare": (["compare", "RUN", "RUN2", "--anyway", "--picture", "OUT/a.png"], ["a.png"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_files_of_others_are_refused_and_earlier_results_replaced(run: Path, tmp_path: Path, name: str) -> None:
    arguments, files = CALLS[name]
    places = {
        "RUN2": f"{run}2",
        "RUN": run,
        "OUT": tmp_path,
        "VECTORS": run.parent / "vectors.npz",
        "PHOTOS": run.parent,
    }
    call = list(arguments)
    for word, place in places.items():
        call = [each.replace(word, str(place)) for each in call]
    for file in files:
        victim = tmp_path / file
        victim.parent.mkdir(exist_ok=True)
        victim.write_text("years of work")
        assert victim.name in refused(*call)
        assert victim.read_text() == "years of work"
        victim.unlink()
    assert here(*call)[0] == 0
    assert here(*call)[0] == 0  # the results of the first call are replaced
    for file in files:
        (tmp_path / file).write_text("years of work")
    assert here(*call, "--force")[0] == 0
    for file in files:
        assert (tmp_path / file).read_bytes() != b"years of work"


def test_an_export_does_not_replace_the_configuration_of_its_run(run: Path) -> None:
    before = (run / "config.yaml").read_bytes()
    assert "config.yaml" in refused("export", run, "--safetensors", run / "config.yaml")
    assert (run / "config.yaml").read_bytes() == before
