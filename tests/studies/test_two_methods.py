"""Two methods with three seeds end in one table with paired differences: from Python, and from a YAML file."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

import antipodes
from antipodes.runs.folder import Run
from antipodes.studies.definition import load_study
from antipodes.studies.grid import refuse_change
from antipodes.studies.run import Outcome, open_grid
from antipodes.studies.statistics import summarise

STUDY = """common:
  data: {name: shapes, count: 256, test_count: 64}
  <<: {encoder: resnet8-slim, epochs: 1, batch_size: 64, threads: 1}
variants:
  simclr: {}
  moco: {method: moco}
seeds: [0, 1, 2]
protocols: [knn]
"""


def test_the_study_and_the_loop_end_in_the_same_table(tmp_path: Path) -> None:
    runs = []
    for method in ("simclr", "moco"):
        for seed in range(3):
            run = antipodes.train(
                data="shapes",
                out=tmp_path / f"{method}-{seed}",
                method=method,
                encoder="resnet8-slim",
                epochs=1,
                batch_size=64,
                seed=seed,
                threads=1,
                **{"data.count": 256, "data.test_count": 64},
            )
            antipodes.evaluate(run.path, "knn", save=True)
            runs.append(run.path)
    found = antipodes.compare(runs)
    header, _, simclr, moco = str(found).splitlines()
    assert header.split()[:3] == ["variant", "knn", "top-1"]
    assert "baseline" in simclr
    (line,) = (line for line in found.lines if line.variant == "moco" and line.score == "knn top-1")
    base = [found.results["simclr"][seed]["knn top-1"] for seed in range(3)]
    mine = [found.results["moco"][seed]["knn top-1"] for seed in range(3)]
    assert line.pairs == 3
    assert line.difference == pytest.approx(fmean(b - a for a, b in zip(base, mine, strict=True)))
    assert f"{line.difference:+.2f}" in moco

    assert len(STUDY.splitlines()) <= 8
    (tmp_path / "mine.yaml").write_text(STUDY)
    grid, configurations = open_grid(load_study(tmp_path / "mine.yaml"), tmp_path / "grid")
    asked = {(trial.variant, trial.seed): options for trial, options in configurations.items()}
    for method, seeds in found.groups.items():  # the study trains the same six runs, and scores them alike
        for seed, folder in seeds.items():
            refuse_change(grid.trials[0], json.loads(json.dumps(Run.open(folder).config)), asked[method, seed])
    outcome = Outcome(grid.study, {}, summarise(found.results, grid.study.baseline, grid.study.against), {}, {}, {})
    assert str(outcome).splitlines() == str(found).splitlines()
