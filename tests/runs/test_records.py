"""What a run writes down: lines, tables, and sums that ranks share."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from antipodes.runs.records import Records, RunningMeans, read_epochs, read_records
from tests.ranks import Ranks


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for step in range(1, 5):
        records.write("step", step, {"loss": 1 / step, "odd": math.nan})
    records.write("epoch", 4, {"epoch": 1, "loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # cut short by a kill
    again = Records(tmp_path, step=3)
    assert [line["step"] for line in read_records(tmp_path)] == [1, 2, 3]
    assert read_records(tmp_path)[0]["odd"] is None
    again.write("epoch", 4, {"epoch": 1, "loss": 0.25, "knn": 3.0})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == ["step,epoch,loss,knn", "4,1,0.25,3.0"]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_means_are_over_the_steps_that_have_a_number() -> None:
    totals = RunningMeans()
    totals.add({"loss": 1.0})
    totals.add({"loss": 3.0, "mtpr": 0.5})
    totals.add({"loss": 5.0, "mtpr": math.nan})
    assert totals.means() == {"loss": 3.0, "mtpr": 0.5}
    assert RunningMeans.resumed(totals.of_ranks()).means() == totals.means()


def means_of_rank(rank: int, world_size: int) -> dict[str, float]:
    totals = RunningMeans()
    totals.add({"loss": 1.0 + rank, "mtpr": math.nan if rank else 0.25})
    return totals.over_ranks().means()


def test_ranks_need_not_have_the_same_numbers(two_ranks: Ranks) -> None:
    for means in two_ranks(means_of_rank):
        assert means == pytest.approx({"loss": 1.5, "mtpr": 0.25})


def test_lines_that_are_no_records_are_left_out(tmp_path: Path) -> None:
    whole = [{"kind": "step", "step": 1, "loss": 2.0}, {"kind": "epoch", "step": 2, "epoch": 1, "loss": None}]
    odd = ["5", "null", "[1]", '"kind"', "{}", '{"kind": "epoch"}', '{"step": 3}', '{"kind": 5, "step": 3}', "\ufffd"]
    odd += ['{"kind": "step", "step": "3"}', '{"kind": "step", "step": -1}', '{"kind": "step", "step": true}']
    odd += ['{"kind": "epoch", "step": 3}', '{"kind": "step", "step": 3, "loss": "low"}', "[" * 100_000, "9" * 5000]
    lines = [json.dumps(whole[0]), *odd, json.dumps(whole[1])]
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    with pytest.warns(UserWarning, match=rf"{len(odd)} of {len(lines) + 1} lines of .*metrics\.jsonl"):
        assert read_records(tmp_path) == whole
    with pytest.warns(UserWarning, match="no records"):
        assert read_epochs(tmp_path) == whole[1:]
    with pytest.warns(UserWarning, match="no records"):
        assert Records(tmp_path, step=2).epochs == whole[1:]
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == whole
