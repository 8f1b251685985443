import pytest
import torch

from antipodes.data import Loader, TensorImages, batches
from antipodes.data.dataset import Samples


class Decoding(Samples):
    """Stands for a dataset that is not in memory."""

    name, image_size = "decoding", 4

    def __len__(self) -> int:
        return 23

    def inputs(self, rows, draw=None):
        return {"image": rows.to(torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4).contiguous()}


def both(batch):
    rows, inputs = batch
    assert list(inputs) == ["image"]
    return rows.tolist(), inputs["image"][:, 0, 0, 0].tolist()


@pytest.fixture
def data():
    return TensorImages(Decoding().fetch(torch.arange(23)))


def test_an_epoch_is_a_permutation_without_the_last_short_batch(data):
    loader = Loader(data, 5, seed=1)
    seen = [both(batch) for batch in loader.epoch(0)]
    assert len(seen) == len(loader) == 4
    ids = [i for batch in seen for i in batch[0]]
    assert len(set(ids)) == 20
    assert all(ids == values for ids, values in seen)


def test_order_depends_on_seed_and_epoch_only(data):
    def order(seed, epoch):
        return torch.cat([ids for ids, _ in Loader(data, 5, seed=seed).epoch(epoch)]).tolist()

    first = order(1, 0)
    torch.manual_seed(7)
    assert order(1, 0) == first
    assert order(1, 1) != first
    assert order(2, 0) != first
    assert order(0, 1) != order(1, 0)


def test_global_generator_is_left_alone(data):
    before = torch.get_rng_state()
    list(Loader(data, 5, seed=1).epoch(0))
    list(Loader(Decoding(), 5, seed=1, workers=1).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_resumes_at_any_batch(data):
    for start in range(5):
        loader = Loader(data, 5, seed=1)
        whole = [both(batch) for batch in loader.epoch(3)]
        assert [both(batch) for batch in loader.epoch(3, start)] == whole[start:]


def test_two_ranks_share_what_one_sees(data):
    one = list(Loader(data, 6, seed=1).epoch(2))
    shards = [list(Loader(data, 6, seed=1, rank=rank, world_size=2).epoch(2)) for rank in range(2)]
    assert len(one) == len(shards[0]) == len(shards[1]) == 3
    for (ids, images), (ids0, images0), (ids1, images1) in zip(one, *shards, strict=True):
        assert torch.equal(ids, torch.cat([ids0, ids1]))
        assert torch.equal(images["image"], torch.cat([images0["image"], images1["image"]]))


def test_workers_change_nothing():
    here = [both(batch) for batch in Loader(Decoding(), 5, seed=1).epoch(0, 1)]
    there = [both(batch) for batch in Loader(Decoding(), 5, seed=1, workers=2).epoch(0, 1)]
    assert here == there
    assert len(here) == 3


def test_batches_pass_over_everything_in_order():
    for workers in [0, 2]:
        seen = [both(batch) for batch in batches(Decoding(), 10, workers)]
        assert [len(ids) for ids, _ in seen] == [10, 10, 3]
        assert [i for ids, _ in seen for i in ids] == list(range(23))
        assert all(ids == values for ids, values in seen)


def test_impossible_settings_are_refused(data):
    for arguments, message in [
        ({"batch_size": 5, "world_size": 2}, "multiple of the 2 rank"),
        ({"batch_size": 0}, "positive multiple"),
        ({"batch_size": 24}, "at most 23"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            Loader(data, seed=0, **arguments)


def test_start_outside_is_refused(data):
    with pytest.raises(ValueError, match="start must be"):
        Loader(data, 5, seed=0).epoch(0, 5)


class Drawing(Samples):
    """Says what it was asked for."""

    name, modalities, in_memory = "drawing", {"text": "text", "vector": "vector"}, True
    fingerprint = "drawing"

    def __len__(self) -> int:
        return 6

    def inputs(self, rows, draw=None):
        return {"text": [f"{row} {draw}" for row in rows.tolist()], "vector": rows[:, None].float()}


def test_a_choice_among_inputs_follows_from_seed_and_epoch():
    for workers in [0, 1]:
        data = Drawing()
        data.in_memory = workers == 0
        for rows, inputs in Loader(data, 3, seed=4, workers=workers).epoch(7):
            assert inputs["text"] == [f"{row} (4, 7)" for row in rows.tolist()]
            assert inputs["vector"][:, 0].tolist() == rows.tolist()
        for rows, inputs in batches(data, 4, workers):
            assert inputs["text"] == [f"{row} None" for row in rows.tolist()]  # the first, whenever it is asked
