"""Orderings that a paper claims, and what a study's runs say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from antipodes.studies.statistics import Results, one_sided, paired_p

Verdict = Literal["held", "not held", "undecided", "not tested"]
LEVEL = 0.05


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
