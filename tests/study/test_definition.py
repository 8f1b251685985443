"""Studies as files: what is read from them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from antipodes.cli.study import complete
from antipodes.study.definition import load, merge, shipped


def content(**changes: Any) -> dict[str, Any]:
    study: dict[str, Any] = {
        "title": "A study",
        "question": "What is\n it worth?",
        "common": {"data": {"name": "shapes", "count": 64}, "method": {"name": "simclr", "temperature": 0.2}},
        "variants": {"plain": None, "fnc": {"negatives": {"name": "fnc", "alpha": 0.1}, "seeds": [5, 1]}},
        "seeds": [0, 1, 2],
        "baseline": "plain",
        "protocols": ["knn"],
        "budgets": {"quick": {"seeds": [1], "test_limit": 10, "common": {"epochs": 2, "data": {"count": 32}}}},
    }
    return {key: value for key, value in (study | changes).items() if value is not ...}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(**changes: Any) -> str:
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content(**changes), sort_keys=False))
        return str(tmp_path / "mine.yaml")

    return write


def test_every_variant_runs_with_every_seed_but_where_it_names_fewer(write: Any) -> None:
    study = load(write())
    trials = study.trials(Path("out"))
    assert [str(trial) for trial in trials] == ["plain, seed 0", "plain, seed 1", "fnc, seed 1", "plain, seed 2"]
    assert trials[2].folder == Path("out/fnc/seed-1")
    assert " ".join(trials[2].arguments()) == (
        "--data.name shapes --data.count 64 --method.name simclr --method.temperature 0.2 "
        "--negatives.name fnc --negatives.alpha 0.1 --seed 1 --out out/fnc/seed-1"
    )
    assert (study.label, study.question) == ("mine", "What is it worth?")
    assert load(write(), seeds=[0]).seeds == {"plain": [0]}


def test_a_budget_replaces_what_it_names(write: Any) -> None:
    study = load(write(), "quick")
    assert (study.label, study.test_limit, study.seeds) == ("mine-quick", 10, {"plain": [1], "fnc": [1]})
    assert study.variants["fnc"]["data"] == {"name": "shapes", "count": 32}
    assert study.variants["fnc"]["epochs"] == 2
    assert load(write()).variants["plain"]["data"]["count"] == 64


def test_components_are_merged_by_name() -> None:
    below = {"method": {"name": "moco", "queue_size": 64}, "encoder": "resnet8-slim", "epochs": 3}
    assert merge(below, {"method": {"queue_size": 8}})["method"] == {"name": "moco", "queue_size": 8}
    assert merge(below, {"method": {"name": "moco", "dim": 8}})["method"] == {
        "name": "moco",
        "queue_size": 64,
        "dim": 8,
    }
    assert merge(below, {"method": {"name": "simclr"}})["method"] == {"name": "simclr"}
    assert merge(below, {"encoder": {"width": 8}})["encoder"] == {"name": "resnet8-slim", "width": 8}
    assert merge(below, {"encoder": "resnet18-slim", "epochs": 4}) == below | {"encoder": "resnet18-slim", "epochs": 4}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"variant": {}}, "unknown key 'variant': it takes title, question"),
        ({"seeds": ...}, "lacks 'seeds'"),
        ({"seeds": [0, 0]}, "list of different whole numbers"),
        ({"baseline": "plane"}, "baseline 'plane' is not a variant: there are plain, fnc"),
        (
            {"variants": {"plain": {}, "fnc": {"against": "glo"}}},
            "compared with 'glo', which is not a variant",
        ),
        ({"protocols": "knn"}, "protocols should be a list of names"),
        ({"transfer": "shapes"}, "transfer should be a list of names"),
        ({"protocols": ["transfer"]}, "protocol transfer needs datasets"),
        ({"variants": {"plain": {"seed": 3}}}, "variant plain may not set seed"),
        ({"variants": {"plain": "simclr"}}, "variant plain should be a mapping"),
        ({"variants": {"plain": {}, "Plain!": {}}}, "names that differ in letters and digits"),
        ({"paper": [{"source": "x", "measured": "y", "scores": {"glo": {"a": 1}}}]}, "'glo', which is not a variant"),
        ({"budgets": {"full": {"epochs": 1}}}, "budget full has an unknown key 'epochs'"),
    ],
)
def test_a_wrong_study_is_refused(write: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^study .*mine\.yaml: ") as error:
        load(write(**changes))
    assert sentence in str(error.value)


def test_an_unknown_study_or_budget_lists_what_exists(write: Any) -> None:
    with pytest.raises(ValueError, match=r"no study 'none': choose one of .*false-negatives"):
        load("none")
    with pytest.raises(ValueError, match="no budget 'slow': choose one of full, quick"):
        load(write(), "slow")


def test_a_study_with_a_runner_needs_no_protocols(write: Any) -> None:
    of_runner = {"runner": "label-recovery", "common": {"steps": 5}, "variants": {"plain": {"alpha": 0.5}}}
    quick = {"quick": {"seeds": [1], "common": {"steps": 2}}}
    path = write(**of_runner, protocols=..., budgets=quick, notes=" found\n")
    study = load(path)
    assert (study.runner, study.protocols, study.notes) == ("label-recovery", [], "found")
    assert load(path, "quick").variants == {"plain": {"steps": 2, "alpha": 0.5}}
    assert load(path, "quick").notes == load(path, seeds=[0]).notes == ""  # they are about the whole study
    with pytest.raises(ValueError, match="unknown key 'protocols'"):
        load(write(**of_runner, budgets=quick))
    with pytest.raises(ValueError, match="budget quick has an unknown key 'test_limit'"):
        load(write(**of_runner, protocols=...), "quick")


@pytest.mark.parametrize("name", shipped())
def test_the_shipped_studies_can_be_trained(name: str) -> None:
    """Every budget names options that antipodes train, or the study's runner, takes."""
    for budget in ("full", "quick"):
        study = load(name, budget)
        for trial in study.trials(Path("out")):
            configuration = complete(trial, study.runner)
            assert study.runner or configuration["seed"] == trial.seed


def test_the_false_negative_study_compares_like_with_like() -> None:
    configs = {trial.variant: complete(trial) for trial in load("false-negatives").trials(Path("out"))}
    for variant, config in configs.items():
        batch = 32 if "batch 32" in variant else 256
        assert (config["epochs"], config["batch_size"], config["data"]["limit"]) == (40, batch, 10_000)
        assert config["method"]["temperature"] == 0.2
        assert config["encoder"]["name"] == "resnet8-slim"
    assert configs["fnc"]["negatives"] == {"name": "fnc", "alpha": 0.1, "start": 0.3, "supports": 0}
    assert configs["glofnd"]["negatives"]["alpha"] == 0.1
    assert configs["oracle"]["treatment"] == "eliminate"
