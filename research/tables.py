"""Write the tables of the studies into their pages, from the results alone.

    python -m research.tables

Each row of the recommender and the text study is the mean and the standard deviation over seeds, the difference to the
baseline paired by seed, and the p of the paired t-test, raw and corrected by Holm over the rows of the table. A page
keeps its text: only what stands between `<!-- table NAME -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import ttest_rel

from research.records import HERE, best_setting

PAGES = HERE / "pages"
Scores = dict[int, dict[str, float]]
"""Metrics by seed."""


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction: p-values in the order given; None stays None and is not counted.

    Example:
        >>> holm([0.01, None, 0.04])
        [0.02, None, 0.04]
    """
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        corrected[place] = largest
    return corrected


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The two-sided p of the paired t-test; None for fewer than two seeds or differences that are all the same."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2 or stdev(differences) == 0:
        return None
    return float(ttest_rel(ours, theirs).pvalue)


def scores_of(
    runs: Sequence[Mapping[str, Any]],
    choice: str,
    of: Mapping[str, Any],
    temperature: float | None = None,
    epochs: int | None = None,
) -> dict[str, tuple[str, Scores]]:
    """By variant: its setting in words, and its test scores by seed, of that setting alone.

    The metrics of a run are its scores, or where its key names no number of epochs, its scores by epoch.

    Args:
        runs: Those of a file.
        choice: The score that chose the setting.
        of: Part of the key, such as the dataset.
        temperature: The same for all variants, so that only the number of epochs is chosen; None for each one's best.
        epochs: The same for all variants, so that only the temperature is chosen; None for each one's best.
    """
    fixed = {} if temperature is None else {"temperature": temperature}
    found: dict[str, tuple[str, Scores]] = {}
    for run in runs:
        key = run["key"]
        if key["part"] != "test" or any(key.get(name) != value for name, value in of.items()):
            continue
        name, setting, metrics = key["variant"], "-", run["metrics"]
        if "temperature" in key:
            best = best_setting(runs, choice, {**of, "variant": name, **fixed}, epochs)
            if (key["temperature"], key.get("epochs", best[1])) != best:
                continue
            setting = f"{best[0]:g}, {best[1]}"
            metrics = metrics if "epochs" in key else metrics[str(best[1])]
        found.setdefault(name, (setting, {}))[1][key["seed"]] = metrics
    return found


def table(found: Mapping[str, tuple[str, Scores]], scores: Sequence[str], baseline: str) -> str:
    """A markdown table: one row a variant; for every score mean ± sd, difference, p and p by Holm."""
    head = ["variant", "temperature, epochs", "seeds"]
    columns: list[list[str]] = []
    for score in scores:
        head += [score, "difference", "p", "p (Holm)"]
        base = found[baseline][1]
        differences, raw = [], []
        for name, (_, by_seed) in found.items():
            common = sorted(set(by_seed) & set(base)) if name != baseline and len(by_seed) > 1 else []
            ours, theirs = ([each[seed][score] for seed in common] for each in (by_seed, base))
            differences.append(f"{fmean(ours) - fmean(theirs):+.2f}" if common else "-")
            raw.append(paired_p(ours, theirs))
        means = []
        for _, by_seed in found.values():
            values = [each[score] for each in by_seed.values()]
            means.append(f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else ""))
        columns += [means, differences, *([probability(value) for value in some] for some in (raw, holm(raw)))]
    rows = [
        [name, setting, str(len(by_seed)), *(column[place] for column in columns)]
        for place, (name, (setting, by_seed)) in enumerate(found.items())
    ]
    return markdown([head, *rows])


def tried(runs: Sequence[Mapping[str, Any]], of: Mapping[str, Any]) -> str:
    """How many variants and temperatures were tried, in a sentence."""
    keys = [run["key"] for run in runs if all(run["key"].get(name) == value for name, value in of.items())]
    choosing = [key for key in keys if key["part"] == "choice"]
    variants, temperatures = {key["variant"] for key in choosing}, {key["temperature"] for key in choosing}
    grid = ", ".join(f"{each:g}" for each in sorted(temperatures))
    return f"Tried: {len(variants)} variants, each at the temperatures {grid}; {len(choosing)} runs to choose by."


def precision(runs: Sequence[Mapping[str, Any]], dataset: str) -> str:
    """The share of right texts among every training text's most similar ones, by encoder."""
    found: dict[str, list[float]] = {}
    for run in runs:
        key = run["key"]
        if key["part"] == "precision" and key["dataset"] == dataset:
            found.setdefault(key["variant"], []).append(run["metrics"]["precision"])
    return markdown([["encoder", "right, %"], *([name, f"{fmean(values):.1f}"] for name, values in found.items())])


def flags(runs: Sequence[Mapping[str, Any]], choice: str, of: Mapping[str, Any]) -> str:
    """How right a variant's flags are in its chosen epoch, and the dataset's own quantile in its embeddings."""
    names = ("flag precision", "flag recall", "precision of the quantile")
    rows = [["variant", "flags: precision %", "recall %", "right at the dataset's own quantile %"]]
    for name, (_, by_seed) in scores_of(runs, choice, of).items():
        values = [[each[score] for each in by_seed.values() if score in each] for score in names]
        if values[2]:
            rows.append([name, *(f"{fmean(each):.1f}" if each else "-" for each in values)])
    return markdown(rows)


