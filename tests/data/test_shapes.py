import time

import pytest
import torch

from antipodes.data import Shapes, shapes


@pytest.fixture(scope="module", autouse=True)
def drawn_each_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_draw", shapes._draw.__wrapped__)  # what conftest.py has in its place
        yield


@pytest.fixture(scope="module")
def data():
    return Shapes(count=1200)


def test_same_seed_same_images(data):
    again = Shapes(count=1200)
    assert torch.equal(again.images, data.images)
    assert torch.equal(again.labels, data.labels)
    assert again.fingerprint == data.fingerprint


def test_a_shorter_one_is_the_beginning_of_a_longer(data):
    short = Shapes(count=501)
    assert torch.equal(short.images, data.images[:501])
    assert torch.equal(short.labels, data.labels[:501])


def test_seed_split_and_size_make_other_images(data):
    others = [Shapes(count=40, seed=1), Shapes(count=40, split="test"), Shapes(count=40, size=48), Shapes(count=40)]
    assert not torch.equal(others[0].images, data.images[:40])
    assert not torch.equal(others[1].images, data.images[:40])
    assert others[2].images.shape == (40, 3, 48, 48)
    assert len({other.fingerprint for other in [*others, data]}) == 5


def test_global_generator_is_neither_read_nor_moved(data):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(Shapes(count=3).images, data.images[:3])
    assert torch.equal(torch.get_rng_state(), before)


def test_labels_have_a_coarse_level(data):
    assert len(data.classes) == 20
    assert set(data.labels.tolist()) == set(range(20))
    for fine, coarse in zip(data.labels.tolist(), data.coarse_labels.tolist(), strict=True):
        assert data.classes[fine].split()[1] == data.coarse_classes[coarse]


def test_colour_tells_nothing_about_the_class(data):
    """Nearest class mean in mean colour stays near chance (1/5) on other images."""
    test = Shapes(count=1200, split="test")
    colour, test_colour = (part.images.float().mean((2, 3)) for part in (data, test))
    means = torch.stack([colour[data.coarse_labels == k].mean(0) for k in range(5)])
    accuracy = (torch.cdist(test_colour, means).argmin(1) == test.coarse_labels).float().mean()
    assert accuracy < 0.3


def test_the_object_stands_out(data):
    """The centre and the corners differ clearly in colour, in nearly every image."""
    images = data.images.float() / 255
    centre, corner = images[:, :, 14:18, 14:18].mean((2, 3)), images[:, :, :3, :3].mean((2, 3))
    assert ((centre - corner).abs().amax(1) > 0.15).float().mean() > 0.9


def test_held_out(data):
    test = Shapes(count=10, size=40, seed=3, test_count=30).held_out(limit=20)
    assert len(test) == 20
    assert test.image_size == 40
    assert test.held_out() is None
    assert not torch.equal(test.fetch(torch.arange(10)), Shapes(count=10, size=40, seed=3).images)


def test_limit_is_part_of_the_fingerprint(data):
    part = Shapes(count=1200, limit=50)
    assert len(part) == 50
    assert part.fingerprint != data.fingerprint


def test_fast_enough_for_a_default():
    start = time.process_time()
    Shapes(count=2000)
    assert time.process_time() - start < 4  # 0.3 s on an idle core


def test_impossible_arguments_are_refused():
    for arguments in [{"count": 0}, {"size": 16}, {"split": "validation"}]:
        with pytest.raises(ValueError, match=r"shapes needs|split must be"):
            Shapes(**({"count": 4} | arguments))
