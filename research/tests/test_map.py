"""The map of where policies pay: gains from reports made by hand, the tables of the README, and the committed pages."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from antipodes.registry import PRESETS
from antipodes.studies.definition import load_study
from antipodes.studies.reports import Places
from research.ledger.map import CATALOGUE, Gain, map_figure, map_page, preset_sentences, read_gains, write_map
from research.ledger.prose import CATALOGUE as TABLES
from research.ledger.prose import FIRST, LAST, filled, write_readme
from research.ledger.reports import DOCS, PLACES, PROJECT, RESULTS, study_file

REGIMES = {
    "policies": ["FNC", "GloFND", "oracle"],
    "regimes": [
        {
            "regime": "Small",
            "studies": ["mine"],
            "score": "knn",
            "quality": "knn",
            "baseline": "plain",
            "policies": {"FNC": ["other fnc", "fnc"], "GloFND": ["glofnd"], "oracle": ["oracle"]},
        },
        {
            "regime": "Large",
            "studies": ["large"],
            "score": "knn",
            "quality": "knn",
            "baseline": "plain",
            "policies": {"FNC": ["fnc"]},
        },
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(REGIMES))
    results = {
        "plain": {"0": {"knn": 50.0}, "1": {"knn": 52.0}, "2": {"knn": 51.0}},
        "fnc": {"0": {"knn": 51.0, "precision": 0.2}, "1": {"knn": 53.2, "precision": 0.4}, "2": {"knn": 52.1}},
        "glofnd": {"0": {"knn": 49.0, "flags precision": 22.0}},
    }
    (tmp_path / "mine.json").write_text(json.dumps({"results": results}))
    return tmp_path


def test_gains_are_paired_with_their_standard_error(folder: Path) -> None:
    first, second = read_gains(folder, folder / "map.yaml")
    assert (first.policy, first.seeds) == ("FNC", 3)
    assert first.difference == pytest.approx(1.1)
    assert first.error == pytest.approx(0.1 / math.sqrt(3))
    assert first.clear
    assert first.precision == pytest.approx(30.0)
    assert first.quality == pytest.approx(51.0)
    assert (second.error, second.clear, second.precision) == (None, False, 22.0)


@pytest.mark.parametrize(
    ("score", "value", "percent"),
    [("flags precision", 0.5, 0.5), ("flags pooled precision", 1.0, 1.0), ("precision", 1.0, 100.0)],
)
def test_the_name_of_a_score_says_whether_it_is_in_percent(
    folder: Path, score: str, value: float, percent: float
) -> None:
    results = {"plain": {"0": {"knn": 50.0}}, "fnc": {"0": {"knn": 51.0, score: value}}}
    (folder / "mine.json").write_text(json.dumps({"results": results}))
    (gain,) = read_gains(folder, folder / "map.yaml")
    assert gain.precision == percent


def test_the_page_has_a_row_a_regime_and_says_what_is_missing(folder: Path) -> None:
    page = map_page(read_gains(folder, folder / "map.yaml"), folder / "map.yaml", "It pays.")
    assert "| [Small](mine.md), knn | 1-3 | **+1.10 ± 0.06** (30 %) | -1.00 † (22 %) |" in page
    assert "oracle" not in page  # no column for what nobody has run
    assert "## What it shows\n\nIt pays." in page
    assert "Not run yet: Large." in page


def test_the_map_is_written_with_its_figure_and_notes(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    (folder / "notes").mkdir()
    (folder / "notes" / "map.md").write_text("It pays.\n")
    assert write_map(Places.of(folder), folder / "map.yaml") == [folder / "map.md", folder / "map.png"]
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "It pays." in (folder / "map.md").read_text()


def test_a_single_seed_is_open_and_points_do_not_hide_each_other() -> None:
    pytest.importorskip("matplotlib")
    gains = [Gain("a", "FNC", 1.0, 0.1, 3, 20.0, 50.0), Gain("a", "Ring", 1.0, None, 1, 20.0, 50.0)]
    figure = map_figure(gains)
    several, single = (container[0] for container in figure.axes[0].containers if len(container[0].get_xdata()))
    assert single.get_markerfacecolor() == "none"
    assert several.get_markerfacecolor() != "none"
    assert single.get_xdata()[0] - several.get_xdata()[0] == pytest.approx(0.8)
    assert "open: a single seed" in [text.get_text() for text in figure.legends[0].get_texts()]
    label = figure.axes[0].yaxis.label
    assert label.get_window_extent().height < figure.axes[0].get_window_extent().height


def test_the_catalogue_names_variants_that_its_studies_have() -> None:
    content = yaml.safe_load(CATALOGUE.read_text())
    for regime in content["regimes"]:
        assert set(regime["policies"]) <= set(content["policies"])
        for study in regime["studies"]:
            if study_file(study).is_file():
                wanted = {regime["baseline"], *(name for names in regime["policies"].values() for name in names)}
                assert wanted <= set(load_study(study_file(study)).variants), regime["regime"]
    tables = [row for table in yaml.safe_load(TABLES.read_text()).values() for row in table["rows"].values()]
    for row in (*tables, *(where for preset in content["presets"].values() for where in preset.values())):
        if "records" in row:
            runs = json.loads((TABLES.parents[1] / "results" / f"{row['records']}.json").read_text())["runs"]
            variants = {run["key"]["variant"] for run in runs}
        else:
            variants = set(load_study(study_file(row["study"])).variants)
        assert {row["baseline"], row["variant"]} <= variants
    assert set(content["presets"]) == set(PRESETS)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (
            {},
            "The preset `best` beats its baseline by more than two standard errors on 1 of 1 dataset "
            "(One +1.10 ± 0.06). Two are needed to say that it carries over: **that is not shown yet.**",
        ),
        (
            {"Two": "fnc", "Three": "glofnd", "Four": "nobody"},
            "The preset `best` beats its baseline by more than two standard errors on 2 of 3 datasets "
            "(One +1.10 ± 0.06; Two +1.10 ± 0.06; Three -1.00 †).",
        ),
    ],
)
def test_the_page_says_on_how_many_datasets_a_preset_has_won(
    folder: Path, others: dict[str, str], sentence: str
) -> None:
    where = {"study": "mine", "score": "knn", "baseline": "plain"}
    measured = {name: {**where, "variant": variant} for name, variant in ({"One": "fnc"} | others).items()}
    (folder / "map.yaml").write_text(yaml.safe_dump(REGIMES | {"presets": {"best": measured}}, sort_keys=False))
    assert preset_sentences(folder, folder / "map.yaml") == [sentence]
    write_map(Places.of(folder), folder / "map.yaml")
    assert (folder / "map.md").read_text().startswith(f"# Where it pays\n\n{sentence}\n\nWhat a policy adds")


README = {
    "small": {
        "title": "on plain, in %",
        "score": "knn",
        "rows": {
            "FNC": {"study": "mine", "baseline": "plain", "variant": "fnc"},
            "GloFND": {"study": "mine", "baseline": "plain", "variant": "glofnd"},
        },
    }
}


@pytest.fixture
def project(folder: Path, tmp_path: Path) -> Path:
    """A folder of results with a note for its README."""
    project = tmp_path / "project"
    (project / "notes").mkdir(parents=True)
    (project / "mine.json").write_text((folder / "mine.json").read_text())
    (project / "tables.yaml").write_text(yaml.safe_dump(README, sort_keys=False))
    (project / "notes" / "readme.md").write_text("It may.\n\n<!-- table: small -->\n\nOr not.\n")
    (project / "README.md").write_text("# Mine\n\n<!-- evidence -->\nOld.\n<!-- /evidence -->\n\nMore.\n")
    return project


def test_the_readme_gets_its_tables_and_keeps_the_rest(project: Path) -> None:
    readme = project / "README.md"
    for _ in range(2):
        assert write_readme(readme, Places.of(project), project / "tables.yaml") == readme
        assert readme.read_text() == (
            "# Mine\n\n<!-- evidence -->\nIt may.\n\n"
            "| on plain, in % | without | with | difference | p | seeds |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
            "| FNC | 51.0 | 52.1 | +1.1 | 0.003 | 3 |\n| GloFND | 50.0 | 49.0 | -1.0 | - | 1 |\n\n"
            "Or not.\n<!-- /evidence -->\n\nMore.\n"
        )


def test_a_readme_without_a_place_is_left_alone(project: Path) -> None:
    readme = project / "README.md"
    readme.write_text("# Mine\n")
    assert write_readme(readme, Places.of(project), project / "tables.yaml") is None
    assert readme.read_text() == "# Mine\n"


def test_a_note_that_asks_for_what_there_is_not_gets_one_sentence(project: Path) -> None:
    readme = project / "README.md"
    (project / "notes" / "readme.md").write_text("<!-- table: large -->\n")
    with pytest.raises(ValueError, match=r"asks for the table 'large': tables\.yaml has small"):
        write_readme(readme, Places.of(project), project / "tables.yaml")
    (project / "notes" / "readme.md").write_text("<!-- table: small -->\n")
    (project / "mine.json").unlink()
    with pytest.raises(ValueError, match=r"has no results of fnc in mine\.json, for 'FNC'"):
        write_readme(readme, Places.of(project), project / "tables.yaml")
    assert "Old." in readme.read_text()


def test_the_committed_pages_are_up_to_date() -> None:
    readme = (PROJECT / "README.md").read_text()
    assert FIRST not in readme or f"{FIRST}\n{filled('readme')}\n{LAST}" in readme, "run python -m research.ledger"
    assert (DOCS / "does-it-help.md").read_text() == f"{filled('does-it-help')}\n", "run python -m research.ledger"


def test_the_committed_map_is_up_to_date() -> None:
    figure = PLACES.link("map.png") if (PLACES.figures / "map.png").is_file() else None
    page = map_page(read_gains(RESULTS), notes=PLACES.note("map"), figure=figure, presets=preset_sentences(RESULTS))
    assert (PLACES.pages / "map.md").read_text() == page, "run python -m research.ledger map"
