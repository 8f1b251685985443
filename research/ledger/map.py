"""`research/pages/map.md`: where policies pay, in one table of regimes and one figure, from the results of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml

from antipodes.files import replacing
from antipodes.studies.reports import Places
from antipodes.studies.statistics import standard_error, student_p
from research.ledger.orderings import LEVEL
from research.ledger.reports import PLACES, read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CATALOGUE = Path(__file__).parent / "map.yaml"
PRECISIONS = {"flags precision": 1.0, "precision": 100.0, "flags pooled precision": 1.0}
"""The names under which studies report how right the flags were, and what makes percent of them; the first that is
there counts. Protocols score in percent, training logs the share `precision`."""

APART = 0.8
"""The distance at which points with the same place along x are drawn."""

TITLE = "# Where it pays"
HEAD = """
What a policy adds to its baseline, in points of the score, over the regimes that were measured here: *gain ± its
standard error over seeds*, and in brackets how many of its flags were right, where labels could tell. Bold: not by
chance, by a paired t-test at 5 %. † is a single seed. Written by `python -m research.ledger map` from the results
of the studies in the first column.
"""


@dataclass(frozen=True)
class Gain:
    """What a policy adds in a regime.

    Args:
        regime: Its name.
        policy: The column.
        difference: Mean over the common seeds.
        error: Its standard error; None for a single seed.
        seeds: How many.
        precision: Of the flags, in percent; None where it is not known.
        quality: Of the baseline's features.
    """

    regime: str
    policy: str
    difference: float
    error: float | None
    seeds: int
    precision: float | None
    quality: float | None

    @property
    def p(self) -> float | None:
        """That of a two-sided paired t-test; None for a single seed, which says nothing."""
        return student_p(self.difference / self.error, self.seeds - 1) if self.error else None

    @property
    def clear(self) -> bool:
        """Whether the test says at 5 % that it is no chance."""
        return self.p is not None and self.p < LEVEL


def write_map(places: Places = PLACES, catalogue: Path = CATALOGUE) -> list[Path]:
    """Write map.md to the pages, and map.png to the figures if matplotlib is there."""
    gains, page, figure = read_gains(places.results, catalogue), places.pages / "map.md", places.figures / "map.png"
    written = [page]
    try:
        from antipodes.evaluation.figures import save

        save(map_figure(gains), figure, "png")
        written.append(figure)
    except ValueError as reason:
        print(f"no figure: {reason}")
    drawn = places.link("map.png") if len(written) > 1 else None
    with replacing(page) as file:
        file.write_text(
            map_page(gains, catalogue, places.note("map"), drawn, preset_sentences(places.results, catalogue))
        )
    return written


def read_gains(results_folder: Path, catalogue: Path = CATALOGUE) -> list[Gain]:
    """Every policy of every regime that has results."""
    gains = []
    for regime in yaml.safe_load(catalogue.read_text())["regimes"]:
        results = read_results(regime["studies"], results_folder)
        if results is None:
            continue
        quality = _scores(results, regime["baseline"], regime["quality"])
        known = fmean(quality.values()) if quality else None
        for policy, variants in regime["policies"].items():
            found = (gain_of(results, variant, regime["baseline"], regime["score"]) for variant in variants)
            if gain := next((each for each in found if each is not None), None):
                gains.append(replace(gain, regime=regime["regime"], policy=policy, quality=known))
    return gains


def gain_of(results: Mapping[str, Any], variant: str, baseline: str, score: str) -> Gain | None:
    """What a variant adds to its baseline over their common seeds; None if they have none."""
    ours, base = _scores(results, variant, score), _scores(results, baseline, score)
    differences = [ours[seed] - base[seed] for seed in sorted(set(ours) & set(base))]
    if not differences:
        return None
    mean, error = fmean(differences), standard_error(differences)
    return Gain("", variant, mean, error, len(differences), _precision(results, variant), None)


def preset_sentences(results_folder: Path, catalogue: Path = CATALOGUE) -> list[str]:
    """For every preset, on how many datasets it beat its baseline by more than two standard errors."""
    found = []
    for preset, measured in yaml.safe_load(catalogue.read_text()).get("presets", {}).items():
        gains = {}
        for dataset, where in measured.items():
            results = read_results([where["study"]], results_folder)
            gain = None if results is None else gain_of(results, where["variant"], where["baseline"], where["score"])
            if gain is not None:
                gains[dataset] = gain
        won = [dataset for dataset, gain in gains.items() if gain.error and gain.difference > 2 * gain.error]
        numbers = "; ".join(f"{dataset} {_numbers(gain)}" for dataset, gain in gains.items()) or "not measured yet"
        few = "" if len(won) > 1 else " Two are needed to say that it carries over: **that is not shown yet.**"
        count = f"{len(won)} of {len(gains)} dataset{'s' * (len(gains) != 1)}"
        found.append(
            f"The preset `{preset}` beats its baseline by more than two standard errors on {count} ({numbers}).{few}"
        )
    return found


def map_page(
    gains: Sequence[Gain],
    catalogue: Path = CATALOGUE,
    notes: str = "",
    figure: str | None = None,
    presets: Sequence[str] = (),
) -> str:
    """The page: what presets have shown, the table, the figure, what it shows."""
    content = yaml.safe_load(catalogue.read_text())
    used = [policy for policy in content["policies"] if any(gain.policy == policy for gain in gains)]
    rows = [["regime", "seeds", *used], ["---", *["---:"] * (1 + len(used))]]
    for regime in content["regimes"]:
        by_policy = {gain.policy: gain for gain in gains if gain.regime == regime["regime"]}
        if by_policy:
            study = regime["studies"][0]
            seeds = "-".join(str(number) for number in sorted({gain.seeds for gain in by_policy.values()}))
            cells = [_cell(by_policy[policy]) if policy in by_policy else "" for policy in used]
            rows.append([f"[{regime['regime']}]({study}.md), {regime['score']}", seeds, *cells])
    missing = [regime["regime"] for regime in content["regimes"] if all(g.regime != regime["regime"] for g in gains)]
    blocks = [TITLE, *presets, HEAD.strip(), "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    blocks += [f"![Gain over the precision of flags, and over the quality of features]({figure})"] if figure else []
    blocks += [f"## What it shows\n\n{notes}"] if notes else []
    blocks += [f"Not run yet: {'; '.join(missing)}."] if missing else []
    return "\n\n".join(blocks) + "\n"


def map_figure(gains: Sequence[Gain]) -> Figure:
    """Left the gain over the precision of the flags, right over the quality of the baseline's features.

    Raises:
        ValueError: if matplotlib is missing.
    """
    from antipodes.evaluation import figures
    from antipodes.evaluation.maps import MARKERS

    figure = figures.new_figure(5.4, "What policies add, over the precision of flags and the quality of features")
    panels: Any = figure.subplots(1, 2, sharey=True)
    policies = list(dict.fromkeys(gain.policy for gain in gains))
    for axes, x in zip(panels, ("precision", "quality"), strict=True):
        axes.axhline(0, color="black", linewidth=1.2)
        shown = sorted((gain for gain in gains if getattr(gain, x) is not None), key=lambda g: policies.index(g.policy))
        place = dict(zip(shown, separated([getattr(gain, x) for gain in shown]), strict=True))
        for number, policy in enumerate(policies):
            points = [gain for gain in shown if gain.policy == policy]
            style: dict[str, Any] = {"color": figures.COLOURS[number % len(figures.COLOURS)], "linestyle": ""}
            style |= {"marker": MARKERS[number % len(MARKERS)], "markersize": 6, "capsize": 2}
            for single in (False, True):
                some = [gain for gain in points if (gain.error is None) == single]
                bars = [2 * (gain.error or 0.0) for gain in some]
                face: dict[str, Any] = {"markerfacecolor": "none"} if single else {"label": policy}
                axes.errorbar([place[gain] for gain in some], [gain.difference for gain in some], bars, **face, **style)
        axes.errorbar([], [], label="open: a single seed", fmt="o", color="black", markerfacecolor="none")
    panels[0].set_xlim(0, 106)
    panels[0].set_yscale("symlog", linthresh=3)
    panels[0].set_yticks([-3, -2, -1, 0, 1, 2, 3, 10], ["-3", "-2", "-1", "0", "1", "2", "3", "10"])
    panels[0].minorticks_off()
    words = "gain in points, bars of two standard errors\n(logarithmic above 3)"
    figures.finish(
        panels[0],
        "where labels can judge the flags",
        "precision of the flags, % (equal ones drawn next to each other)",
        words,
        columns=0,
    )
    figures.finish(panels[1], "all", "score of the baseline, % (accuracy, or recall of retrieval)", "", columns=0)
    figures.shared_legend(figure, panels, columns=4)
    return figure


def separated(places: Sequence[float], least: float = APART) -> list[float]:
    """Move points that share a place apart, around their mean and in the order given.

    Example:
        >>> separated([20.0, 50.0, 20.2], least=1.0)
        [19.6, 50.0, 20.6]
    """
    order = sorted(range(len(places)), key=lambda point: places[point])
    groups: list[list[int]] = []
    for point in order:
        if groups and places[point] - places[groups[-1][-1]] < least:
            groups[-1].append(point)
        else:
            groups.append([point])
    found = list(places)
    for group in groups:
        middle = fmean(places[point] for point in group)
        for number, point in enumerate(sorted(group)):
            found[point] = middle + least * (number - (len(group) - 1) / 2)
    return found


def _cell(gain: Gain) -> str:
    numbers = _numbers(gain)
    precision = "" if gain.precision is None else f" ({gain.precision:.0f} %)"
    return (f"**{numbers}**" if gain.clear else numbers) + precision


def _numbers(gain: Gain) -> str:
    return f"{gain.difference:+.2f} {'†' if gain.error is None else f'± {gain.error:.2f}'}"


def _scores(results: Mapping[str, Any], variant: str, score: str) -> dict[str, float]:
    seeds = results.get(variant, {})
    return {seed: scores[score] for seed, scores in seeds.items() if scores.get(score) is not None}


def _precision(results: Mapping[str, Any], variant: str) -> float | None:
    """Mean precision of a variant's flags over seeds, in percent."""
    for name, percent in PRECISIONS.items():
        if found := _scores(results, variant, name):
            return percent * fmean(found.values())
    return None
