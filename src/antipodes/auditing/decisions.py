"""What a person has decided about found pairs: same, different or skipped; and a bound that is calibrated by it.

The page of an audit saves decisions to a file. A later audit applies it:

- a pair that is `different` is no duplicate and joins no group;
- a pair that is the `same` is a duplicate, whatever the audit calls it;
- what was skipped stays as it was found.

`calibrate` fits the probability that a pair is the same to its similarity, by logistic regression on the decided pairs,
and takes the lowest bound above which the expected share of pairs that are the same reaches a target.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from antipodes.auditing.findings import DUPLICATES, EXACT, FALSE_NEGATIVE, Findings, Pair
from antipodes.auditing.groups import join
from antipodes.auditing.pair_columns import PairColumns
from antipodes.files import MARK, replacing
from antipodes.tables import escaped

Verdict = Literal["same", "different", "skip"]
SAME, DIFFERENT = "same by review", "different by review"
LEAST_REVIEWED = 30
"""Pairs that must be decided before a bound is calibrated."""


@dataclass(frozen=True)
class Decision:
    """What was decided about two samples, which are named by their keys (`AuditedData.key`)."""

    a: str
    b: str
    decision: Verdict
    kind: str = ""
    similarity: float = float("nan")


class Calibration(NamedTuple):
    """A bound of similarity, and the expected precision of the pairs above it.

    Attributes:
        bound: of similarity.
        precision: expected share of the likely false negatives above the bound that are the same.
        low: of a 90 % interval of the precision, by the bootstrap.
        high: of that interval.
        kept: likely false negatives above the bound.
        reviewed: decided pairs that the bound was fitted to.
    """

    bound: float
    precision: float
    low: float
    high: float
    kept: int
    reviewed: int


def read_decisions(path: str | Path) -> list[Decision]:
    """Read the decisions that the page of an audit saved.

    Raises:
        ValueError: if the file is missing, or is something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        listed = content["decisions"]
        if not isinstance(listed, list):
            raise TypeError("decisions is no list")
        return [_decision(each) for each in listed]
    except FileNotFoundError as error:
        raise ValueError(f"--decisions {path} does not exist: save the file on the page of an audit") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"--decisions {path} holds no decisions of an audit ({reason})") from error


def _decision(given: Any) -> Decision:
    a, b, verdict = given["a"], given["b"], given["decision"]
    if not isinstance(a, str) or not isinstance(b, str) or verdict not in get_args(Verdict):
        raise ValueError(f"a decision has a, b and one of {', '.join(get_args(Verdict))}")
    similarity = given.get("similarity")
    return Decision(
        a,
        b,
        verdict,
        str(given.get("kind", "")),
        float(similarity) if isinstance(similarity, int | float) else float("nan"),
    )


def write_decisions(path: Path, decisions: Iterable[Decision]) -> None:
    """Write decisions as the page does."""
    listed: list[dict[str, Any]] = []
    for each in decisions:
        number = {} if each.similarity != each.similarity else {"similarity": round(each.similarity, 6)}
        listed.append(
            {"a": escaped(each.a), "b": escaped(each.b), "decision": each.decision, "kind": each.kind, **number}
        )
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"generator": MARK, "decisions": listed}, indent=1) + "\n")


def merged(earlier: Sequence[Decision], later: Sequence[Decision]) -> list[Decision]:
    """All decisions; of two about one pair the later counts."""
    by_pair = {(min(each.a, each.b), max(each.a, each.b)): each for each in (*earlier, *later)}
    return list(by_pair.values())


