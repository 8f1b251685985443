"""Contrastive learning on locked features: the set oracle, the small network, and recall of siblings, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antipodes.pairs import Pairs, normalise
from antipodes.studies.definition import load_study
from antipodes.studies.runner import build
from research.ledger.reports import study_file
from research.runners import locked
from research.runners.gain_figures import is_set_oracle
from research.runners.heads import (
    Recipe,
    SmallNetwork,
    build_loss,
    build_policy,
    features,
    flags_judged,
    train_network,
)
from research.runners.locked import LockedCaptions, LockedImages, sibling_recall
from research.runners.locked_features import Components, LockedViews
from research.runners.set_oracle import SetOracle

N, CLASSES = 240, 6


@pytest.fixture
def known() -> LockedViews:
    """Samples around the centres of their classes, three noisy views of each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % CLASSES
    centres = torch.randn(CLASSES, 12, generator=generator)
    plain = centres[labels] + 0.8 * torch.randn(N, 12, generator=generator)
    views = plain + 0.3 * torch.randn(3, N, 12, generator=generator)
    return LockedViews(views, plain, plain[None] + 0.1, labels, labels)


def flags(policy: SetOracle, rows: torch.Tensor) -> torch.Tensor:
    z = normalise(torch.randn(len(rows), 4, generator=torch.Generator().manual_seed(1)))
    (rule,) = policy.judge(Pairs(z, rows, torch.ones(len(rows))), 1.0)
    mask = torch.zeros(len(rows), len(rows), dtype=torch.bool)
    mask[rule.lists[0].anchors, rule.lists[0].candidates] = True
    return mask


@pytest.mark.parametrize("errors", ["chance", "similar"])
@pytest.mark.parametrize(("precision", "recall"), [(1.0, 1.0), (0.5, 1.0), (0.4, 0.5), (0.7, 0.3)])
def test_the_oracle_has_the_precision_and_recall_that_were_set(
    errors: Any, precision: float, recall: float, known: LockedViews
) -> None:
    assert known.labels is not None
    policy = SetOracle(known.labels, precision, recall, errors, known.plain)
    flagged = flags(policy, torch.arange(N))
    same = known.labels[:, None] == known.labels[None]
    assert not flagged.diagonal().any()  # an anchor's own sample is no false negative
    true = flagged & same
    off = same & ~torch.eye(N, dtype=torch.bool)
    assert true.sum() / flagged.sum() == pytest.approx(precision, abs=0.03)
    assert true.sum() / off.sum() == pytest.approx(recall, abs=0.03)
    assert torch.equal(flagged & same, (flagged & same).T)  # a pair is right or wrong whichever is the anchor
    assert torch.equal(flagged, flags(policy, torch.arange(N)))  # and in every step


def test_similar_errors_are_the_most_alike_pairs_of_different_labels(known: LockedViews) -> None:
    assert known.labels is not None
    flagged = flags(SetOracle(known.labels, 0.5, 1.0, "similar", known.plain), torch.arange(N))
    other = known.labels[:, None] != known.labels[None]
    similarity = normalise(known.plain) @ normalise(known.plain).T
    assert similarity[flagged & other].min() >= similarity[~flagged & other].max() - 1e-6


def test_the_oracle_refuses_what_cannot_be() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="precision must be in"):
        SetOracle(labels, 0.0)
    with pytest.raises(ValueError, match="more wrong flags than there are"):
        SetOracle(labels, 0.1)
    late = SetOracle(labels, 1.0, start=0.5)
    (rule,) = late.judge(Pairs(torch.eye(4), torch.arange(4), torch.ones(4)), 0.2)
    assert late.uses_progress
    assert not rule.lists


def test_components_keep_what_varies_most() -> None:
    points = torch.zeros(100, 3)
    points[:, 1] = torch.linspace(-3, 5, 100)
    points[:, 2] = 0.01 * torch.sin(torch.arange(100.0))
    reduced = Components(points, 1)(points)
    assert reduced.shape == (100, 1)
    assert reduced.mean() == pytest.approx(0.0, abs=1e-5)
    assert reduced.std(correction=0) == pytest.approx(1.0, abs=1e-4)


def test_training_is_a_function_of_the_seed_and_pulls_views_together(known: LockedViews) -> None:
    recipe = Recipe(hidden=16, dim=8, batch=60, epochs=4, rate=1e-2)

    def trained(seed: int) -> SmallNetwork:
        return train_network(known.views, known.plain, build_loss(0.2, None, "eliminate"), recipe, seed)

    first, again, other = trained(0), trained(0), trained(1)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)

    def alike(network: SmallNetwork) -> float:
        z = [normalise(features(network, view, "embeddings")) for view in known.views[:2]]
        across = z[0] @ z[1].T
        return float(across.diagonal().mean() - across.mean())

    torch.manual_seed(0)
    assert alike(first) > alike(SmallNetwork(12, 16, 8).eval()) + 0.1


