import pytest
import torch
from PIL import Image

from antipodes.data import LabelTable, open_dataset, subset


@pytest.fixture
def folder(tmp_path):
    for value in range(5):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (value, value, value)).save(tmp_path / "images" / f"{value}.png")
    return tmp_path


def shown(data):
    return data.fetch(torch.arange(len(data)))[:, 0, 0, 0].tolist()


def test_one_label_a_row(folder):
    rows = "2.png,owl,train\n0.png,cat,train\n4.png,cat,test\nimages/1.png,dog,train\n9.png,dog,train\n3.png,,train\n"
    (folder / "labels.csv").write_text("File,Label,split\n" + rows)
    for path in (folder, folder / "labels.csv"):
        data = open_dataset(str(path))
        assert isinstance(data, LabelTable)
        assert data.classes == ("cat", "dog", "owl")
        assert (shown(data), data.labels.tolist()) == ([2, 0, 1], [2, 0, 1])
        assert data.skipped == [("9.png", "missing image"), ("3.png", "no label")]
        assert (shown(data.held_out()), data.held_out().labels.tolist()) == ([4], [0])
        assert data.metric == "top-1"
    with pytest.raises(
        ValueError, match=r"2 image\(s\) or row\(s\) of .* cannot be used, the first is 9\.png \(missing image\)"
    ):
        LabelTable(str(folder), strict=True)
    assert shown(LabelTable(str(folder), classes=["dog", "cat"])) == [0, 1]
    assert len(LabelTable(str(folder), limit=2)) == 2


def test_several_labels_a_row(folder):
    (folder / "labels.csv").write_text("image,tags\n0.png,cat;dog\n1.png,owl\n2.png,dog; owl\n")
    data = open_dataset(str(folder))
    assert data.labels.tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 1]]
    assert data.metric == "mAP"
    assert data[0][2] == -1
    assert "3 classes, several a row" in data.describe()
    assert subset(data, torch.tensor([2])).labels.tolist() == [[0, 1, 1]]
    assert subset(data, torch.tensor([2])).metric == "mAP"
    fingerprint = data.fingerprint
    (folder / "labels.csv").write_text("image,tags\n0.png,cat;dog\n1.png,dog;owl\n2.png,dog; owl\n")
    assert LabelTable(str(folder)).fingerprint != fingerprint
    with pytest.raises(ValueError, match="several labels each"):
        LabelTable(str(folder), classes=2)


def test_what_cannot_be_used(folder):
    with pytest.raises(ValueError, match="has no table of labels"):
        LabelTable(str(folder))
    (folder / "labels.csv").write_text("image,what\n0.png,cat\n")
    with pytest.raises(ValueError, match=r"no column of labels .*'image', 'what'"):
        LabelTable(str(folder))
    (folder / "labels.csv").write_text("image,label\n9.png,cat\n")
    with pytest.raises(ValueError, match="names no image with a label in its train split"):
        LabelTable(str(folder))
