"""The study files: every one can be trained, and the settings of the papers are the papers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from antipodes.studies.definition import Study
from antipodes.studies.definition import load_study as load_file
from antipodes.studies.resolving import complete
from research.ledger.papers import entries
from research.ledger.reports import studies, study_file


def load(name: str, *arguments: Any, **options: Any) -> Study:
    return load_file(study_file(name), *arguments, **options)


@pytest.mark.parametrize("name", studies())
def test_every_study_can_be_trained(name: str) -> None:
    """Every variant, and every budget, names options that antipodes train, or the study's runner, takes.

    A budget changes options that all variants share, so one variant stands for all of them; those of the papers are
    resolved where they are compared with the papers' numbers.
    """
    budgets = set(yaml.safe_load(study_file(name).read_text()).get("budgets", {})) - {"paper"}
    for budget in ("full", *budgets):
        study = load(name, budget)
        one_each = {trial.variant: trial for trial in study.trials(Path("out"))}
        for trial in list(one_each.values())[: None if budget == "full" else 1]:
            configuration = complete(trial, study.runner)
            assert study.runner or configuration["seed"] == trial.seed


def test_image_text_has_the_controls_that_its_question_names() -> None:
    variants = load("image-text").variants
    apart, known = variants["siblings apart .03"], variants["siblings known .03"]
    assert apart["data"]["rows"] == known["data"]["rows"] == "separate"
    assert apart["data"]["name"] == "flickr8k"
    assert (apart.get("negatives"), known["negatives"]) == (None, "known")
    assert apart["epochs"] * 5 == variants["clip .03"]["epochs"]  # five captions an image: as many steps
    assert variants["sogclr cosine .03"]["loss"]["gamma_until"] == 0.5
    assert variants["sogclr fnc 5 % .03"]["negatives"]["name"] == "fnc"
    assert variants["fnc 0.5 %"]["negatives"]["alpha"] == 0.005
    trials = load("image-text").trials(Path("out"))
    few = ("siblings apart .03", "siblings known .03", "sogclr cosine .03", "fnc 0.5 %")
    assert all([trial.seed for trial in trials if trial.variant == name] == [0, 1, 2] for name in few)
    main = ("clip", "glofnd 5 %", "clip .03", "glofnd 5 % .03", "fnc 5 % .03", "chance 5 % .03", "siglip .03")
    length = ("clip .03, 10 epochs", "glofnd 5 % .03, 10 epochs", "fnc 5 % .03, 10 epochs")
    assert all([trial.seed for trial in trials if trial.variant == name] == list(range(10)) for name in main + length)
    assert {variants[name]["epochs"] for name in length} == {10}
    assert load("image-text", "quick").variants["siblings apart .03"]["epochs"] == 1


def test_every_entry_of_the_papers_page_names_a_study_with_both_budgets_or_says_why_not() -> None:
    named = set()
    for entry in entries():
        assert len({"study", "command", "cannot"} & set(entry)) == 1, entry
        if "study" in entry:
            named.add(entry["study"])
    assert len(named) >= 38
    for name in named - {"label-recovery", "gradient-variance"}:  # theorems, of which the papers have no experiment
        budgets = yaml.safe_load(study_file(name).read_text())["budgets"]
        assert {"quick", "paper"} <= set(budgets), name


PAPER = [name for name in studies() if "paper" in yaml.safe_load(study_file(name).read_text())["budgets"]]


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings_use_all_of_the_data(name: str, tmp_path: Path) -> None:
    study = load(name, "paper")
    assert (study.test_limit, study.transfer_limit) == (None, None)
    if study.runner is None:
        Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
        for options in (study.variants, load(name, "paper", data={"name": str(tmp_path)}).variants):
            assert {each["data"].get("limit") for each in options.values()} == {None}
        untrained = study.variants.get("untrained", {"learning_rate": 0.0, "epochs": 1})
        assert (untrained["learning_rate"], untrained["epochs"]) == (0.0, 1)


@pytest.mark.parametrize("name", [name for name in PAPER if name.startswith("ring-")])
def test_rings_images_are_its_papers(name: str) -> None:
    for options in load(name, "paper").variants.values():
        assert options["data"]["size"] == 224  # of 256: maps of 512 x 7 x 7
        assert options["augmentation"]["statistics"] == "dataset"
        assert options["head"]["centred"] is False


def test_ifnds_pseudo_labels_are_held_between_clusterings() -> None:
    policies = [
        options["negatives"]
        for name in PAPER
        if name.startswith("ifnd-")
        for options in load(name, "paper").variants.values()
        if "negatives" in options
    ]
    assert len(policies) == 19
    assert {policy["name"] for policy in policies} == {"research.lesions.HeldIFND"}


def test_the_false_negative_study_compares_like_with_like() -> None:
    configs = {trial.variant: complete(trial) for trial in load("false-negatives").trials(Path("out"))}
    for variant, config in configs.items():
        if variant.endswith(" alone"):  # nothing is trained
            assert (config["epochs"], config["data"]["limit"]) == (0, 10_000)
            continue
        batch = 32 if "batch 32" in variant else 256
        assert (config["epochs"], config["batch_size"], config["data"]["limit"]) == (40, batch, 10_000)
        assert config["loss"]["temperature"] == {"simclr .1": 0.1, "simclr .5": 0.5}.get(variant, 0.2)
        assert config["encoder"]["name"] == "resnet8-slim"
    assert configs["fnc"]["negatives"] == configs["fnc"]["negatives"] | {"alpha": 0.1, "start": 0.3}
    assert configs["glofnd"]["negatives"]["alpha"] == 0.1
    assert configs["oracle"]["treatment"] == "eliminate"
