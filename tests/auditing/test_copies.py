from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes import audit
from antipodes.auditing.alignment import agree
from antipodes.auditing.audited_photos import photos_with_vectors
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.files import photos_of_list
from antipodes.auditing.keypoints import SIDE, Keypoints, canvas, find_keypoints, mirrored, signatures
from antipodes.auditing.photo_maps import led, match
from tests.auditing.changes import CHANGES, SEEN, from_the_side
from tests.auditing.scenes import garment, scene
from tests.cases import every

Described = tuple[Keypoints, torch.Tensor, torch.Tensor]


def described(images: list[Image.Image]) -> Described:
    greys, sizes = zip(*map(canvas, images), strict=True)
    grey, size = torch.from_numpy(np.stack(greys)), torch.tensor(sizes)
    return find_keypoints(grey, size).of(torch.arange(len(images))), grey, size


def agreed(first: Described, second: Described) -> list[bool]:
    return agree(first[0], second[0], (first[1], second[1]), (first[2], second[2])).tolist()


@pytest.fixture(scope="module")
def originals() -> Described:
    return described([scene(number) for number in range(8)])


@every("change", CHANGES.values())
def test_a_changed_copy_agrees(change, originals: Described) -> None:
    copies = described([change(scene(number)) for number in range(8)])
    assert agreed(originals, copies) == [True] * 8
    assert agreed(copies, originals) == [True] * 8


def test_other_photos_do_not_agree(originals: Described) -> None:
    others = described([scene(number) for number in range(20, 28)])
    assert agreed(originals, others) == [False] * 8
    flat = described([Image.new("RGB", (160, 128), "grey")] * 8)
    assert agreed(flat, originals) == [False] * 8
    assert agreed(flat, flat) == [False] * 8  # nothing to go by


def test_one_outline_is_not_one_photo() -> None:
    garments = described([garment(number) for number in range(12)])
    others = described([garment(number) for number in range(1, 13)])
    changed = described([CHANGES["all of it"](garment(number)) for number in range(12)])
    assert agreed(garments, others) == [False] * 12
    assert agreed(garments, changed) == [True] * 12


def test_one_scene_a_moment_later_is_not_one_photo() -> None:
    """The background is that of the first photo, but for the noise of a camera; something large has moved."""

    def moment(number: int, place: int) -> Image.Image:
        image = scene(number, (320, 256))
        image.paste(scene(100 + number, (90, 140)), (place, 60))
        noise = np.random.default_rng(number + place).normal(0, 6, (256, 320, 1))
        return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))

    first = described([moment(number, 20) for number in range(8)])
    assert agreed(first, described([moment(number, 150) for number in range(8)])) == [False] * 8
    assert agreed(first, described([moment(number, 20) for number in range(8)])) == [True] * 8


def test_another_shade_of_cloth_is_not_one_photo() -> None:
    """What is laid out has the same outline and folds on the same table, and another brightness."""
    grey = [np.asarray(garment(number).convert("L"), np.float32) for number in range(6)]
    other = [np.where(each < 150, 320 - each, each).clip(0, 255).astype(np.uint8) for each in grey]
    assert (
        agreed(described([garment(number) for number in range(6)]), described([*map(Image.fromarray, other)]))
        == [False] * 6
    )


@pytest.mark.parametrize(("turn", "mirror"), [(0, False), (90, False), (25, False), (0, True), (25, True)])
def test_the_map_is_the_change(turn: int, mirror: bool, originals: Described) -> None:
    """A corner of the photo is led to where a rotation by `turn` degrees around the middle puts it."""
    images = [scene(number).resize((SIDE, SIDE)) for number in range(4)]
    first = described(images)
    changed = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror else image for image in images]
    second = described([image.rotate(turn, Image.Resampling.BICUBIC) for image in changed])
    found = match(first[0], second[0])
    assert (found.matches >= 12).all()
    middle, angle = (SIDE - 1) / 2, np.deg2rad(turn)
    point = np.array([90.0, 50.0]) - middle
    point = point * np.array([-1, 1]) if mirror else point
    expected = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) @ point + middle
    place, area = led(found.matrix, torch.tensor([[[90.0, 50.0]]]))
    np.testing.assert_allclose(place[:, 0].numpy(), np.broadcast_to(expected, (4, 2)), atol=1.5)
    np.testing.assert_allclose(area[:, 0].numpy(), np.ones(4), atol=0.1)


