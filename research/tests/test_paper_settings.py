"""The options of every study under `--budget paper` are the numbers that the paper prints (ledger/settings.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from antipodes.evaluation.protocol import make_protocols
from antipodes.studies.definition import Study, load_study
from antipodes.studies.resolving import complete
from research.ledger.reports import studies, study_file

ROWS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "ledger" / "settings.yaml").read_text())[
    "studies"
]
PAPER = [name for name in studies() if "paper" in yaml.safe_load(study_file(name).read_text()).get("budgets", {})]

Config = Mapping[str, Any]


def _rate(config: Config) -> float:
    """The rate at the study's batch: a training run's option is that at a batch of 256, a toy's is the rate itself."""
    batches = config["batch_size"] / 256 if "optimizer" in config else 1.0
    return float(config["learning_rate"]) * batches


def _negatives(config: Config) -> int:
    method = config["method"]
    found: int = method["queue_size"] if "queue_size" in method else method["samples"]
    return found


# column -> the number of a resolved configuration
COLUMNS: dict[str, Callable[[Config], Any]] = {
    "optimizer": lambda config: config["optimizer"],
    "rate": _rate,
    "batch": lambda config: config["batch_size"],
    "epochs": lambda config: config["epochs"],
    "decay": lambda config: config["weight_decay"],
    "decays all": lambda config: config["decay_vectors"],
    "warmup": lambda config: config["warmup"] * config["epochs"],
    "schedule": lambda config: config["schedule"],
    "drops": lambda config: [round(share * config["epochs"]) for share in config["milestones"]],
    "clip": lambda config: config["clip_gradient"],
    "encoder": lambda config: config["encoder"]["name"],
    "text": lambda config: config["encoders"]["text"],
    "crop": lambda config: config["data"]["size"],
    "augmentation": lambda config: config["augmentation"]["name"],
    "blur": lambda config: config["augmentation"]["blur"],
    "head": lambda config: config["head"]["kind"],
    "hidden": lambda config: config["head"]["hidden"],
    "dim": lambda config: config["head"]["dim"],
    "negatives": _negatives,
    "start": lambda config: config["negatives"]["start"] * config["epochs"],
    "step_at": lambda config: config["negatives"]["step_at"] * config["epochs"],
    "annealed": lambda config: config["negatives"]["until"] * config["epochs"],
    "threshold rate": lambda config: config["negatives"]["lr"],
    "threshold betas": lambda config: config["negatives"]["betas"],
    "supports": lambda config: config["negatives"]["supports"],
    "temperature rate": lambda config: config["temperature"]["rate"],
    "gamma falls": lambda config: config["loss"]["gamma_until"] * config["epochs"],
    "refined share": lambda config: config["method"]["refined_share"],
    "predictor": lambda config: config["method"]["hidden"],
    "queue": lambda config: config["method"]["queue_size"],
    "queue start": lambda config: config["method"]["queue_start"] * config["epochs"],
    "clusters of prototypes": lambda config: config["method"]["clusters"],
    "code prototypes": lambda config: config["method"]["prototypes"],
    **{name: lambda config, name=name: config[name] for name in ("points", "layers", "width", "low")},
    "drawn": lambda config: config["negatives"],
    **{
        name: lambda config, name=name: config["method"][name]
        for name in ("momentum", "kappa", "crops", "prototypes", "concentration")
    },
    **{
        name: lambda config, name=name: config["loss"][name]
        for name in ("temperature", "gamma", "rho", "tau_prime", "mu", "quantile", "positive_weight", "negative_weight")
    },
    **{
        name: lambda config, name=name: config["negatives"][name]
        for name in ("clusters", "every", "alpha", "outer", "inner", "acceptance", "final_rate")
    },
}


def expected(row: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """The numbers of a variant: the study's row, then those of every pattern that its name fits."""
    found = {name: value for name, value in row.items() if name not in ("variants", "evaluation")}
    for pattern, numbers in row.get("variants", {}).items():
        if fnmatchcase(variant, pattern):
            found |= numbers
    return {name: value for name, value in found.items() if value is not None}


def evaluated(study: Study) -> dict[str, Any]:
    """How a study's encoders are judged: the test view, other datasets, and all options of every protocol."""
    protocols = make_protocols(study.protocols, study.protocol_options) if study.runner is None else []
    options = {protocol.name: protocol.options() for protocol in protocols}
    return {"centre_crop": study.centre_crop, "datasets": study.transfer, **options}


def test_every_study_with_the_papers_settings_has_a_row() -> None:
    assert sorted(ROWS) == sorted(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_the_settings_are_those_that_the_paper_prints(name: str) -> None:
    study, row = load_study(study_file(name), "paper"), ROWS[name]
    configs = {trial.variant: complete(trial, study.runner) for trial in study.trials(Path("out"))}
    unused = {pattern for pattern in row.get("variants", {}) if not any(fnmatchcase(each, pattern) for each in configs)}
    shared = {"byol*", "swav", "simsiam", "moco v2", "i-mix", "byol", "simclr*", "fnc*", "glofnd", "cmc*", "*sane*"}
    assert unused <= shared, "a row for no variant"
    compared = 0
    for variant, config in configs.items():
        if variant == "untrained":
            continue
        for column, value in expected(row, variant).items():
            ours = COLUMNS[column](config)
            if isinstance(value, float):
                ours, value = float(ours), pytest.approx(value, rel=0.015, abs=1e-12)
            elif isinstance(value, dict):
                ours = {key: ours[key] for key in value}
            elif isinstance(value, list):
                ours = list(ours)
            elif isinstance(value, int) and not isinstance(value, bool):
                ours, value = float(ours), pytest.approx(value, rel=0.015, abs=1e-12)
            assert ours == value, f"{variant}: {column}"
            compared += 1
    assert compared


@pytest.mark.parametrize("name", PAPER)
def test_encoders_are_judged_as_the_paper_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("1percent.txt", "10percent.txt"):  # SimCLR's lists of labelled images
        Path(file).write_text("0")
    found = evaluated(load_study(study_file(name), "paper"))
    for what, value in ROWS[name].get("evaluation", {}).items():
        if isinstance(value, dict):
            ours = {option: found[what][option] for option in value}
            assert {k: list(v) if isinstance(v, tuple) else v for k, v in ours.items()} == value, what
        else:
            assert found[what] == value, what