def test_a_network_that_adds_starts_from_the_locked_features() -> None:
    x = torch.randn(5, 12)
    assert torch.equal(SmallNetwork(12, 16, None)(x), x)


def test_flags_are_judged_by_labels(known: LockedViews) -> None:
    assert known.labels is not None
    network = SmallNetwork(12, 16, 8).eval()
    policy = SetOracle(known.labels, 0.5, 1.0)
    scores = flags_judged(network, known.views, policy, known.labels, batch=120)
    assert scores["flags recall"] == pytest.approx(100.0)
    assert scores["flags precision"] == pytest.approx(50.0, abs=3)


def test_policies_are_built_by_name_with_what_they_need(known: LockedViews) -> None:
    given = {"num_samples": N, "labels": known.labels, "features": known.plain, "seed": 3}
    assert build_policy({"name": "none"}, given) is None
    assert build_policy({"name": "glofnd", "alpha": 0.1}, given).num_samples == N  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="fnc takes no beta"):
        build_policy({"name": "fnc", "beta": 1}, given)


def test_a_run_scores_features_and_flags(known: LockedViews, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked, "_images", lambda *_: known)
    small = {"data": {"name": "x"}, "hidden": 16, "dim": 8, "batch": 60, "epochs": 2}
    plain = LockedImages(**small).run(0)
    assert set(plain) == {"knn top-1", "linear top-1"}
    assert LockedImages(**small).run(0) == plain
    oracle = {"name": "research.runners.set_oracle.SetOracle", "precision": 0.8}
    scores = build(
        "research.runners.locked.LockedImages", {**small, "linear": False, "negatives": oracle, "treatment": "attract"}
    ).run(0)
    assert scores["flags precision"] == pytest.approx(80, abs=4)
    neighbours = {"name": "dataset-neighbours", "k": 3}
    assert LockedImages(**small, linear=False, negatives=neighbours).run(0)["flags precision"] > 100 / CLASSES
    few = LockedImages(**small, linear=False, classes=2, judged_by="validation", trained=False).run(0)
    assert few["knn top-1"] > 50
    with pytest.raises(ValueError, match="classes 9 needs"):
        LockedImages(**small, classes=9).run(0)


def test_captions_are_judged_by_their_siblings(known: LockedViews, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = LockedViews(known.views, known.plain, known.views[:, :50])
    monkeypatch.setattr(locked, "_captions", lambda *_: texts)
    scores = LockedCaptions(data={"name": "x"}, views=3, hidden=16, batch=60, epochs=1).run(0)
    assert 0 < scores["recall at 1"] <= scores["recall at 5"] <= scores["recall at 10"] <= 100
    untrained = LockedCaptions(data={"name": "x"}, trained=False, judged_by="validation").run(0)
    assert untrained["recall mean"] == pytest.approx(sum(untrained[f"recall at {k}"] for k in (1, 5, 10)) / 3)


def test_siblings_by_hand() -> None:
    angle = torch.tensor([[0.0, 1.0, 2.0], [0.1, 1.9, 2.3]])  # two texts of three samples; text 1 of sample 1 strays
    views = torch.stack((angle.cos(), angle.sin()), -1)
    # nearest others: of 0.0 0.1 (own), of 1.0 0.1 or 1.9 (tie by rounding: 0.9 each), of 2.0 1.9 (another)
    scores = sibling_recall(views)
    assert scores["recall at 5"] == 100
    assert scores["recall at 1"] < 100


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="views and batch at least 2"):
        build("research.runners.locked.LockedImages", {"views": 1})
    with pytest.raises(ValueError, match="negatives needs a name"):
        build("research.runners.locked.LockedImages", {"negatives": {"alpha": 0.1}})


def test_the_surface_sets_every_precision_for_every_treatment() -> None:
    study = load_study(study_file("oracle-surface"))
    grid = {
        (options.get("treatment", "eliminate"), options["negatives"]["precision"])
        for options in study.variants.values()
        if is_set_oracle(options) and options["negatives"]["recall"] == 0.5
    }
    assert grid == {(t, p) for t in ("eliminate", "attract", "refine") for p in (0.1, 0.22, 0.42, 0.7, 1.0)}
