"""`docs/claims.md`: every ordering that the five papers claim, and what the runs here say about it.

The claims are in claims.yaml; verdicts follow from the results of the studies, research/results/LABEL.json, alone.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import yaml

from antipodes.studies.statistics import Results, detectable, one_sided, paired_p, student_p
from research.ledger.orderings import LEVEL, Verdict, decide
from research.ledger.reports import FROM_DOCS, command, studies
from research.tables import holm

CATALOGUE = Path(__file__).parent / "claims.yaml"
NOT_RUN, CANNOT, MEASURED, UNKNOWN = "not run yet", "cannot be tested here", "measured", "reason unknown"
DECIDED = ("held", "not held")
FEWEST, FEW = 3, 5
"""No verdict from fewer than FEWEST seeds; with fewer than FEW the spread is at least that usual in the study."""

HEAD = """# What the papers claim, and what was seen here

Every ordering that the five papers claim. A row is a test of it: a study, the score, and the difference in it between
the variant that should have more and the one that should have less, paired over seeds. *held* and *not held* are
decided by a one-sided paired t-test at 5 %; *undecided* is neither, or fewer than three seeds. A few seeds can agree by
chance: with fewer than five, the spread of the differences counts as at least the median spread of its study and score.
*Holm* is the p, in the direction of the verdict, corrected for all tests of this page; a verdict in bold also stands at
5 % after that. *could see* is the difference that so many seeds would have found in four of five cases, at the spread
that they had: a smaller one cannot be decided by them. Settings are small (thousands of images, minutes a run): *not
held* speaks about them, not about ImageNet. Written by `python -m research.ledger claims`.
"""
SAME = ("test_limit", "data.", "encoder.", "batch_size", "epochs")  # options, or their beginnings, of two studies
COLUMNS = ["claim", "where", "tested by", "seeds", "difference", "could see", "p >", "Holm", "here"]


@dataclass(frozen=True)
class Tested:
    """A claim with what one study says about it.

    Args:
        claim: In words.
        where: In the paper.
        test: Which study, score and order; empty where there is none.
        verdict: Of the runs, or `not run yet`, `measured`, or `cannot be tested here`.
        why: A reason, where there is one.
        seeds: How many both sides have.
        difference: Mean over them.
        could_see: The difference that a test with so many seeds finds with 80 % power.
        p: One-sided, that the claim is right.
        corrected: Holm's p over all tests, of the claim or of its opposite, whichever is likelier.
    """

    claim: str
    where: str
    test: str
    verdict: str
    why: str = ""
    seeds: int = 0
    difference: float | None = None
    could_see: float | None = None
    p: float | None = None
    corrected: float | None = None

    @property
    def stands(self) -> bool:
        """Whether the verdict is decided after Holm's correction as well."""
        return self.verdict in DECIDED and self.corrected is not None and self.corrected < LEVEL


