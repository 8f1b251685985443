"""The study of detectors: what is counted, one training for all of them, and its figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from antipodes import TableGuide
from antipodes.data import Shapes
from antipodes.negatives import FNC
from antipodes.pairs import normalise
from antipodes.studies.definition import load_study
from antipodes.studies.statistics import Line
from research.ledger.reports import study_file
from research.runners import detectors
from research.runners.detectors import Detector, Detectors

LABELS = torch.arange(12) % 3


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """A few images, a guide that knows their classes, and how often training was begun."""
    begun: list[object] = []
    data = Shapes(count=96)
    assert data.labels is not None
    guide = torch.eye(20)[data.labels] + 0.05 * torch.randn(96, 20, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(detectors, "build_data", lambda spec: begun.append(spec) or data)
    monkeypatch.setattr(detectors, "load", lambda name: None)
    monkeypatch.setattr(detectors, "network_vectors", lambda *_, **__: TableGuide(guide).vectors())
    detectors._every_detector.cache_clear()
    yield begun
    detectors._every_detector.cache_clear()


def test_precision_and_recall_by_hand() -> None:
    """Of three classes of four, each sample's nearest are its class: the mutual 3 nearest are all there is."""
    vectors = normalise(torch.eye(3)[LABELS] + 0.01 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0)))
    assert detectors._same_label(LABELS) == pytest.approx(3 / 11)
    assert detectors._neighbours(vectors, LABELS, 3) == (1.0, 1.0)
    precision, recall = detectors._neighbours(vectors, torch.arange(12) // 6, 3)  # other classes: 0..5 and 6..11
    assert precision == pytest.approx(12 / 36)
    assert recall == pytest.approx(12 / 60)
    assert detectors._ratio(1.0, 0.0) == 0


def test_one_training_serves_all_detectors(few: list[object]) -> None:
    options = {"data": "any", "steps": 4, "measured": [2, 4], "batch": 32, "alpha": 0.05}
    scores = {name: Detectors(**options, detector=name).run(0) for name in get_args(Detector)}  # type: ignore[arg-type]
    assert len(few) == 1
    for found in scores.values():
        assert list(found) == ["precision, step 4", "recall, step 4", "precision, step 2", "recall, step 2"]
        assert all(0 <= value <= 100 for value in found.values())
    assert scores["guide"]["precision, step 4"] > 2 * scores["chance"]["precision, step 4"]
    assert scores["chance"]["recall, step 2"] == pytest.approx(5)
    again = Detectors(**options, detector="own", temperature=0.3).run(0)  # type: ignore[arg-type]
    assert len(few) == 2
    assert again != scores["own"]


def test_a_batch_is_judged_pair_by_pair(few: list[object]) -> None:
    training = detectors._Training(Detectors(data="any", batch=12, steps=2, measured=(1,)), Shapes(count=96), 0)
    training.labels = LABELS
    vectors = torch.eye(3)[LABELS] + 0.01 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    assert training._by_batches(vectors, FNC(3 / 11)) == (1.0, 1.0)
    precision, recall = training._by_batches(vectors, FNC(6 / 11))
    assert (precision, recall) == (pytest.approx(0.5), 1.0)


def test_the_shipped_study_has_a_figure_of_both_datasets() -> None:
    pytest.importorskip("matplotlib")
    study = load_study(study_file("detectors"))
    lines = [
        Line(variant, f"{score}, step {step}", (0,), 10.0 + step, None)
        for variant in study.variants
        for score in ("precision", "recall")
        for step in (195, 78)
    ]
    figure = Detectors.figure(study, lines)
    titles = [axes.get_title() for axes in figure.axes]
    names = ("CIFAR-10", "CIFAR-100")
    assert titles == [f"{name}: {score}" for name in names for score in ("precision", "recall")]
    assert {len(axes.containers) for axes in figure.axes} == {8}
    figure.canvas.draw()
    ticks = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert "100" in ticks
    assert not [tick for tick in ticks if "^" in tick]
    assert "GloFND" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(study.trials(Path("out"))) == 16


def test_wrong_steps_get_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"measured must be steps in 1\.\.5, got \[9\]"):
        Detectors(steps=5, measured=(9,))
