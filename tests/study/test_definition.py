"""Studies as files: what is read from them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from antipodes.cli.study import complete
from antipodes.study.claims import judge_claims
from antipodes.study.definition import SHIPPED, load, merge, shipped
from antipodes.study.papers import entries


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


def test_every_variant_runs_with_every_seed_but_where_it_names_fewer(write: Any, tmp_path: Path) -> None:
    study = load(write())
    trials = study.trials(Path("out"))
    assert [str(trial) for trial in trials] == ["plain, seed 0", "plain, seed 1", "fnc, seed 1", "plain, seed 2"]
    assert trials[2].folder == Path("out/fnc/seed-1")
    assert trials[2].arguments() == ["--config", "out/fnc/seed-1.yaml", "--out", "out/fnc/seed-1"]
    written = trials[2].write(tmp_path / "options.yaml")
    assert yaml.safe_load(written.read_text()) == {
        "data": {"name": "shapes", "count": 64},
        "method": {"name": "simclr", "temperature": 0.2},
        "negatives": {"name": "fnc", "alpha": 0.1},
        "seed": 1,
    }
    assert (study.label, study.question) == ("mine", "What is it worth?")
    assert load(write(), seeds=[0]).seeds == {"plain": [0]}


def test_a_budget_replaces_what_it_names(write: Any) -> None:
    study = load(write(), "quick")
    assert (study.label, study.test_limit, study.seeds) == ("mine-quick", 10, {"plain": [1], "fnc": [1]})
    assert study.variants["fnc"]["data"] == {"name": "shapes", "count": 32}
    assert study.variants["fnc"]["epochs"] == 2
    assert load(write()).variants["plain"]["data"]["count"] == 64
    claims = {"transfer mean": ["plain < fnc"]}
    path = write(claims={"transfer one top-1": ["plain < fnc"]}, budgets={"paper": {"claims": claims}})
    assert [claim.score for claim in load(path, "paper").claims] == ["transfer mean"]
    assert [claim.score for claim in load(path).claims] == ["transfer one top-1"]


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
    path = write(**of_runner, protocols=..., budgets=quick)
    study = load(path)
    assert (study.runner, study.protocols, study.is_own) == ("label-recovery", [], True)
    assert load(path, "quick").variants == {"plain": {"steps": 2, "alpha": 0.5}}
    assert not load(path, "quick").is_own
    assert not load(path, seeds=[0]).is_own
    with pytest.raises(ValueError, match="unknown key 'protocols'"):
        load(write(**of_runner, budgets=quick))
    with pytest.raises(ValueError, match="budget quick has an unknown key 'test_limit'"):
        load(write(**of_runner, protocols=...), "quick")


@pytest.mark.parametrize("name", shipped())
def test_the_shipped_studies_can_be_trained(name: str) -> None:
    """Every budget names options that antipodes train, or the study's runner, takes."""
    for budget in ("full", *yaml.safe_load((SHIPPED / f"{name}.yaml").read_text()).get("budgets", {})):
        study = load(name, budget)
        one_each = {trial.variant: trial for trial in study.trials(Path("out"))}
        for trial in one_each.values():
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


def test_a_budget_may_have_options_of_single_variants(write: Any) -> None:
    path = write(budgets={"paper": {"variants": {"fnc": {"negatives": {"alpha": 0.01}}}}})
    assert load(path, "paper").variants["fnc"]["negatives"] == {"name": "fnc", "alpha": 0.01}
    assert "negatives" not in load(path, "paper").variants["plain"]
    with pytest.raises(ValueError, match="'glo', which is not a variant"):
        load(write(budgets={"paper": {"variants": {"glo": {}}}}), "paper")


def test_other_data_makes_it_another_grid(write: Any) -> None:
    study = load(write(), data={"name": "cifar10", "limit": 5})
    assert {str(options["data"]) for options in study.variants.values()} == {str({"name": "cifar10", "limit": 5})}
    assert not study.is_own


