"""Data that grows between two calls: old rows keep their tables by path and content, new ones start fresh."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import open_dataset
from antipodes.methods import Method
from antipodes.runs.folder import Run, load_checkpoint, save_checkpoint
from antipodes.runs.opening import open_method
from antipodes.runs.rows import growth_since
from antipodes.runs.settings import Calendar
from antipodes.state import ByRow
from tests.cli.command import here, refused
from tests.training.test_in_hands import done

TINY = ["--encoder", "resnet8-slim", "--head.hidden", 8, "--head.dim", 8, "--batch_size", 8, "--epochs", 2]
METHODS: dict[str, list[object]] = {
    "glofnd": ["--negatives", "glofnd", "--negatives.alpha", 0.1, "--negatives.start", 0, "--snapshot_every", 1],
    "sogclr": ["--method", "sogclr", "--temperature.per_sample", "true"],
    "moco": ["--method", "moco", "--method.queue_size", 24, "--negatives", "ifnd", "--negatives.clusters", "[3]"],
    "bank": ["--method", "instance", "--negatives", "dataset-neighbours", "--negatives.k", 2],
}


def photo(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (36, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def picture_store(folder: Path, count: int = 16) -> Path:
    for number in range(count):
        photo(folder / f"{10 * number:03}.png", number)
    return folder


def tables(method: Method) -> dict[str, tuple[torch.Tensor, ByRow]]:
    found = {}
    for prefix, module in method.named_modules():
        for name, how in getattr(type(module), "row_state", {}).items():
            if isinstance(value := getattr(module, name), torch.Tensor):
                found[f"{prefix}.{name}"] = value.detach().clone(), how
    return found


@pytest.mark.parametrize("name", METHODS)
def test_old_rows_keep_their_tables_and_new_ones_start_fresh(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done("train", "--data", picture_store(tmp_path / "photos"), *TINY, *METHODS[name], "--out", run)
    before, old_data = open_method(Run.open(run))
    old, old_files = tables(before), old_data.files  # type: ignore[attr-defined]

    photo(tmp_path / "photos" / "005.png", 100)  # sorts in between
    photo(tmp_path / "photos" / "999.png", 101)
    (tmp_path / "photos" / "030.png").unlink()
    (tmp_path / "photos" / "040.png").rename(tmp_path / "photos" / "777.png")
    after, data = open_method(Run.open(run))
    names = [("777.png" if file == "040.png" else file) for file in old_files]
    files = list(data.files)  # type: ignore[attr-defined]
    assert len(files) == 17
    compared = 0
    for key, (value, how) in tables(after).items():
        saved = old[key][0]
        if how.holds == "data":
            continue
        if how.holds in ("rows", "samples") and how.axis is None:
            assert value.shape == saved.shape
            for now, then in zip(value.tolist(), saved.tolist(), strict=True):
                gone = then < 0 or names[then] == "030.png"
                assert now == (-1 if gone else files.index(names[then]))
            compared += 1
            continue
        assert how.axis is not None
        now, then = value.movedim(how.axis, 0), saved.movedim(how.axis, 0)
        each = len(then) // 16
        assert len(now) == 17 * each
        for row, file in enumerate(files):
            here_ = now[row * each : (row + 1) * each]
            if file in names:
                place = names.index(file)
                there = then[place * each : (place + 1) * each]
                if how.holds == "rows":
                    there = torch.tensor(
                        [[-1 if i < 0 or names[i] == "030.png" else files.index(names[i]) for i in there[0].tolist()]]
                    ).to(here_)
                assert torch.equal(here_, there), (key, file)
                compared += 1
            elif name == "glofnd":
                assert here_.tolist() == [[1.0, 0.0, 0.0, 0.0]], key
    assert compared >= 15

    said = done("train", "--resume", run)
    assert "15 rows keep their tables, 2 new ones start fresh; 1 are gone" in said
    assert "a larger number of --epochs" in said
    said = done("train", "--resume", run, "--epochs", 4)
    state = load_checkpoint(Run(run).last)
    assert state["step"] == 2 * 2 + 2 * 2
    assert Calendar(**state["calendar"]) == Calendar(2, 4, 2)
    assert "rows keep" not in done("train", "--resume", run, "--epochs", 5)  # it has grown once
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "epoch" in line] == [1, 2, 3, 4, 5]


def test_the_first_steps_after_growing_start_from_the_old_tables(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done("train", "--data", picture_store(tmp_path / "photos"), *TINY, *METHODS["glofnd"], "--out", run)
    steps = load_checkpoint(Run(run).last)["model"]["directions.image.negatives._table.rows"][:, 3]
    assert steps.tolist() == [2] * 16
    photo(tmp_path / "photos" / "005.png", 100)
    done("train", "--resume", run, "--epochs", 3)
    steps = load_checkpoint(Run(run).last)["model"]["directions.image.negatives._table.rows"][:, 3]
    assert steps[1] <= 1  # 005.png was visited at most once, the others twice before
    assert all(count in (2, 3) for row, count in enumerate(steps.tolist()) if row != 1)
    assert sum(steps.tolist()) == 16 * 2 + 16


def test_epochs_may_shrink_and_an_unfinished_epoch_begins_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*TINY, "--checkpoint_steps", 1, "--epochs", 2]
    done("train", "--data", picture_store(tmp_path / "photos", 40), *options, "--out", run)
    state = load_checkpoint(Run(run).last)
    state["step"] = 7  # as if it had been killed in its second epoch
    save_checkpoint(Run(run).last, state)
    for number in range(10, 40):
        (tmp_path / "photos" / f"{10 * number:03}.png").unlink()
    done("train", "--resume", run)
    state = load_checkpoint(Run(run).last)
    assert Calendar(**state["calendar"]) == Calendar(1, 7, 1)
    assert state["step"] == 8


def test_other_data_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done("train", "--data", picture_store(tmp_path / "photos"), *TINY, "--out", run)
    shutil.rmtree(tmp_path / "photos")
    for number in range(16):
        photo(tmp_path / "photos" / f"{10 * number:03}.png", 500 + number)
    assert "the dataset has changed" in refused("train", "--resume", run, "--epochs", 3)


def test_groups_of_before_are_refused(tmp_path: Path) -> None:
    run, groups = tmp_path / "run", tmp_path / "groups.csv"
    picture_store(tmp_path / "photos")
    groups.write_text("row,group\n" + "".join(f"{row},{5 if row in (3, 4) else -1}\n" for row in range(16)))
    known = ["--negatives", "known", "--negatives.groups", groups]
    done("train", "--data", tmp_path / "photos", *TINY, *known, "--out", run)
    photo(tmp_path / "photos" / "005.png", 100)
    code, _, errors = here("train", "--resume", run, "--epochs", 3)
    assert code == 2
    assert "audit the data again" in errors.splitlines()[-1]
    groups.write_text("row,group\n" + "".join(f"{row},{5 if row in (4, 5) else -1}\n" for row in range(17)))
    done("train", "--resume", run, "--epochs", 3)


def test_evaluation_asks_no_policy_and_so_lets_old_groups_be(tmp_path: Path) -> None:
    run, groups = tmp_path / "run", tmp_path / "groups.csv"
    picture_store(tmp_path / "photos")
    groups.write_text("row,group\n" + "".join(f"{row},{5 if row in (3, 4) else -1}\n" for row in range(16)))
    known = ["--negatives", "known", "--negatives.groups", groups]
    done("train", "--data", tmp_path / "photos", *TINY, *known, "--out", run)
    done("evaluate", run, "--protocol", "label-free")
    photo(tmp_path / "photos" / "005.png", 100)
    done("evaluate", run, "--protocol", "label-free")
    for number in range(8, 16):
        (tmp_path / "photos" / f"{10 * number:03}.png").unlink()
    done("evaluate", run, "--protocol", "label-free")
    groups.unlink()
    done("evaluate", run, "--protocol", "label-free")


def test_groups_that_name_paths_follow_their_files(tmp_path: Path) -> None:
    run, groups = tmp_path / "run", tmp_path / "groups.csv"
    folder = picture_store(tmp_path / "photos")
    lines = [f"{row},{path},{5 if row in (3, 4) else -1}" for row, path in enumerate(sorted(folder.iterdir()))]
    groups.write_text("row,path,group\n" + "\n".join(lines))
    known = ["--negatives", "known", "--negatives.groups", groups]
    done("train", "--data", folder, *TINY, *known, "--out", run)

    def grouped() -> list[str]:
        method, data = open_method(Run.open(run))
        ((_, policy),) = method.policies()
        return [data.files[row] for row in (policy.groups >= 0).nonzero()[:, 0].tolist()]  # type: ignore[attr-defined]

    assert grouped() == ["030.png", "040.png"]
    photo(folder / "005.png", 100)
    with pytest.warns(UserWarning, match="1 of 17 samples are not in .*: they are alone"):
        assert grouped() == ["030.png", "040.png"]
    done("train", "--resume", run, "--epochs", 3)


def test_images_stay_as_large_as_they_were(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done("train", "--data", picture_store(tmp_path / "photos", 8), *TINY, "--out", run)
    for number in range(30):
        large = np.random.default_rng(number).integers(0, 256, (90, 100, 3), dtype=np.uint8)
        Image.fromarray(large).save(tmp_path / "photos" / f"large-{number}.png")
    assert open_dataset(str(tmp_path / "photos")).image_size == 64
    _, data = open_method(Run.open(run))
    assert data.image_size == 36


def test_captions_are_known_again_by_image_and_text(tmp_path: Path) -> None:
    folder = picture_store(tmp_path / "photos", 4)
    rows = [(f"{10 * number:03}.png", f"caption {k} of {number}") for number in range(4) for k in range(2)]

    def write() -> None:
        lines = "".join(f"{image},{text}\n" for image, text in rows)
        (folder / "captions.csv").write_text(f"image,caption\n{lines}")

    write()
    data = open_dataset(str(folder), rows="caption")
    saved = {
        "identity": {"fingerprint": data.fingerprint},
        "data": {"keys": data.keys(), "samples": data.samples},
    }
    photo(folder / "005.png", 50)
    rows.insert(2, ("005.png", "a new one"))
    write()
    growth = growth_since(saved, open_dataset(str(folder), rows="caption"))
    assert growth is not None
    assert growth.sources.tolist() == [0, 1, -1, 2, 3, 4, 5, 6, 7]
    assert growth.samples.tolist() == [0, 2, 3, 4]