def ledger_page(results: Path, catalogue: Path = CATALOGUE) -> str:
    """The page, from the results of the studies."""
    papers = read_catalogue(catalogue)
    found = {name: ledger_rows(paper["claims"], results) for name, paper in papers.items()}
    corrected = iter(correct([row for rows in found.values() for row in rows]))
    tested = {name: [next(corrected) for _ in rows] for name, rows in found.items()}
    blocks = [HEAD.rstrip(), _counts(papers, [row for rows in tested.values() for row in rows])]
    for name, paper in papers.items():
        lines = [COLUMNS, ["---"] * 3 + ["---:"] * 5 + ["---"], *map(_cells, tested[name])]
        blocks += [f"## {paper['title']}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(blocks) + "\n"


def read_catalogue(catalogue: Path = CATALOGUE) -> dict[str, Any]:
    """The papers with their claims.

    Raises:
        ValueError: for a claim that has neither tests nor a reason why there are none, or a test that makes no sense.
    """
    papers: dict[str, Any] = yaml.safe_load(catalogue.read_text())
    for paper in papers.values():
        for claim in paper["claims"]:
            if sum(key in claim for key in ("cannot", "measured", "tests")) != 1:
                raise ValueError(f"claim {claim['claim']!r} needs either tests or cannot or measured")
            for test in claim.get("tests", []):
                _sides(test)
    return papers


def ledger_rows(claims: Sequence[Mapping[str, Any]], results: Path) -> list[Tested]:
    """A row for every test of a claim that has results; a claim without any has one that says so."""
    rows = []
    for claim in claims:
        words, where = claim["claim"], claim["where"]
        if "tests" not in claim:
            verdict, key = (CANNOT, "cannot") if "cannot" in claim else (MEASURED, "measured")
            rows.append(Tested(words, where, "", verdict, " ".join(claim[key].split())))
            continue
        found = [row for test in claim["tests"] if (row := _run(claim, test, results)) is not None]
        if not found:
            named = [
                name for test in claim["tests"] for name in _studies(test) if not (results / f"{name}.json").is_file()
            ] or [_studies(claim["tests"][0])[-1]]
            missing = next((name for name in named if name in studies()), named[0])
            found = [Tested(words, where, f"`{command(missing)}`", NOT_RUN)]
        rows += found
    return rows


def correct(rows: Sequence[Tested]) -> list[Tested]:
    """Give every row Holm's p over all rows, of its claim or of the opposite, whichever is likelier."""
    likelier = holm([None if row.p is None else min(row.p, 1 - row.p) for row in rows])
    return [replace(row, corrected=each) for row, each in zip(rows, likelier, strict=True)]


def _run(claim: Mapping[str, Any], test: Mapping[str, Any], results: Path) -> Tested | None:
    """What the report of a test's study says; None where there is none or it lacks a variant."""
    names = _studies(test)
    files = [results / f"{name}.json" for name in names]
    if not all(file.is_file() for file in files):
        return None
    reports = [json.loads(file.read_text()) for file in files]
    (less, less_score), (more, more_score) = _sides(test)
    _refuse_other_settings(names, reports, (less, more))
    scores = [
        {name: {int(seed): each for seed, each in seeds.items()} for name, seeds in report["results"].items()}
        for report in reports
    ]
    smaller, larger = _values(scores[0], less, less_score), _values(scores[-1], more, more_score)
    common = sorted(set(smaller) & set(larger))
    if not common:
        return None
    ours, theirs = [larger[seed] for seed in common], [smaller[seed] for seed in common]
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    difference = fmean(differences)
    two_sided = paired_p(ours, theirs)
    if two_sided is not None and len(common) < FEW:
        floors = [usual_spread(each, score) for each, score in ((scores[0], less_score), (scores[-1], more_score))]
        spread = max([stdev(differences), *(floor for floor in floors if floor is not None)])
        two_sided = student_p(difference / spread * math.sqrt(len(common)), len(common) - 1)
    p = None if two_sided is None else one_sided(two_sided, difference)
    verdict: Verdict = decide(p) if len(common) >= FEWEST else "undecided"
    why = " ".join(test.get("reason", claim.get("reason", UNKNOWN)).split()) if verdict == "not held" else ""
    reading = f", {test['reading']}" if "reading" in test else ""
    links = " and ".join(f"[{name}]({FROM_DOCS}/{name}.md)" for name in names)
    name = f"{links}{reading}: {less_score}, {test['order']}"
    see = detectable(differences)
    return Tested(claim["claim"], claim["where"], name, verdict, why, len(common), difference, see, p)


def usual_spread(results: Results, score: str) -> float | None:
    """The median, over the variants of a study, of the spread of their differences to its first variant.

    Returns:
        None where no variant has three seeds in common with the first.

    Example:
        >>> plain = {0: {"x": 1.0}, 1: {"x": 2.0}, 2: {"x": 3.0}}
        >>> usual_spread({"plain": plain, "other": {0: {"x": 2.0}, 1: {"x": 4.0}, 2: {"x": 6.0}}}, "x")
        1.0
    """
    columns = [
        {seed: scores[score] for seed, scores in seeds.items() if scores.get(score) is not None}
        for seeds in results.values()
    ]
    first, *others = columns or [{}]
    spreads = [
        stdev(differences)
        for other in others
        if len(differences := [other[seed] - first[seed] for seed in sorted(set(first) & set(other))]) >= FEWEST
    ]
    return median(spreads) if spreads else None


def _studies(test: Mapping[str, Any]) -> list[str]:
    """The study of a test, or the two that its sides are from.

    Raises:
        ValueError: for another number of them.
    """
    names = [test["study"]] if isinstance(test["study"], str) else list(test["study"])
    if len(names) not in (1, 2):
        raise ValueError(f"a test is of one study, or of one for each of its two sides, got {names}")
    return names


def _refuse_other_settings(
    names: Sequence[str], reports: Sequence[Mapping[str, Any]], sides: Sequence[Sequence[str]]
) -> None:
    """Check that two studies have trained on the same data, as long and as large, and scored alike.

    Where a gain is compared with a gain, these may be on different data.

    Raises:
        ValueError: for the first thing that differs.
    """
    if len(reports) < 2:
        return
    gains = all(len(side) == 2 for side in sides)
    same = tuple(name for name in SAME if not (gains and name == "data."))
    first, *others = [
        {"test_limit": report["test_limit"], **report["common"], **report["variants"].get(variant, {})}
        for report, side in zip(reports, sides, strict=True)
        for variant in side
    ]
    for other in others:
        for name in sorted(name for name in {*first} & {*other} if name.startswith(same)):  # others are of one version
            if first[name] != other[name]:
                what = f"{name} is {first[name]} and {other[name]}"
                raise ValueError(f"{names[0]} and {names[-1]} cannot be compared: {what}")


def _sides(test: Mapping[str, Any]) -> tuple[tuple[list[str], str], tuple[list[str], str]]:
    """The variants and the score of the side that should have less, and of that which should have more."""
    less, sign, more = str(test["order"]).partition(" < ")
    score = test["score"]
    scores = (score, score) if isinstance(score, str) else tuple(score)
    sides = [side.split(" - ") for side in (less, more)]
    if not sign or len(scores) != 2 or any(len(side) > 2 for side in sides):
        raise ValueError(f"a test should have an order LESS < MORE and one or two scores, got {dict(test)}")
    return (sides[0], scores[0]), (sides[1], scores[1])


def _values(results: Results, side: Sequence[str], score: str) -> dict[int, float]:
    """Seed -> the score of a variant, or the difference of two."""
    parts = [
        {seed: scores[score] for seed, scores in results.get(name, {}).items() if scores.get(score) is not None}
        for name in side
    ]
    if len(parts) == 1:
        return parts[0]
    return {seed: value - parts[1][seed] for seed, value in parts[0].items() if seed in parts[1]}


def _counts(papers: Mapping[str, Any], rows: Sequence[Tested]) -> str:
    """How many claims there are, and how their tests ended."""
    claims = sum(len(paper["claims"]) for paper in papers.values())
    ended, standing = Counter(row.verdict for row in rows), Counter(row.verdict for row in rows if row.stands)
    tested = sum(ended[verdict] for verdict in (*DECIDED, "undecided"))
    return (
        f"**{claims} claims. Of {tested} tests {ended['held']} held, {ended['not held']} did not, and "
        f"{ended['undecided']} are undecided; after Holm's correction {standing['held']} held and "
        f"{standing['not held']} did not. Claims without a run yet: {ended[NOT_RUN]}, measured without a test: "
        f"{ended[MEASURED]}, that cannot be tested here: {ended[CANNOT]}.**"
    )


def _cells(row: Tested) -> list[str]:
    def number(value: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        return format(value, f"{sign}.2f" if abs(value) >= 0.1 or value == 0 else f"{sign}.2g")

    chances = ["-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}" for p in (row.p, row.corrected)]
    verdict = f"**{row.verdict}**" if row.stands else row.verdict
    outcome = f"{verdict}: {row.why}" if row.why else verdict
    numbers = [str(row.seeds or "-"), number(row.difference, "+"), number(row.could_see), *chances]
    return [row.claim, row.where, row.test or "-", *numbers, outcome]
