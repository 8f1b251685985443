"""What keeps long studies in order: digests of code, shared runs, status, and the list of papers."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from antipodes.runs.folder import Run
from antipodes.studies import reuse as code
from antipodes.studies.definition import Trial
from antipodes.studies.progress import State, StudyProgress, at_work, describe_progress, read_state, write_state
from antipodes.studies.reuse import find_twin, link_run

CONFIG = {"epochs": 3, "seed": 0, "out": "a", "data": {"name": "shapes"}, "threads": None, "method": {"dims": [1, 2]}}


def test_a_room_that_changed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("functional/a.py", "methods/b.py", "cli/c.py", "pairs.py", "__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(code, "PACKAGE", tmp_path)
    code.code_digests.cache_clear()
    before = code.code_digests()
    assert set(before) == {"functional", "methods", "top"}
    (tmp_path / "methods" / "b.py").write_text("x = 2\n")
    (tmp_path / "cli" / "c.py").write_text("x = 2\n")
    code.code_digests.cache_clear()
    assert code.changed(before, code.code_digests()) == "methods changed since"
    assert code.changed(before, before) is None
    assert code.changed(None, before) == "the code that it was run with is not known"
    code.code_digests.cache_clear()


SIMCLR = {
    "method": {"name": "simclr"}, "loss": {"name": "info-nce"}, "negatives": {"name": "none"},
    "guide": {"name": "none"}, "encoder": {"name": "resnet8-slim"}, "data": {"name": "cifar10"}, "encoders": {},
}  # fmt: skip


def test_a_class_of_ones_own_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_policy.py").write_text("from antipodes import FNC\n\n\nclass Mine(FNC):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = code.run_digests(SIMCLR | {"negatives": {"name": "my_policy.Mine"}})
    assert "my_policy" in found
    (tmp_path / "my_policy.py").write_text("x = 1\n")
    now = code.run_digests(SIMCLR | {"negatives": {"name": "my_policy.Mine"}})
    assert code.changed(found, now) == "my_policy changed since"


def test_a_run_depends_on_rooms_that_numbers_come_from() -> None:
    now = code.run_digests(SIMCLR)
    assert set(now) == {*code.ROOMS, "top"}
    many = dict.fromkeys(list(now)[:5], "other")
    assert code.changed(now | many, now) == f"{', '.join(list(many)[:3])} and 2 more changed since"


def finished(out: Path, config: dict, digests: dict[str, str]) -> Path:
    run = Run(out / "plain" / f"seed-{config['seed']}")
    run.create(config)
    (run.folder / "metrics.jsonl").write_text("{}\n")
    (run.folder / "evaluation.json").write_text("{}")
    (run.folder / "study.json").write_text(json.dumps({"scores": {}, "code": digests}))
    return run.folder


def test_a_twin_has_the_same_settings_seed_and_code(tmp_path: Path) -> None:
    there = finished(tmp_path / "one", CONFIG, {"a": "1", "what it was measured with": "1"})
    wanted = CONFIG | {"out": "b", "threads": 4}
    assert find_twin(tmp_path / "two", wanted, {"a": "1"}) == there
    assert find_twin(tmp_path / "two", wanted, {"a": "2"}) is None  # of older code
    assert find_twin(tmp_path / "two", wanted, {"a": "1", "b": "1"}) is None  # of code that was not there
    assert find_twin(tmp_path / "two", wanted | {"seed": 1}, {"a": "1"}) is None
    assert find_twin(tmp_path / "two", wanted | {"epochs": 4}, {"a": "1"}) is None
    assert find_twin(tmp_path / "one", wanted, {"a": "1"}) is None  # not of the same study
    (there / "study.json").write_text("{")
    assert find_twin(tmp_path / "two", wanted, {"a": "1"}) is None


def test_a_linked_run_shares_its_files_and_has_no_scores_yet(tmp_path: Path) -> None:
    there = finished(tmp_path / "one", CONFIG, {})
    here = tmp_path / "two" / "plain" / "seed-0"
    here.parent.mkdir(parents=True)
    link_run(there, here)
    assert Run.open(here).config == CONFIG
    assert (here / "metrics.jsonl").stat().st_ino == (there / "metrics.jsonl").stat().st_ino
    assert not (here / "evaluation.json").exists()
    assert not (here / "study.json").exists()


def test_the_status_tells_what_is_done_at_work_left_and_failed(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    assert not at_work(tmp_path)
    write_state(tmp_path, State(["b, seed 0"], {"c, seed 0": "it diverged"}, began=100.0, before=0.5))
    state = read_state(tmp_path)
    shares = {"a, seed 0": 1.0, "b, seed 0": 0.5, "c, seed 0": 0.0}
    lines = describe_progress(state, True, shares, {"a, seed 0": "methods changed since"}, now=200.0)
    assert lines == [
        "1 of 3 runs are finished, at work",
        "  b, seed 0: 50 %",
        "0:02:30 left",  # a run in 100 s, and one and a half to go
        "failed:",
        "  c, seed 0: it diverged",
        "1 finished runs are of older code:",
        "  a, seed 0: methods changed since",
    ]
    assert describe_progress(state, False, shares, {})[0] == "1 of 3 runs are finished, not running"
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert at_work(tmp_path)
    assert not at_work(tmp_path)


def test_time_left_counts_what_waiting_runs_have_behind_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs that are taken over from another study are trained already, and wait to be scored."""
    trials = [Trial(name, 0, {}, tmp_path / name) for name in "abc"]
    shares = {trials[0]: 0.0, trials[1]: 0.9, trials[2]: 0.9}

    class Some:
        out, study = tmp_path, None

        def __init__(self) -> None:
            self.trials, self.done = trials, dict[Trial, dict[str, float]]()

        def scores(self, trial: Trial) -> dict[str, float] | None:
            return self.done.get(trial)

        def fraction_done(self, trial: Trial, _: object) -> float:
            return shares[trial]

    clock = [0.0]
    monkeypatch.setattr("antipodes.studies.progress.time.monotonic", lambda: clock[0])
    progress = StudyProgress(Some(), {trial: {} for trial in trials})  # type: ignore[arg-type]
    progress.working(trials[:1])
    clock[0], shares[trials[0]] = 10.0, 0.5
    progress.working(trials[:1])
    assert progress._left() == "0:00:14 left"  # .5 of a run in 10 s, and .7 of one are left
