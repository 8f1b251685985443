"""Groups from a file, for the rows that the data has: by path where the file names paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antipodes.data import open_dataset
from antipodes.runs.rows import match_paths, place_groups, without_groups

ORDER = ("b.png", "a.png", "sub/c.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(ORDER):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), number, dtype=np.uint8)).save(file)
    return tmp_path / "photos"


def written(file: Path, paths: list[str], groups: list[int]) -> dict[str, str]:
    """A specification of `known` with a file of groups that names paths."""
    columns = {"row": list(range(len(paths))), "path": paths, "group": groups}
    if file.suffix == ".csv":
        lines = zip(*columns.values(), strict=True)
        file.write_text("row,path,group\n" + "".join(f"{row},{path},{group}\n" for row, path, group in lines))
    elif file.suffix == ".npz":
        np.savez(file, **{name: np.array(values) for name, values in columns.items()})
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), file)
    return {"name": "known", "groups": str(file)}


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_rows_are_found_by_path_in_any_order(photos: Path, tmp_path: Path, ending: str) -> None:
    spec = written(tmp_path / f"groups.{ending}", [str(photos / name) for name in ORDER], [7, -1, 7])
    data = open_dataset(str(photos), size=32)
    placed = place_groups(spec, data)["groups"]
    assert dict(zip(data.files, placed.tolist(), strict=True)) == {"a.png": -1, "b.png": 7, "sub/c.png": 7}
    joined = place_groups({"name": "ring+known", "known": {"groups": spec["groups"]}}, data)
    assert joined["known"]["groups"].tolist() == placed.tolist()


def test_new_samples_are_alone_and_those_that_are_gone_forgotten(photos: Path, tmp_path: Path) -> None:
    spec = written(tmp_path / "groups.csv", [str(photos / "gone.png"), str(photos / "a.png")], [3, 3])
    with pytest.warns(UserWarning, match="2 of 3 samples are not in"):
        placed = place_groups(spec, open_dataset(str(photos), size=32))
    assert placed["groups"].tolist() == [3, -1, -1]


def test_groups_of_another_folder_are_refused(photos: Path, tmp_path: Path) -> None:
    spec = written(tmp_path / "groups.csv", [f"/holiday/{name}" for name in ORDER], [7, -1, 7])
    with pytest.raises(ValueError, match=r"describes other samples than .*photos has: 0 of 3 are in it"):
        place_groups(spec, open_dataset(str(photos), size=32))


def test_a_folder_that_has_moved_keeps_its_groups(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = written(tmp_path / "groups.csv", [f"/old/photos/{name}" for name in ORDER], [7, -1, 7])
    assert place_groups(spec, open_dataset(str(photos), size=32))["groups"].tolist() == [-1, 7, 7]
    monkeypatch.chdir(tmp_path)
    spec = written(tmp_path / "groups.csv", [f"photos/{name}" for name in ORDER], [7, -1, 7])
    assert place_groups(spec, open_dataset(str(photos), size=32))["groups"].tolist() == [-1, 7, 7]
    assert match_paths(
        ["/x/photos/a.png", "/y/other/photos/a.png"], ["/y/photos/a.png"], Path("/y/photos")
    ).tolist() == [0]


def test_what_names_no_paths_is_left_to_known(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("row,group\n0,1\n1,1\n")
    data = open_dataset(str(photos), size=32)
    for spec in ({"name": "known", "groups": str(tmp_path / "groups.csv")}, {"name": "known"}, {"name": "none"}):
        assert place_groups(spec, data) is spec
    assert place_groups({"name": "known", "groups": "nowhere.csv"}, data)["groups"] == "nowhere.csv"


def test_without_groups_everybody_is_alone() -> None:
    assert without_groups({"name": "known", "groups": "any.csv"}, 3)["groups"].tolist() == [-1, -1, -1]
    assert without_groups({"name": "ring+known"}, 2)["known"]["groups"].tolist() == [-1, -1]
    assert without_groups({"name": "ring"}, 2) == {"name": "ring"}
