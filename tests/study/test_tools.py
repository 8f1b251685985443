"""What keeps long studies in order: digests of code, shared runs, status, and the list of papers."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest
import yaml

from antipodes.runs.folder import Run
from antipodes.study import code
from antipodes.study.definition import Trial, load, shipped
from antipodes.study.papers import entries, page
from antipodes.study.progress import StudyProgress
from antipodes.study.sharing import find_twin, link_run
from antipodes.study.status import State, at_work, describe, read_state, write_state

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
    assert code.changed(None, before) == "nobody knows which code it was run with"
    code.code_digests.cache_clear()


SIMCLR = {
    "method": {"name": "simclr"}, "loss": {"name": "info-nce"}, "negatives": {"name": "none"},
    "guide": {"name": "none"}, "encoder": {"name": "resnet8-slim"}, "data": {"name": "cifar10"}, "encoders": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, to be edited."""
    copy = tmp_path_factory.mktemp("package") / "antipodes"
    shutil.copytree(code.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "studies"))
    return copy


@pytest.mark.parametrize(
    ("file", "changes", "stale"),
    [
        ("negatives/ifnd.py", {}, False),
        ("methods/moco.py", {}, False),
        ("losses/global_contrastive.py", {}, False),
        ("encoders/minilm.py", {}, False),
        ("data/captioned.py", {}, False),
        ("evaluation/protocols/semi.py", {}, False),
        ("registry.py", {}, False),
        ("cli/train.py", {}, False),
        ("functional/contrast.py", {}, True),
        ("losses/loss.py", {}, True),
        ("training/loop.py", {}, True),
        ("pairs.py", {}, True),
        ("methods/simclr.py", {}, True),
        ("data/cifar.py", {}, True),
        ("encoders/resnet.py", {}, True),
        ("evaluation/protocols/linear.py", {}, True),
        ("negatives/ifnd.py", {"negatives": {"name": "ring+ifnd"}}, True),
        ("clustering.py", {"negatives": {"name": "ifnd"}}, True),
        ("negatives/cave.py", {"loss": {"name": "local-aggregation"}}, True),  # it builds one itself
        ("encoders/minilm.py", {"encoders": {"text": {"name": "minilm"}}}, True),
        ("data/stl10.py", {"transfer": ["stl10"]}, True),
        ("data/captioned.py", {"data": {"name": "moved/away"}}, True),  # nobody knows what it was
    ],
)
def test_a_run_is_stale_when_what_it_names_or_the_core_changes(
    file: str, changes: dict, stale: bool, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "PACKAGE", package)
    options = SIMCLR | changes
    transfer = options.pop("transfer", [])
    before = code.run_digests(options, ["linear"], transfer)
    with (package / file).open("a") as edited:
        edited.write("\n# another line\n")
    reason = f"{file} changed since" if stale else None
    assert code.changed(before, code.run_digests(options, ["linear"], transfer)) == reason


def test_a_class_of_ones_own_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_policy.py").write_text("from antipodes import FNC\n\n\nclass Mine(FNC):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = code.run_digests(SIMCLR | {"negatives": {"name": "my_policy.Mine"}})
    assert "my_policy" in found
    (tmp_path / "my_policy.py").write_text("x = 1\n")
    now = code.run_digests(SIMCLR | {"negatives": {"name": "my_policy.Mine"}})
    assert code.changed(found, now) == "my_policy changed since"


def test_records_of_earlier_versions_are_compared_by_rooms() -> None:
    rooms, now = code.code_digests(), code.run_digests(SIMCLR)
    assert code.changed(rooms, now) is None
    assert code.changed(rooms | {"negatives": "other"}, now) == "negatives changed since"
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
    assert Run.open(here).config() == CONFIG
    assert (here / "metrics.jsonl").stat().st_ino == (there / "metrics.jsonl").stat().st_ino
    assert not (here / "evaluation.json").exists()
    assert not (here / "study.json").exists()


