"""YAML files that are no study: one sentence each that names the file, within bounds of memory and time."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from antipodes.runs.yaml_files import read_options
from antipodes.studies.definition import load_study
from tests.cli.command import refused

STUDY: dict[str, Any] = {
    "title": "t",
    "question": "q",
    "common": {"data": {"name": "shapes", "limit": 20}, "epochs": 1},
    "variants": {"plain": {}, "other": {"batch_size": 8}},
    "seeds": [0, 1],
    "baseline": "plain",
    "protocols": ["knn"],
}
OPTIONAL: dict[str, Any] = {
    "test_limit": 10,
    "transfer": ["shapes"],
    "transfer_limit": 10,
    "scores": ["knn"],
    "records": ["loss"],
    "curves": ["loss"],
    "paper": [{"source": "s", "measured": "m", "scores": {"plain": {"knn": 1.0}}}],
    "appendix": {"by": "tests.studies.test_definition.Counted", "word": "runs"},
    "budgets": {"quick": {"seeds": [0]}},
}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + below] * 9)}]\n" for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join(['*' + below] * 9)}], {name}1: 1}}\n"
    for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "empty": b"",
    "null": b"~",
    "number": b"5",
    "list": b"- a\n- b\n",
    "text": b"only words",
    "bytes": b"\xff\xfe\x00\xd8",
    "latin": "title: caf\xe9".encode("latin-1"),
    "zero byte": b"title: \x00",
    "tab": b"title:\n\t- a",
    "open bracket": b"title: [1, 2",
    "open quote": b'title: "abc',
    "two documents": b"title: a\n---\ntitle: b\n",
    "unknown alias": b"title: *nowhere",
    "endless": b"title: &a [*a]",
    "endless mapping": b"&a {title: *a}",
    "unhashable key": b"{[1, 2]: 3}",
    "number as key": b"{1: 2}",
    "object": b"title: !!python/object/apply:os.mkdir [made]",
    "name": b"title: !!python/name:os.system",
    "date": b"title: 2020-99-99",
    "tagged int": b"title: !!int x",
    "tagged bool": b"title: !!bool x",
    "tagged date": b"title: !!timestamp x",
    "tagged float": b"title: !!float x",
    "many digits": b"title: " + b"9" * 5000,
    "many minutes": b"title: 1" + b":59" * 100_000,
    "deep": b"title: " + b"[" * 20_000,
    "deep blocks": b"".join(b" " * i + b"a:\n" for i in range(1300)),
    "large": b"# " + b"x" * 2_000_000,
    "many values": b"title: [" + b"1," * 150_000 + b"]",
    "bomb": BOMB.encode(),
    "merge bomb": MERGES.encode(),
}
VALUES: list[Any] = [None, 0, -1, 1.5, True, "", "x", [], [1], [None], [[]], ["x"], {}, {"x": 1}, {1: 2}, {"x": None}]
VALUES += [{"plain": 5}, {"plain": [1]}, {"quick": 5}, {"quick": {"seeds": 5}}, [{"source": "s"}], [True], "9" * 300]


@pytest.mark.parametrize("name", FILES)
def test_odd_files_get_one_sentence(tmp_path: Path, name: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_bytes(FILES[name])
    for read in (load_study, read_options):
        with pytest.raises(ValueError, match=r"odd\.yaml") as caught:
            read(str(file))
        assert type(caught.value) is ValueError
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 800
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("key", [*STUDY, *OPTIONAL, "runner"])
def test_odd_values_get_one_sentence_or_are_a_study(tmp_path: Path, key: str) -> None:
    file, refusals = tmp_path / "odd.yaml", 0
    for value, budget in itertools.product(VALUES, ("full", "quick")):
        file.write_text(yaml.safe_dump({**STUDY, **OPTIONAL, key: value}))
        try:
            json.dumps([trial.options for trial in load_study(str(file), budget).trials(tmp_path)])
        except ValueError as error:
            refusals += 1
            assert "odd.yaml" in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
    assert refusals > 0 or key in ("title", "question")


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    for content in (FILES["bomb"], FILES["date"], FILES["bytes"]):
        file.write_bytes(content)
        assert "odd.yaml" in refused("study", file)
    changes: tuple[dict[str, Any], ...] = (
        {"common": {"data": {1: 2}}},
        {"runner": "nobody"},
        {"baseline": ["plain"]},
        {"common": {"x": "y"}},
        {"common": {"data": {"name": "rhapes"}}},
        {"protocols": ["onn"]},
        {"protocols": [{"knn": {"kk": 3}}]},
    )
    for change in changes:
        file.write_text(yaml.safe_dump({**STUDY, **change}))
        assert "odd.yaml" in refused("study", file)


LOAD = """
import resource, sys
from antipodes.studies.definition import load_study
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_study(sys.argv[1])
except ValueError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("bomb", [BOMB, MERGES])
def test_a_bomb_takes_no_memory(tmp_path: Path, bomb: str) -> None:
    (tmp_path / "bomb.yaml").write_text(yaml.safe_dump(STUDY) + bomb)
    call = [sys.executable, "-c", LOAD, str(tmp_path / "bomb.yaml")]
    grown = subprocess.run(call, capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(grown) < 50_000  # kilobytes


def test_anchors_and_merges_within_bounds_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: &base {x: 1, y: 2}\nmore: {<<: *base, y: 3}\n")
    assert read_options(tmp_path / "a.yaml") == {"base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}}