class Rows:
    """Finds the rows of a decision: by key, else by the end of a path, because folders move.

    Args:
        count: samples.
        key: row -> key.
    """

    def __init__(self, count: int, key: Callable[[int], str]) -> None:
        self._by_key: dict[str, list[int]] = {}
        self._by_end: dict[tuple[str, ...], list[int]] = {}
        for row in range(count):
            name = escaped(key(row))
            self._by_key.setdefault(name, []).append(row)
            self._by_end.setdefault(PurePath(name).parts[-2:], []).append(row)

    def __call__(self, key: str) -> list[int]:
        """The rows with this key, none if there is none."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_end.get(PurePath(key).parts[-2:], [])
            found = found if len(found) == 1 else []
        return found


def apply_decisions(findings: Findings, decisions: Sequence[Decision], rows: Rows) -> Findings:
    """The findings with what was decided about their pairs.

    1. A duplicate that is `different` becomes `different by review`; another pair that is the `same` becomes `same by
       review`. Two samples that are decided to be the same without having been found are added.
    2. The groups are made again of duplicates, and of pairs that are the same.

    A warning names two samples that are decided to be different and are in one group through others.
    """
    by_rows: dict[tuple[int, int], Decision] = {}
    unknown = 0
    for each in decisions:
        first, second = rows(each.a), rows(each.b)
        unknown += not first or not second
        by_rows |= {(min(a, b), max(a, b)): each for a in first for b in second if a != b}
    if unknown:
        warnings.warn(f"{unknown} of {len(decisions)} decisions are about samples that are not here", stacklevel=3)
    changed = {}
    for place, (a, b) in enumerate(findings.pairs.rows()):
        decided = by_rows.pop((min(a, b), max(a, b)), None)
        if decided is not None:
            changed[place] = _decided(findings.pairs[place], decided.decision)
    added = [
        Pair(a, b, decided.similarity, 1.0, SAME, decision="same")
        for (a, b), decided in by_rows.items()
        if decided.decision == "same"
    ]
    findings = _with_pairs(findings, findings.pairs.changed(changed).joined(PairColumns.of(added)))
    groups = findings.groups
    different = findings.pairs.of_kinds((DIFFERENT,))
    split = [pair for pair in different if 0 <= groups[pair.a] == groups[pair.b]]
    if split:
        warnings.warn(
            f"{len(split)} pairs that were decided to be different are in one group, because both are the same as "
            f"others: rows {split[0].a} and {split[0].b}, for example",
            stacklevel=3,
        )
    return findings


def _with_pairs(findings: Findings, pairs: PairColumns) -> Findings:
    """The findings with other pairs, and the groups that these make."""
    grouped = findings.linked | {SAME}
    links = chain(findings.links, pairs.of_kinds(grouped).rows())
    return replace(findings, pairs=pairs, groups=join(len(findings.groups), links))


def _decided(pair: Pair, verdict: Verdict) -> Pair:
    if verdict == "different" and pair.kind != DIFFERENT:
        return replace(pair, kind=DIFFERENT, found_as=pair.kind, decision=verdict)
    if verdict == "same" and pair.kind not in DUPLICATES:
        return replace(pair, kind=SAME, found_as=pair.kind, decision=verdict)
    return replace(pair, decision=verdict)


def calibrate(findings: Findings, target: float) -> tuple[Findings, Calibration]:
    """Take the bound of similarity above which likely false negatives are expected to be the same often enough.

    Args:
        findings: after `apply_decisions`.
        target: the precision that is asked for, in (0, 1).

    Returns:
        The findings without the likely false negatives below the bound, and the calibration.

    Raises:
        ValueError: if target is not in (0, 1), fewer than 30 pairs are decided, all are decided alike, or no bound is
            expected to reach the target.
    """
    if not 0 < target < 1:
        raise ValueError(f"calibrate must be in (0, 1), got {target}: it is the precision that is asked for")
    judged = findings.pairs.decided
    decided = [pair for pair in judged if pair.decision in ("same", "different") and pair.found != EXACT]
    scores = np.array([pair.similarity for pair in decided], dtype=np.float64)
    same = np.array([pair.decision == "same" for pair in decided], dtype=np.float64)
    known = np.isfinite(scores)
    scores, same = scores[known], same[known]
    if len(scores) < LEAST_REVIEWED:
        raise ValueError(
            f"--calibrate needs at least {LEAST_REVIEWED} decided pairs (near duplicates or false negatives), and "
            f"--decisions has {len(scores)} of those found here: review more of them on the page"
        )
    if same.min() == same.max():
        bound = 0.05 ** (1 / len(same))  # if the share were lower, so many alike would be seen in 5 % of the cases
        share = f"at least {bound:.2f}" if same[0] else f"at most {1 - bound:.2f}"
        raise ValueError(
            f"--calibrate: all {len(same)} decided pairs are {decided[0].decision}, so that no bound follows; the "
            f"precision of pairs like them is {share} (95 % confidence)"
        )
    likely = findings.pairs.is_of((FALSE_NEGATIVE,))
    open_pairs = findings.pairs.similarity[likely]
    candidates = np.sort(open_pairs if len(open_pairs) else scores)[::-1]
    chance = _logistic(scores, same)
    bound, precision = _bound(chance, candidates, target)
    if precision < target:
        raise ValueError(
            f"--calibrate {target}: no bound is expected to reach it; the best is {bound:.4f} with a precision of "
            f"{precision:.2f}: ask for less, or decide more pairs"
        )
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        rows = random.integers(len(scores), size=len(scores))
        drawn.append(float(_logistic(scores[rows], same[rows])(candidates[candidates >= bound]).mean()))
    low, high = np.quantile(drawn, (0.05, 0.95))
    kept = int((open_pairs >= bound).sum())
    result = Calibration(bound, precision, float(low), float(high), kept, len(scores))
    left = findings.pairs.take(~likely | (findings.pairs.similarity >= bound))
    return _with_pairs(findings, left), result


def _logistic(scores: NDArray[np.float64], same: NDArray[np.float64]) -> Callable[[NDArray[np.float64]], Any]:
    """The probability of `same` by score: logistic regression by Newton's method, with a weak prior on the slope."""
    middle, spread = scores.mean(), max(float(scores.std()), 1e-6)
    inputs = np.stack((np.ones_like(scores), (scores - middle) / spread), axis=1)
    weights = np.zeros(2)
    prior = np.diag((0.01, 0.1))  # keeps separable decisions finite
    for _ in range(50):
        chances = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (chances - same) + prior @ weights
        curvature = inputs.T @ (inputs * (chances * (1 - chances))[:, None]) + prior
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return lambda given: 1 / (1 + np.exp(-(weights[0] + weights[1] * (given - middle) / spread)))


def _bound(
    chance: Callable[[NDArray[np.float64]], Any], candidates: NDArray[np.float64], target: float
) -> tuple[float, float]:
    """The lowest of the candidates, sorted from the highest, down to which the mean chance reaches the target.

    Returns:
        The candidate and the mean down to it; those of the highest mean if none reaches the target.
    """
    means = np.cumsum(chance(candidates)) / np.arange(1, len(candidates) + 1)
    reached = np.flatnonzero(means >= target)
    place = reached[-1] if len(reached) else int(means.argmax())
    return float(candidates[place]), float(means[place])


def counts_of(pairs: PairColumns) -> Mapping[str, int]:
    """How many pairs were decided to be the same, different, or skipped."""
    verdicts = [pair.decision for pair in pairs.decided]
    return {name: verdicts.count(name) for name in get_args(Verdict)}