def test_the_status_tells_what_is_done_at_work_left_and_failed(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    assert not at_work(tmp_path)
    write_state(tmp_path, State(["b, seed 0"], {"c, seed 0": "it diverged"}, began=100.0, before=0.5))
    state = read_state(tmp_path)
    shares = {"a, seed 0": 1.0, "b, seed 0": 0.5, "c, seed 0": 0.0}
    lines = describe(state, True, shares, {"a, seed 0": "methods changed since"}, now=200.0)
    assert lines == [
        "1 of 3 runs are finished, at work",
        "  b, seed 0: 50 %",
        "0:02:30 left",  # a run in 100 s, and one and a half to go
        "failed:",
        "  c, seed 0: it diverged",
        "1 finished runs are of older code:",
        "  a, seed 0: methods changed since",
    ]
    assert describe(state, False, shares, {})[0] == "1 of 3 runs are finished, not running"
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert at_work(tmp_path)
    assert not at_work(tmp_path)


def test_every_entry_of_the_papers_has_a_command_or_a_reason(tmp_path: Path) -> None:
    for entry in entries():
        assert len({"study", "command", "cannot"} & set(entry)) == 1, entry
        assert set(entry) <= {"item", "what", "study", "command", "cannot", "seen in", "part", "note"}, entry
    text = page(tmp_path)
    assert text.count("\n## ") == 5
    for row in [line for line in text.splitlines() if line.startswith("| ")]:
        assert row.count(" | ") == 3, row
    assert "`antipodes study ifnd-table-4` | defined, not run yet" in text


@pytest.mark.parametrize(
    ("variants", "table_7", "figure_3"),
    [
        (["hnssl"], "defined, not run yet", "defined, not run yet"),  # nothing to compare it with
        (
            ["hnssl", "momentum 1", "momentum 0", "all negatives"],
            "[partly measured, in a small setting](evidence/hnssl.md); not yet: momentum 0.999",
            "[partly measured, in a small setting](evidence/hnssl.md); not yet: target gradient",
        ),
        (
            ["hnssl", "momentum 1", "momentum 0.999", "momentum 0"],
            "[measured, in a small setting](evidence/hnssl.md)",
            "defined, not run yet",
        ),
    ],
)
def test_only_what_has_results_counts_as_measured(
    variants: list[str], table_7: str, figure_3: str, tmp_path: Path
) -> None:
    results = {variant: {"0": {"knn top-1": 40.0}} for variant in variants} | {"target gradient": {}}
    (tmp_path / "hnssl.json").write_text(json.dumps({"results": results}))
    text = page(tmp_path)
    assert f"`antipodes study hnssl-table-7` | {table_7} |" in text
    assert f"`antipodes study hnssl-figure-3` | {figure_3} |" in text


def test_a_part_of_a_table_is_not_the_table(tmp_path: Path) -> None:
    results = {name: {"0": {"knn top-1": 40.0}} for name in ("vanilla mixup", "momentum mixup")}
    (tmp_path / "sane.json").write_text(json.dumps({"results": results}))
    row = "`antipodes study sane-table-6` | [partly measured, in a small setting](evidence/sane.md); weak views |"
    assert row in page(tmp_path)
    own = {name: {"0": {"knn top-1": 40.0}} for name in load("sane-table-6").variants}
    (tmp_path / "sane-table-6.json").write_text(json.dumps({"results": own}))
    row = "`antipodes study sane-table-6` | [measured, in a small setting](evidence/sane-table-6.md) |"
    assert row in page(tmp_path)


def test_what_an_item_is_seen_in_has_such_variants() -> None:
    for entry in entries():
        for study, variants in entry.get("seen in", {}).items():
            assert set(variants) <= set(load(study).variants), entry["item"]


def test_every_study_of_a_paper_is_in_the_list() -> None:
    named = {name for entry in entries() for name in (entry.get("study"), *entry.get("seen in", {}))}
    of_papers = [name for name in shipped() if name.split("-")[0] in ("ifnd", "glofnd", "ring", "sane", "hnssl")]
    assert set(of_papers) - {"ring", "hnssl", "sane"} <= named


def test_the_committed_list_is_up_to_date() -> None:
    root = Path(__file__).parents[2] / "docs"
    assert (root / "papers.md").read_text() == page(root / "evidence")


def test_definitions_hold_no_findings() -> None:
    from antipodes.study.definition import SHIPPED

    for file in SHIPPED.glob("*.yaml"):
        assert "notes" not in yaml.safe_load(file.read_text())


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

        def share_done(self, trial: Trial, _: object) -> float:
            return shares[trial]

    clock = [0.0]
    monkeypatch.setattr("antipodes.study.progress.time.monotonic", lambda: clock[0])
    progress = StudyProgress(Some(), {trial: {} for trial in trials})  # type: ignore[arg-type]
    progress.working(trials[:1])
    clock[0], shares[trials[0]] = 10.0, 0.5
    progress.working(trials[:1])
    assert progress._left() == "0:00:14 left"  # .5 of a run in 10 s, and .7 of one are left
