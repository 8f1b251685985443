from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from antipodes.auditing.quality import KINDS, NUMBERS, Quality, measure
from tests.auditing.scenes import scene
from tests.cases import every


def quality(images: list[Image.Image]) -> Quality:
    return Quality.of(np.stack([measure(image, *image.size) for image in images]))


FAULTS = {
    "blank": Image.new("RGB", (160, 128), (90, 90, 90)),
    "dark": ImageEnhance.Brightness(scene(50)).enhance(0.15),
    "bright": Image.fromarray((250 + np.asarray(scene(51)) / 51).astype(np.uint8)),
    "blurred": scene(52).filter(ImageFilter.GaussianBlur(4)),
    "low information": Image.fromarray(np.kron(np.eye(8), np.full((20, 16), 255)).astype(np.uint8)).convert("RGB"),
    "odd size": scene(53).resize((20, 16)),
    "odd ratio": scene(54).crop((0, 0, 160, 40)).resize((320, 80)),
    "grey among colour": scene(55).convert("L").convert("RGB"),
}


@every("kind", FAULTS)
def test_a_fault_is_found_among_ordinary_photos(kind: str) -> None:
    measured = quality([*(scene(number) for number in range(30)), FAULTS[kind]])
    found = {issue.kind: issue for issue in measured.issues() if issue.row == 30}
    assert kind in found
    assert found[kind].score < found[kind].bound == KINDS[kind].bound
    assert found[kind].reason
    assert [issue for issue in measured.issues() if issue.row < 30] == []


def test_scores_by_hand() -> None:
    half = Image.new("L", (100, 50), 0)
    half.paste(255, (0, 0, 50, 50))
    (numbers,) = [measure(half.convert("RGB"), 100, 50)]
    known = dict(zip(NUMBERS, numbers.tolist(), strict=True))
    assert (known["width"], known["height"], known["low"], known["high"], known["colour"]) == (100, 50, 0, 1, 0)
    assert known["contrast"] == pytest.approx(0.5)
    assert known["entropy"] == pytest.approx(1.0)  # two levels, equally often
    measured = Quality.of(np.stack([numbers, numbers]))
    assert measured.scores["odd ratio"].tolist() == [0.5, 0.5]
    assert measured.scores["low information"] == pytest.approx([0.125, 0.125])
    assert measured.scores["grey among colour"].tolist() == [1, 1]  # all are grey: none is odd


def test_of_a_blank_photo_nothing_else_is_said() -> None:
    for colour in ("black", "white"):
        measured = quality([Image.new("RGB", (1, 1), colour), *(scene(number) for number in range(5))])
        assert {issue.kind for issue in measured.issues() if issue.row == 0} == {"blank", "odd size"}


def test_more_blur_is_a_lower_score() -> None:
    widths = (0.0, 1.0, 2.0, 3.0)
    for number in range(5):
        images = [scene(number).filter(ImageFilter.GaussianBlur(width)) for width in widths]
        scores = quality(images).scores["blurred"]
        assert (np.diff(scores) < 0).all()