def vector_precision(runs: Sequence[Mapping[str, Any]]) -> str:
    """The share of right pairs at quantiles of the vectors that training starts from, by dataset."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        key = run["key"]
        if key["part"] == "precision":
            found.setdefault(key["dataset"], {})[f"{100 * key['share']:.3g} %"] = f"{run['metrics']['precision']:.1f}"
    shares = list(dict.fromkeys(share for each in found.values() for share in each))
    rows = [[name, *(each.get(share, "-") for share in shares)] for name, each in found.items()]
    return markdown([["vectors of", *(f"most similar {share}" for share in shares)], *rows])


def mined(runs: Sequence[Mapping[str, Any]]) -> str:
    """The share of mined texts that are relevant, by way, dataset and model."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for run in runs:
        key = run["key"]
        if key["part"] == "mined":
            place = (key["dataset"], key["model"])
            found.setdefault(key["variant"], {})[place] = f"{run['metrics']['relevant']:.1f}"
    places = list(dict.fromkeys(place for each in found.values() for place in each))
    rows = [[name, *(each.get(place, "-") for place in places)] for name, each in found.items()]
    return markdown([["way of mining", *(f"{dataset}, {model}" for dataset, model in places)], *rows])


def settling(runs: Sequence[Mapping[str, Any]]) -> str:
    """The table of thresholds by visits: mean ± sd over seeds."""
    names = list(dict.fromkeys(run["key"]["variant"] for run in runs))
    scores = ("mae", "share flagged", "precision", "recall", "f1")
    rows = [["policy", "visits", "MAE of thresholds", "flagged %", "precision", "recall", "F1 per anchor"]]
    for name in names:
        own = [run["metrics"] for run in runs if run["key"]["variant"] == name]
        for visits in own[0]:
            cells = []
            for score in scores:
                values = [each[visits][score] for each in own]
                digits = 4 if score == "mae" else 2
                cells.append(f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}")
            rows.append([name, visits, *cells])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a markdown table, the first of them its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def insert(page: Path, name: str, text: str) -> None:
    """Replace the table of this name in a page.

    Raises:
        ValueError: if the page has no such place.
    """
    pattern = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    before = page.read_text()
    if not pattern.search(before):
        raise ValueError(f"{page} has no place for the table {name}: write <!-- table {name} --> and <!-- end -->")
    page.write_text(pattern.sub(lambda found: f"{found[1]}{text}\n{found[2]}", before))


def probability(value: float | None) -> str:
    """A p-value in words."""
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def results(name: str) -> list[dict[str, Any]]:
    """The runs of a study; none if it has no results."""
    path = HERE / "results" / f"{name}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.is_file() else []
    return runs


def trained(runs: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a part of the key, such as the datasets, that training runs have."""
    return list(dict.fromkeys(run["key"][name] for run in runs if run["key"]["part"] == "choice"))


def write_recommender() -> None:
    """The page of the recommender."""
    runs, page, scores = results("recommender"), PAGES / "recommender.md", ("recall@20", "ndcg@20")
    if runs:
        text = table(scores_of(runs, "recall@20", {}), scores, "plain")
        insert(page, "lastfm", f"{text}\n\n{tried(runs, {})}")
        insert(page, "lastfm at 0.1", table(scores_of(runs, "recall@20", {}, 0.1), scores, "plain"))


def write_text() -> None:
    """The page of text pairs."""
    runs, page, scores = results("text_pairs"), PAGES / "text-pairs.md", ("ndcg@10", "map@r")
    for dataset in trained(runs, "dataset"):
        of = {"dataset": dataset}
        text = table(scores_of(runs, "map@r", of), scores, "plain")
        insert(page, dataset, f"{text}\n\n{tried(runs, of)}")
        insert(page, f"{dataset} at 0.06", table(scores_of(runs, "map@r", of, 0.06), scores, "plain"))
        insert(page, f"{dataset} precision", precision(runs, dataset))


def write_right_flags() -> None:
    """The page of settings where flags are right."""
    runs, page, scores = results("right_flags"), PAGES / "right-flags.md", ("linear, features", "kNN, embeddings")
    if runs:
        insert(page, "vectors", vector_precision(runs))
    for dataset in trained(runs, "dataset"):
        of = {"dataset": dataset}
        text = table(scores_of(runs, scores[0], of), scores, "plain")
        insert(page, dataset, f"{text}\n\n{tried(runs, of)}")
        insert(page, f"{dataset} at 60", table(scores_of(runs, scores[0], of, epochs=60), scores, "plain"))
        insert(page, f"{dataset} flags", flags(runs, scores[0], of))


def write_copies() -> None:
    """The page of photos with copies."""
    runs, page, scores = results("copies"), PAGES / "copies.md", ("linear, features", "kNN, embeddings")
    for run in runs:
        if run["key"]["part"] == "audit":
            found = run["metrics"]
            rows = [f"{each}, %" for each in found], [f"{value:.1f}" for value in found.values()]
            insert(page, "audit", markdown(rows))
    for order in trained(runs, "order"):
        of = {"order": order}
        text = table(scores_of(runs, scores[0], of), scores, "plain")
        insert(page, order, f"{text}\n\n{tried(runs, of)}")


def write_mining() -> None:
    """The page of mined negatives."""
    runs, page, scores = results("mining"), PAGES / "mining.md", ("ndcg@10", "map@r")
    if runs:
        insert(page, "mined", mined(runs))
    for dataset in trained(runs, "dataset"):
        of = {"dataset": dataset}
        text = table(scores_of(runs, "map@r", of), scores, "batch only")
        insert(page, dataset, f"{text}\n\n{tried(runs, of)}")


def main() -> None:
    """Write all tables whose results exist."""
    write_recommender()
    write_text()
    write_right_flags()
    write_copies()
    write_mining()
    if runs := results("glofnd_settling"):
        insert(PAGES / "glofnd-settling.md", "settling", settling(runs))


if __name__ == "__main__":
    main()
