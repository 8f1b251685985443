"""Orderings that a paper claims, and what a study's runs say about them: a further section of the study's page.

A study names the class `Claims` in its `appendix`, with its claims by score:

    appendix:
      by: research.ledger.orderings.Claims
      claims:
        linear top-1: [plain < glofnd]
        threshold MAE < batch MAE: [glofnd < fnc]   # of two scores, the left one that of the variant on the left
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from antipodes.studies.statistics import Results, one_sided, paired_p

Verdict = Literal["held", "not held", "undecided", "not tested"]
LEVEL = 0.05
LEGEND = """*held* and *not held*: by a one-sided paired t-test over the seeds at 5 %; *undecided*: neither, or a
single seed."""


@dataclass(frozen=True)
class Claim:
    """One variant is better than another, by a score: of which it has more.

    A score `LEFT < RIGHT` is two: LEFT of the variant that should have less, RIGHT of the other.
    """

    score: str
    worse: str
    better: str

    def __str__(self) -> str:
        return f"{self.worse} < {self.better}"

    @property
    def scores(self) -> tuple[str, str]:
        """The score of the variant that should have less, and of the other: mostly the same."""
        left, sign, right = self.score.partition(" < ")
        return (left, right) if sign else (left, left)


@dataclass(frozen=True)
class Judgement:
    """What the runs say about a claim.

    Args:
        claim: Which one.
        verdict: held or not held if a one-sided paired t-test says so at 5 %, undecided if neither, or not tested
            where a variant has no scores yet.
        difference: Mean over the seeds that both have; None without any.
        p: One-sided, that the claim is right; None with fewer than two seeds.
        seeds: How many they have in common.
    """

    claim: Claim
    verdict: Verdict
    difference: float | None = None
    p: float | None = None
    seeds: int = 0


def read_claims(value: Any, variants: Sequence[str]) -> list[Claim]:
    """Claims from a study's YAML: score, or `SCORE < SCORE`, -> list of `WORSE < BETTER`, both names of variants.

    Raises:
        ValueError: if it is something else, or names what is not a variant.
    """
    if not isinstance(value, dict) or not all(isinstance(some, list) for some in value.values()):
        raise ValueError("claims should be a mapping of scores to lists such as [plain < ifnd]")
    claims = []
    for score, orderings in value.items():
        for ordering in orderings:
            worse, sign, better = str(ordering).partition(" < ")
            for variant in (worse, better):
                if not sign or variant not in variants:
                    raise ValueError(f"claim {ordering!r} should read WORSE < BETTER with names of variants")
            claims.append(Claim(str(score), worse, better))
    return claims


def judge_claims(claims: Sequence[Claim], results: Results) -> list[Judgement]:
    """Every claim with what the results say about it."""
    return [_judge(claim, results) for claim in claims]


def _judge(claim: Claim, results: Results) -> Judgement:
    sides = zip((claim.worse, claim.better), claim.scores, strict=True)
    worse, better = (_scores(results.get(variant, {}), score) for variant, score in sides)
    common = sorted(set(worse) & set(better))
    if not common:
        return Judgement(claim, "not tested")
    ours, theirs = [better[seed] for seed in common], [worse[seed] for seed in common]
    difference = fmean(a - b for a, b in zip(ours, theirs, strict=True))
    two_sided = paired_p(ours, theirs)
    if two_sided is None:
        return Judgement(claim, "undecided", difference, None, len(common))
    p = one_sided(two_sided, difference)
    return Judgement(claim, decide(p), difference, p, len(common))


def decide(p: float | None) -> Verdict:
    """The verdict of a one-sided p that the claim is right; None, of a single seed, decides nothing."""
    if p is None:
        return "undecided"
    return "held" if p < LEVEL else "not held" if p > 1 - LEVEL else "undecided"


def _scores(seeds: Mapping[int, Mapping[str, float]], score: str) -> dict[int, float]:
    return {seed: scores[score] for seed, scores in seeds.items() if score in scores}


@dataclass(frozen=True)
class Claims:
    """The section of a study's page that says what its runs say about the claims of the paper.

    Args:
        claims: As `read_claims` takes them.
    """

    claims: Any

    def section(self, results: Results) -> str:
        """Write every claim, and what the results say about it, as Markdown.

        Args:
            results: Variant -> seed -> score -> number; every variant of the study, with or without seeds.

        Raises:
            ValueError: if a claim makes no sense.
        """
        rows = [["claim", "score", "here", "difference", "seeds", "p >"], ["---"] * 3 + ["---:"] * 3]
        for judged in judge_claims(read_claims(self.claims, list(results)), results):
            difference = "-" if judged.difference is None else f"{judged.difference:+.2f}"
            p = "-" if judged.p is None else "<0.001" if judged.p < 0.001 else f"{judged.p:.3f}"
            rows.append([str(judged.claim), judged.claim.score, judged.verdict, difference, str(judged.seeds), p])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"## What the paper claims\n\n{table}\n\n{LEGEND}"
