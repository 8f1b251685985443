"""Injected duplicates: what a copy is, and detectors scored by hand on vectors whose copies are obvious."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antipodes.pairs import normalise
from research.runners import injected_duplicates
from research.runners.injected_duplicates import InjectedDuplicates, audited_groups, best_f1
from research.runners.injection import CHANGES, Injected, change, chosen_rows, divided

PHOTOS, COPIES = 36, 12


def obvious(seed: int = 0) -> Injected:
    """Photos in random directions, copies in nearly the same; two captions each, a copy's near the original's."""
    draws = torch.Generator().manual_seed(seed)
    images, words = (normalise(torch.randn(PHOTOS, 24, generator=draws)) for _ in range(2))
    source = torch.cat((torch.arange(PHOTOS), torch.arange(COPIES)))
    texts = words[source].repeat_interleave(2, 0)
    captions = tuple((2 * row, 2 * row + 1) for row in range(PHOTOS + COPIES))
    changes = torch.cat((torch.full((PHOTOS,), -1), torch.arange(COPIES) % len(CHANGES)))
    pixels = torch.randint(0, 256, (PHOTOS, 3, 32, 32), generator=draws, dtype=torch.uint8)
    near = torch.randn(len(source), 24, generator=draws) * 0.01
    return Injected(
        images[source] + near,
        texts + 0.01 * torch.randn(texts.shape, generator=draws),
        captions,
        source,
        changes,
        pixels[source],
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(injected_duplicates, "inject", lambda *arguments: obvious())
    return {"epochs": 8, "batch_size": 16, "learning_rate": 3e-3}


def test_a_copy_is_cropped_compressed_or_both() -> None:
    image = torch.arange(3 * 64 * 64).view(3, 64, 64).remainder(251).to(torch.uint8)
    seen = [change(image, how, torch.Generator().manual_seed(3)) for how in CHANGES]
    assert all(copy.shape == image.shape and copy.dtype == torch.uint8 for copy in seen)
    assert not any(torch.equal(one, other) for one in (image, *seen) for other in seen if one is not other)
    smooth = torch.linspace(0, 255, 64).to(torch.uint8).expand(3, 64, 64).contiguous()
    near = (change(smooth, "recompressed", torch.Generator()).int() - smooth.int()).abs().max()
    assert 0 < near < 20  # the same picture
    cropped = change(smooth, "cropped", torch.Generator().manual_seed(0))[0, 0]
    assert cropped[-1] - cropped[0] < smooth[0, 0, -1] - smooth[0, 0, 0]  # a part of it


def test_rows_and_captions_are_divided_without_rest() -> None:
    rows = chosen_rows(100, 0.2, seed=1)
    assert (len(rows), len(rows.unique()), rows.tolist()) == (20, 20, sorted(rows.tolist()))
    assert chosen_rows(100, 0.2, seed=2).tolist() != rows.tolist()
    kept, given = divided((3, 5, 7, 9, 11), torch.Generator().manual_seed(0))
    assert (len(kept), len(given), sorted(kept + given)) == (3, 2, [3, 5, 7, 9, 11])


def test_captions_are_drawn_by_row_and_number_alone() -> None:
    injected = obvious()
    rows = torch.tensor([5, 0, 40])
    some = injected.drawn((0, 3), rows)
    assert torch.equal(some, injected.drawn((0, 3), rows.flip(0)).flip(0))
    for row, text in zip(rows.tolist(), some, strict=True):
        assert any(torch.equal(text, injected.texts[place]) for place in injected.captions[row])


def test_the_truth_finds_everything_and_nothing_else(small: dict[str, Any]) -> None:
    scores = InjectedDuplicates(detector="known", **small).run(0)
    assert (scores["precision"], scores["recall"], scores["f1"]) == (100, 100, 100)
    assert all(scores[f"recall, {how}"] == 100 for how in CHANGES)
    assert 0 < scores["flagged share, %"] < 100 * COPIES / PHOTOS


def test_precision_recall_and_shares_count_the_same_pairs(small: dict[str, Any]) -> None:
    """Right flags are precision times what is flagged, and recall times what is true; batches are the same."""
    flagged = InjectedDuplicates(detector="fnc", alpha=0.0001, **small).run(0)
    true = InjectedDuplicates(detector="known", **small).run(0)
    assert flagged["flagged share, %"] == pytest.approx(100 / 15)  # one of the others in a batch of 16
    right = flagged["precision"] * flagged["flagged share, %"]
    assert right == pytest.approx(flagged["recall"] * true["flagged share, %"])
    assert flagged["recall"] > 3 * 100 / 15  # a flag at random finds one in 15


@pytest.mark.parametrize("options", [{"clustered": "image"}, {"clustered": "image+text"}, {}])
def test_clusters_of_one_modality_or_of_both_find_obvious_copies(small: dict[str, Any], options: Any) -> None:
    scores = InjectedDuplicates(detector="ifnd", cluster_size=48 / 36, **options, **small).run(0)
    chance = 100 * 2 * COPIES / (PHOTOS + COPIES) / (PHOTOS + COPIES - 1)  # of a pair at random to be copies
    assert scores["recall"] > 50
    assert scores["precision"] > 10 * chance


def test_a_guide_and_an_audit_see_the_photos(small: dict[str, Any]) -> None:
    scores = InjectedDuplicates(detector="guided", margin=0.2, **small).run(0)
    assert (scores["precision"], scores["recall"]) == (100, 100)
    groups = audited_groups(obvious())
    assert groups[:COPIES].tolist() == groups[PHOTOS:].tolist()
    assert len(groups[:COPIES].unique()) == COPIES


def test_a_seed_repeats_itself(small: dict[str, Any]) -> None:
    state = torch.get_rng_state()
    first = InjectedDuplicates(alpha=0.02, **small).run(1)
    assert first == InjectedDuplicates(alpha=0.02, **small).run(1)
    assert torch.equal(state, torch.get_rng_state())


def test_the_best_threshold_by_hand() -> None:
    same = torch.tensor([True, True, False, True, False])
    assert best_f1(torch.tensor([0.9, 0.8, 0.7, 0.6, 0.1]), same) == pytest.approx(100 * 6 / 7)  # the first four


def test_wrong_options_get_one_sentence() -> None:
    with pytest.raises(ValueError, match="share must be in"):
        InjectedDuplicates(share=0.0)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        InjectedDuplicates(epochs=0)