def test_other_data_keeps_a_variants_classes_and_a_budgets_limit(write: Any) -> None:
    few = {"plain": {"data": {"classes": 3}}, "fnc": {"negatives": "fnc"}}
    budgets = {"quick": {"common": {"data": {"limit": 9}}}, "paper": {"common": {"data": {"limit": None}}}}
    path, data = write(variants=few, budgets=budgets), {"name": "cifar100"}
    assert load(path, data=data).variants["plain"]["data"]["classes"] == 3
    assert "classes" not in load(path, data=data).variants["fnc"]["data"]
    assert load(path, "quick", data=data).variants["plain"]["data"]["limit"] == 9
    assert load(path, "paper", data=data).variants["fnc"]["data"]["limit"] is None


def test_every_entry_of_the_papers_page_names_a_study_with_both_budgets_or_says_why_not() -> None:
    named = set()
    for entry in entries():
        assert len({"study", "command", "cannot"} & set(entry)) == 1, entry
        if "study" in entry:
            named.add(entry["study"])
    assert len(named) >= 38
    for name in named - {"label-recovery", "gradient-variance"}:  # theorems, of which the papers have no experiment
        budgets = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())["budgets"]
        assert {"quick", "paper"} <= set(budgets), name


PAPER = [name for name in shipped() if "paper" in yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())["budgets"]]


def paper(name: str) -> dict[str, dict[str, Any]]:
    """Variant -> its complete configuration under the budget `paper`."""
    study = load(name, "paper")
    trials = {trial.variant: trial for trial in study.trials(Path("out"))}
    return {variant: complete(trial, study.runner) for variant, trial in trials.items()}


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


@pytest.mark.parametrize("name", ["ring-table-1", "ring-table-6", "ring-figure-2b"])
def test_rings_settings_are_those_of_its_section_5(name: str) -> None:
    for variant, config in paper(name).items():
        assert config["augmentation"]["blur"] == 0
        assert (config["head"]["kind"], config["head"]["dim"]) == ("linear", 128)
        assert (config["encoder"]["name"], config["loss"]["temperature"]) == ("resnet18", 0.07)
        assert (config["optimizer"], config["momentum"], config["weight_decay"]) == ("sgd", 0.9, 1e-4)
        assert config["batch_size"] == (128 if variant.startswith("cmc") else 256)
        assert config["learning_rate"] * config["batch_size"] / 256 == pytest.approx(0.03)
        assert config["warmup"] == 0
        if config["epochs"] == 300:
            drops = [round(300 * share) for share in config["milestones"]]
            assert (config["schedule"], drops) == ("step", [200, 250])
        else:  # Figure 2, which is over before the first drop
            assert (config["schedule"], config["epochs"]) == ("constant", 200)
            assert config["negatives"]["until"] == 0.5


def test_ifnds_pseudo_labels_are_held_between_clusterings() -> None:
    policies = [
        options["negatives"]
        for name in PAPER
        if name.startswith("ifnd-")
        for options in load(name, "paper").variants.values()
        if "negatives" in options
    ]
    assert len(policies) == 17
    assert all(policy["held"] for policy in policies)


@pytest.mark.parametrize("name", ["ifnd-table-1", "ifnd-table-3"])
def test_ifnds_settings_are_those_of_its_appendix_c_and_algorithm_1(name: str) -> None:
    for variant, config in paper(name).items():
        if "ifnd" in variant:
            assert config["negatives"]["every"] == (20 if config["encoder"]["name"] == "resnet50-cifar" else 1)
            assert (config["head"]["kind"], config["loss"]["temperature"]) == ("mlp3", 0.4)
        rate = config["learning_rate"] * config["batch_size"] / 256
        if config["encoder"]["name"] == "resnet50-cifar":
            assert (rate, config["weight_decay"], 1000 * config["warmup"]) == (0.5, 1e-4, 10)
        else:
            drops = [round(200 * share) for share in config["milestones"]]
            assert (rate, config["weight_decay"], config["schedule"], drops) == (0.03, 1e-4, "step", [120, 160])


