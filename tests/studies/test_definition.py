"""Studies as files: what is read from them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from antipodes.cli.evaluate import _parser
from antipodes.studies.definition import load_study, merge
from antipodes.studies.grid import Grid


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
    study = load_study(write())
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
    assert load_study(write(), seeds=[0]).seeds == {"plain": [0]}


def test_a_budget_replaces_what_it_names(write: Any) -> None:
    study = load_study(write(), "quick")
    assert (study.label, study.test_limit, study.seeds) == ("mine-quick", 10, {"plain": [1], "fnc": [1]})
    assert study.variants["fnc"]["data"] == {"name": "shapes", "count": 32}
    assert study.variants["fnc"]["epochs"] == 2
    assert load_study(write()).variants["plain"]["data"]["count"] == 64
    counted = {"by": f"{__name__}.Counted"}
    path = write(appendix=counted | {"word": "a"}, budgets={"paper": {"appendix": counted | {"word": "b"}}})
    assert (load_study(path, "paper").appendix["word"], load_study(path).appendix["word"]) == ("b", "a")


def test_protocols_take_options(write: Any, tmp_path: Path) -> None:
    lists = {"fractions": [0.01, 0.1], "ids": ["1.txt", "10.txt"], "head_rate": [1.0, 0.1]}
    with_options = [{"linear-sgd": {"rates": [0.1, 1.0], "space": "pooled"}}, {"fine-tune": lists}]
    study = load_study(write(protocols=["linear", *with_options], centre_crop=0.875))
    assert study.protocols == ["linear", "linear-sgd", "fine-tune"]
    grid = Grid(study, tmp_path, {trial: trial.options for trial in study.trials(tmp_path)})
    call = grid._commands(grid.trials[0])[1]
    assert call[call.index("--linear_sgd.rates") + 1] == "[0.1, 1.0]"
    assert call[call.index("--linear_sgd.space") + 1] == "pooled"
    assert call[call.index("--centre_crop") + 1] == "0.875"
    parsed = _parser(study.protocols).parse_args(call[1:])
    assert list(parsed.linear_sgd.rates) == [0.1, 1.0]
    assert {option: list(parsed.fine_tune[option]) for option in lists} == lists  # not a file called ["1.txt", ...
    for wrong in ("knn", [5], [{"knn": 5}]):
        with pytest.raises(ValueError, match="protocol"):
            load_study(write(protocols=wrong))
    with pytest.raises(ValueError, match="centre_crop"):
        load_study(write(centre_crop=1.5))


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
        ({"variant": {}}, "unknown key 'variant': it takes variants, title, question"),
        ({"variants": ...}, "lacks 'variants'"),
        ({"variants": {}}, "variants names no run"),
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
        load_study(write(**changes))
    assert sentence in str(error.value)


def test_an_unknown_study_or_budget_lists_what_exists(write: Any) -> None:
    with pytest.raises(ValueError, match=r"'none': give the path of a file that ends in \.yaml"):
        load_study("none")
    with pytest.raises(ValueError, match=r"none\.yaml does not exist"):
        load_study("none.yaml")
    with pytest.raises(ValueError, match="no budget 'slow': choose one of full, quick"):
        load_study(write(), "slow")


def test_a_short_file_is_a_study(tmp_path: Path) -> None:
    lines = [
        "common: {data: shapes, epochs: 5}",
        "variants:",
        "  simclr: {}",
        "  fnc: {negatives: {name: fnc, alpha: 0.1}}",
    ]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    study = load_study(tmp_path / "mine.yaml")
    assert (study.title, study.question, study.baseline) == ("mine", "", "simclr")
    assert (len(study.trials(tmp_path)), study.protocols) == (6, ["linear", "knn"])


def test_a_study_with_a_runner_needs_no_protocols(write: Any) -> None:
    of_runner = {"runner": "my.module.Runner", "common": {"steps": 5}, "variants": {"plain": {"alpha": 0.5}}}
    quick = {"quick": {"seeds": [1], "common": {"steps": 2}}}
    path = write(**of_runner, protocols=..., budgets=quick)
    study = load_study(path)
    assert (study.runner, study.protocols, study.is_own) == ("my.module.Runner", [], True)
    assert load_study(path, "quick").variants == {"plain": {"steps": 2, "alpha": 0.5}}
    assert not load_study(path, "quick").is_own
    assert not load_study(path, seeds=[0]).is_own
    with pytest.raises(ValueError, match="unknown key 'protocols'"):
        load_study(write(**of_runner, budgets=quick))
    with pytest.raises(ValueError, match="budget quick has an unknown key 'test_limit'"):
        load_study(write(**of_runner, protocols=...), "quick")


def test_a_budget_may_have_options_of_single_variants(write: Any) -> None:
    path = write(budgets={"paper": {"variants": {"fnc": {"negatives": {"alpha": 0.01}}}}})
    assert load_study(path, "paper").variants["fnc"]["negatives"] == {"name": "fnc", "alpha": 0.01}
    assert "negatives" not in load_study(path, "paper").variants["plain"]
    many = {"plain": {}, "many": {"data": {"count": 99}, "budgets": ["paper"]}}
    path = write(variants=many, budgets={"paper": {"scores": ["knn top-5"], "variants": {"many": {"epochs": 9}}}})
    assert set(load_study(path).variants) == {"plain"}
    assert load_study(path, "paper").variants["many"]["epochs"] == 9
    assert load_study(path, "paper").scores == ["knn top-5"]
    with pytest.raises(ValueError, match="variant many names the budget 'papers'"):
        load_study(write(variants={"plain": {}, "many": {"budgets": ["papers"]}}))
    with pytest.raises(ValueError, match="'glo', which is not a variant"):
        load_study(write(budgets={"paper": {"variants": {"glo": {}}}}), "paper")


def test_other_data_makes_it_another_grid(write: Any) -> None:
    study = load_study(write(), data={"name": "cifar10", "limit": 5})
    assert {str(options["data"]) for options in study.variants.values()} == {str({"name": "cifar10", "limit": 5})}
    assert not study.is_own


def test_other_data_keeps_a_variants_classes_and_a_budgets_limit(write: Any) -> None:
    few = {"plain": {"data": {"classes": 3}}, "fnc": {"negatives": "fnc"}}
    budgets = {"quick": {"common": {"data": {"limit": 9}}}, "paper": {"common": {"data": {"limit": None}}}}
    path, data = write(variants=few, budgets=budgets), {"name": "cifar100"}
    assert load_study(path, data=data).variants["plain"]["data"]["classes"] == 3
    assert "classes" not in load_study(path, data=data).variants["fnc"]["data"]
    assert load_study(path, "quick", data=data).variants["plain"]["data"]["limit"] == 9
    assert load_study(path, "paper", data=data).variants["fnc"]["data"]["limit"] is None


def test_other_data_keeps_the_options_of_the_studys_own_that_it_takes(write: Any, tmp_path: Path) -> None:
    images = tmp_path / "photos"
    for name in ("a", "b"):
        (images / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(images / name / "one.png")
    own = {"name": "flickr8k", "path": "elsewhere", "size": 64, "decode": 96, "rows": "caption"}
    path = write(common={"data": own, "epochs": 1})
    found = load_study(path, data={"name": str(images)}).variants["plain"]["data"]
    assert found == {"name": str(images), "size": 64, "decode": 96}  # a folder has no captions, and a path of its own
    assert load_study(path, data={"name": str(images), "size": 32}).variants["plain"]["data"]["size"] == 32
    assert load_study(path, data={"name": "cifar10"}).variants["plain"]["data"] == {"name": "cifar10", "size": 64}
    sharp = write(common={"data": own, "epochs": 1}, variants={"plain": {}, "sharp": {"data": {"size": 128}}})
    sizes = {
        name: each["data"]["size"]
        for name, each in load_study(sharp, data={"name": str(images), "size": 32}).variants.items()
    }
    assert sizes == {"plain": 32, "sharp": 128}


def test_an_appendix_writes_a_section_from_the_results(write: Any) -> None:
    study = load_study(write(appendix={"by": f"{__name__}.Counted", "word": "runs"}))
    assert study.appended({"plain": {0: {"a": 1.0}, 1: {"a": 2.0}}}) == "plain 2, fnc 0 runs"
    assert load_study(write()).appended({"plain": {}}) == ""
    for wrong, words in (
        ({"word": "runs"}, "lacks 'by'"),
        ({"by": "no.such.Class"}, "unknown appendix"),
        ({"by": f"{__name__}.Counted", "letter": "x"}, "cannot write a section"),
        ({"by": f"{__name__}.Counted", "word": ""}, "word is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            load_study(write(appendix=wrong))


class Counted:
    """An appendix that counts the runs of every variant."""

    def __init__(self, word: str) -> None:
        if not word:
            raise ValueError("word is empty")
        self.word = word

    def section(self, results: Any) -> str:
        return f"{', '.join(f'{variant} {len(seeds)}' for variant, seeds in results.items())} {self.word}"
