"""The harness counts, repeats and bounds cases, and a few cases of every part find nothing wrong."""

from __future__ import annotations

import os
import random as random_
import signal
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import antipodes
from tests.attack import __main__ as driver
from tests.attack import bad_calls
from tests.attack.harness import Ended, Failure, Outcome, changes, in_child, run, sentence, snapshot

CASES = {  # of a smoke test; `make attack` has thousands
    "random_cases": 60,
    "kills": 1,
    "damaged_images": 3,
    "damaged_files": 4,
    "bad_command_lines": 6,
    "foreign_code": 1,
}


def part(attempt: object) -> ModuleType:
    """A part that has nothing to prepare."""
    module = ModuleType("tests.attack.made_up")
    module.prepare = lambda folder: None  # type: ignore[attr-defined]
    module.attempt = attempt  # type: ignore[attr-defined]
    return module


def draws(random: random_.Random, folder: Path) -> Outcome:
    number = random.randrange(1000)
    if number % 3 == 0:
        raise Failure(f"drew {number}")
    return "ok" if number % 3 == 1 else "refused"


def test_cases_are_counted_and_one_can_be_repeated() -> None:
    counts = run(part(draws), 30, seed=4, seconds=60, jobs=2)
    assert counts.tried == 30 == counts.ok + counts.refused + len(counts.failures)
    assert counts.ok
    assert counts.refused
    options, _, text = counts.failures[0].partition(": ")
    again = run(part(draws), 30, seed=4, seconds=60, case=int(options.split()[-1]))
    assert again.tried == 1
    assert again.failures == [f"{options}: {text}"]
    assert counts.failures != run(part(draws), 30, seed=5, seconds=60, jobs=2).failures


def test_a_worker_that_dies_is_a_failure() -> None:
    def dies(random: random_.Random, folder: Path) -> Outcome:
        os.kill(os.getpid(), signal.SIGSEGV)
        return "ok"

    (failure,) = run(part(dies), 5, seed=0, seconds=60).failures
    assert "--case 0" in failure
    assert "died" in failure


def test_time_is_bounded() -> None:
    def slow(random: random_.Random, folder: Path) -> Outcome:
        time.sleep(0.2)
        return "ok"

    assert 1 <= run(part(slow), 1000, seed=0, seconds=0.5).tried <= 10


def test_a_child_is_stopped_and_measured(tmp_path: Path) -> None:
    ended = in_child(lambda: time.sleep(60) or 0, tmp_path, seconds=0.3)
    assert ended.timed_out
    assert ended.code == -signal.SIGKILL

    def grows() -> int:
        return (len(b"\1" * 100_000_000) and print("done")) or 0

    ended = in_child(grows, tmp_path)
    assert (ended.code, ended.out) == (0, "done\n")
    assert 60 < ended.megabytes < 200


@pytest.mark.parametrize(
    ("code", "errors", "timed_out"),
    [
        (1, "antipodes: no\n", False),
        (0, "", False),
        (2, "antipodes: no\nantipodes: no\n", False),
        (2, "antipodes: no\nand more\n", False),
        (2, "Traceback (most recent call last):\nantipodes: no\n", False),
        (2, "antipodes: \x1b[31m no\n", False),
        (2, "antipodes: no\n", True),
    ],
)
def test_what_is_not_one_sentence_is_a_failure(code: int, errors: str, timed_out: bool) -> None:
    with pytest.raises(Failure):
        sentence(Ended(code, "", errors, 1.0, 0.0, timed_out), "call")
    assert sentence(Ended(2, "", "warning: odd\nantipodes: no\n", 1.0, 0.0, False), "call") == "antipodes: no"


def test_changes_name_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    before = snapshot(tmp_path)
    assert changes(before, snapshot(tmp_path)) == ""
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("longer")
    (tmp_path / "c").mkdir()
    assert changes(before, snapshot(tmp_path)) == "gone: a; new: c; changed: b"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_a_few_cases_find_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path))
    counts = run(import_module(f"tests.attack.{name}"), CASES[name], seed=1, seconds=120)
    assert counts.tried
    assert counts.failures == []


@pytest.mark.parametrize("seed", [11, 12, 13, 14])
def test_ten_thousand_bad_calls_are_refused_by_name_or_work(seed: int) -> None:
    found = bad_calls.run(2500, seed)
    assert found.failures == []
    assert sum(found.counts.values()) == 2500
    assert min(found.counts["refused"], found.counts["fine"]) > 50


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda z1: torch.zeros(3)[z1], "foreign"),
        (lambda z1: torch.tensor(float("nan")), "not finite"),
        (lambda z1: time.sleep(30), "hang"),
        (lambda z1: antipodes.InfoNCE()(z1, None), "refused"),
    ],
)
def test_a_bad_call_is_classified(call: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_calls, "SECONDS", 0.2)
    target = bad_calls.Target("made up", call, {})
    assert bad_calls.classify(target, {"z1": torch.ones(2, 2)}, construct=False)[0] == kind


def test_the_driver_counts_bad_calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert driver.main(["--part", "bad_calls", "--minutes", "0.02", "--seed", "3"]) == 0
    assert '{"bad_calls": {"tried": 20, ' in capsys.readouterr().out
    failing = bad_calls.Result(Counter({"fine": 2, "foreign": 1}), ["foreign: InfoNCE"])
    monkeypatch.setattr(bad_calls, "run", lambda count, seed: failing)
    assert driver.main(["--part", "bad_calls"]) == 1


def test_every_part_is_run_by_the_driver() -> None:
    assert {*CASES, "bad_calls"} == set(driver.PARTS)
    assert sum(share for share, _ in driver.PARTS.values()) == pytest.approx(1.0)


def test_the_driver_ends_with_json_and_tells_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "import_module", lambda name: part(draws))
    assert driver.main(["--part", "kills", "--minutes", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith('{"kills": {"tried": 60, ')
