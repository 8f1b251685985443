import pytest
import torch

from antipodes.data import Shapes, TensorImages, open_dataset, require_trainable, subset
from antipodes.data.dataset import limited


def pictures(count: int, size: int = 4) -> torch.Tensor:
    """Images of different values: image i is filled with the value i."""
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, size, size).contiguous()


def test_items_are_id_image_label():
    data = TensorImages(pictures(5), labels=torch.tensor([3, 1, 4, 1, 5]))
    identity, image, label = data[2]
    assert (identity, label) == (2, 4)
    assert image.shape == (3, 4, 4)
    assert image.unique().tolist() == [2]
    assert [item[0] for item in data] == [0, 1, 2, 3, 4]
    assert TensorImages(pictures(2))[0][2] == -1


def test_fetch_follows_the_order_of_ids():
    fetched = TensorImages(pictures(5)).fetch(torch.tensor([4, 0, 4]))
    assert fetched[:, 0, 0, 0].tolist() == [4, 0, 4]


def test_fetch_refuses_other_ids():
    for ids in [torch.tensor([0, 5]), torch.tensor([-1]), torch.tensor([0.0]), torch.tensor(1)]:
        with pytest.raises(ValueError, match="ids must"):
            TensorImages(pictures(5)).fetch(ids)


def test_item_outside_is_an_index_error():
    with pytest.raises(IndexError, match=r"outside 0\.\.4"):
        TensorImages(pictures(5))[5]


def test_images_of_another_kind_are_refused():
    for images in [torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 5, dtype=torch.uint8)]:
        with pytest.raises(ValueError, match=r"\(n, 3, H, H\) uint8"):
            TensorImages(images)


def test_labels_of_another_count_are_refused():
    with pytest.raises(ValueError, match="must be 5 integers"):
        TensorImages(pictures(5), labels=torch.zeros(4, dtype=torch.int64))


def test_limits_are_nested_and_fixed():
    whole = TensorImages(pictures(50), labels=torch.arange(50), limit=50)
    part = TensorImages(pictures(50), labels=torch.arange(50), limit=20)
    assert torch.equal(part.images, whole.images[:20])
    assert torch.equal(part.labels, whole.labels[:20])
    assert torch.equal(part.labels, part.images[:, 0, 0, 0].long())
    assert sorted(whole.labels.tolist()) == list(range(50))
    assert part.labels.tolist() != sorted(part.labels.tolist())
    assert limited(5, 100).sort().values.tolist() == [0, 1, 2, 3, 4]
    torch.manual_seed(3)
    assert torch.equal(limited(50, 20), part.labels)


def test_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="limit must be at least 1"):
        limited(5, 0)


def test_fingerprint_follows_the_content():
    images = pictures(5)
    first = TensorImages(images, labels=torch.arange(5)).fingerprint
    assert TensorImages(images.clone(), labels=torch.arange(5)).fingerprint == first
    changed = images.clone()
    changed[3, 1, 2, 2] += 1
    others = [
        TensorImages(changed, labels=torch.arange(5)),
        TensorImages(images),
        TensorImages(images[:4], labels=torch.arange(4)),
        TensorImages(images, labels=torch.arange(5).flip(0)),
    ]
    assert len({first, *(other.fingerprint for other in others)}) == 5


def test_subset_is_numbered_anew():
    data = TensorImages(pictures(10), labels=torch.arange(10) * 10, classes=[str(i) for i in range(100)])
    part = subset(data, torch.tensor([7, 2]))
    assert part[0][0] == 0
    assert part[0][2] == 70
    assert part.fetch(torch.tensor([1, 0]))[:, 0, 0, 0].tolist() == [2, 7]
    assert part.fingerprint not in (data.fingerprint, subset(data, torch.tensor([2, 7])).fingerprint)
    assert part.classes == data.classes
    with pytest.raises(ValueError, match="ids must lie"):
        part.fetch(torch.tensor([2]))
    with pytest.raises(ValueError, match="ids must lie"):
        subset(data, torch.tensor([10]))


def test_require_trainable():
    require_trainable(TensorImages(pictures(2)), 2)
    with pytest.raises(ValueError, match="at least 2"):
        require_trainable(TensorImages(pictures(1)), 1)
    with pytest.raises(ValueError, match="at most 5"):
        require_trainable(TensorImages(pictures(5)), 6)


def test_open_by_name_and_unknown_name(tmp_path):
    assert isinstance(open_dataset("shapes", count=3), Shapes)
    with pytest.raises(ValueError, match=r"cifar10, cifar100, fashion-mnist, .*shapes and does not exist"):
        open_dataset("cifar11")
    (tmp_path / "notes.doc").write_text("no data")
    with pytest.raises(ValueError, match=r"holds no data that can be read"):
        open_dataset(str(tmp_path / "notes.doc"))