@pytest.mark.parametrize("mirror", [False, True])
def test_the_map_is_the_perspective(mirror: bool) -> None:
    """Places all over the photo are led to where it shows them that was taken from the side."""
    images = [scene(number).resize((SIDE, SIDE)) for number in range(4)]
    changed = [from_the_side(image) for image in images]
    changed = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror else image for image in changed]
    found = match(described(images)[0], described(changed)[0])
    expected = torch.cartesian_prod(torch.arange(20.0, 110, 20), torch.arange(20.0, 110, 20))[None]
    place, _ = led(torch.tensor([*SEEN, 1.0]).view(1, 3, 3), expected)
    expected = expected * torch.tensor([-1.0, 1.0]) + torch.tensor([SIDE - 1.0, 0.0]) if mirror else expected
    off = (led(found.matrix, place)[0] - expected).norm(dim=-1)
    assert float(off.max()) < 2.5
    assert float(off.mean()) < 0.7
    assert float(found.matrix[:, 2, :2].abs().max()) > 5e-4


def test_the_mirror_image_has_mirrored_descriptors() -> None:
    image = scene(2).resize((SIDE, SIDE))
    (plain, _, _), (other, _, _) = described([image]), described([image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)])
    similarity = mirrored(plain.descriptors[0]) @ other.descriptors[0].T
    best, partner = similarity.max(1)
    kept = best > 0.97
    assert int(kept.sum()) > 20
    across = plain.places[0, kept, 0] + other.places[0, partner[kept], 0]
    assert float((across - (SIDE - 1)).abs().median()) < 0.5
    assert torch.equal(mirrored(mirrored(plain.descriptors)), plain.descriptors)


def test_signatures_propose_changed_copies() -> None:
    images = [scene(number) for number in range(40)] + [CHANGES["all of it"](scene(number)) for number in range(10)]
    greys, sizes = zip(*map(canvas, images), strict=True)
    keypoints = find_keypoints(torch.from_numpy(np.stack(greys)), torch.tensor(sizes))
    index = signatures(keypoints)
    torch.testing.assert_close(signatures(keypoints), index)
    nearest = (index @ index.T).fill_diagonal_(-1).argmax(1)
    assert nearest[40:].tolist() == list(range(10))
    empty = find_keypoints(torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), torch.full((3, 2), SIDE))
    assert not signatures(empty).any()


def test_an_audit_finds_copies_and_groups_them(tmp_path: Path) -> None:
    for number in range(30):
        scene(number).save(tmp_path / f"{number:02d}.png")
    for number, change in enumerate(CHANGES.values()):
        change(scene(number)).save(tmp_path / f"{number:02d}x.png")
    found = audit(str(tmp_path), encoder="patches")
    pairs = {
        (Path(a).stem, Path(b).stem)
        for a, b, kind in zip(found.pairs["path_a"], found.pairs["path_b"], found.pairs["kind"], strict=True)
        if "duplicate" in kind
    }
    assert pairs == {(f"{number:02d}", f"{number:02d}x") for number in range(len(CHANGES))}


def test_given_vectors_leave_the_decision_to_the_pixels() -> None:
    images = [scene(number) for number in range(6)] + [CHANGES["grey"](scene(2))]
    given = Vectors(np.eye(7, dtype=np.float32), tuple(f"image {row}" for row in range(7)))
    data = photos_with_vectors(photos_of_list(images), given, "given")
    proposed = data.proposals(lambda done, total: None)
    assert proposed is not None
    assert [2, 6] in proposed.tolist()
    rows = np.array([2, 0]), np.array([6, 1])
    assert data.agree(*rows, lambda done, total: None).tolist() == [True, False]
    assert data.rank(0) > data.rank(6) or data.rank(0)[0] == data.rank(6)[0]