@pytest.mark.parametrize("name", ["glofnd-figure-2", "glofnd-table-7"])
def test_glofnds_settings_are_those_of_its_appendix_d(name: str) -> None:
    for config in paper(name).values():
        assert (config["augmentation"]["name"], config["optimizer"], config["weight_decay"]) == ("sogclr", "lars", 1e-6)
        rate = config["learning_rate"] * config["batch_size"] / 256
        assert rate == pytest.approx(0.075 * config["batch_size"] ** 0.5, rel=0.01)
        assert (200 * config["warmup"], config["head"]["hidden"], config["head"]["dim"]) == (10, 128, 128)


def test_hnssls_adam_is_not_simclrs() -> None:
    configs = paper("hnssl-table-1")
    for variant, config in configs.items():
        rate = config["learning_rate"] * config["batch_size"] / 256
        if variant.startswith("simclr"):
            assert (config["optimizer"], config["epochs"], rate) == ("lars", 1000, pytest.approx(4.8))
        elif variant.startswith("hnssl"):
            assert (config["optimizer"], config["weight_decay"], rate) == ("adamw", 0.0, pytest.approx(0.1))
    assert configs["simclr, wider"]["encoder"]["name"] == "resnet50-2x"


def test_the_toy_of_rings_table_5_is_the_papers_but_for_its_rate() -> None:
    rates = {variant: config["learning_rate"] for variant, config in paper("mutual-information").items()}
    assert set(rates.values()) == {0.03}


def test_other_data_keeps_the_options_of_the_studys_own_that_it_takes(write: Any, tmp_path: Path) -> None:
    images = tmp_path / "photos"
    for name in ("a", "b"):
        (images / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(images / name / "one.png")
    own = {"name": "flickr8k", "path": "elsewhere", "size": 64, "decode": 96, "rows": "caption"}
    path = write(common={"data": own, "epochs": 1})
    found = load(path, data={"name": str(images)}).variants["plain"]["data"]
    assert found == {"name": str(images), "size": 64, "decode": 96}  # a folder has no captions, and a path of its own
    assert load(path, data={"name": str(images), "size": 32}).variants["plain"]["data"]["size"] == 32
    assert load(path, data={"name": "cifar10"}).variants["plain"]["data"] == {"name": "cifar10", "size": 64}
    sharp = write(common={"data": own, "epochs": 1}, variants={"plain": {}, "sharp": {"data": {"size": 128}}})
    sizes = {
        name: each["data"]["size"]
        for name, each in load(sharp, data={"name": str(images), "size": 32}).variants.items()
    }
    assert sizes == {"plain": 32, "sharp": 128}


def test_claims_are_judged_over_seeds(write: Any) -> None:
    study = load(write(claims={"a": ["plain < fnc"], "b": ["fnc < plain", "plain < fnc"], "c": ["plain < fnc"]}))
    results = {
        "plain": {0: {"a": 1.0, "b": 1.0}, 1: {"a": 2.0, "b": 1.0}, 2: {"a": 3.0}},
        "fnc": {0: {"a": 2.0, "b": 2.0}, 1: {"a": 3.1, "b": 2.2}, 2: {"a": 4.05}},
    }
    held, against, other, untested = judge_claims(study.claims, results)
    assert (held.verdict, held.seeds) == ("held", 3)
    assert held.difference == pytest.approx(1.05)
    assert (against.verdict, str(against.claim)) == ("not held", "fnc < plain")
    assert against.p == pytest.approx(1 - (other.p or 0))
    assert untested.verdict == "not tested"
    (crossed,) = judge_claims(load(write(claims={"b < a": ["plain < fnc"]})).claims, results)
    assert (crossed.seeds, crossed.difference) == (2, pytest.approx(1.55))  # fnc's a over plain's b, of two seeds
    with pytest.raises(ValueError, match="should read WORSE < BETTER"):
        load(write(claims={"a": ["plain > fnc"]}))


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
