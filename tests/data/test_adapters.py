import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import HuggingFaceCaptions, HuggingFaceImages, TorchImages, open_dataset, subset


def grey(value, size=(8, 8)):
    return Image.new("RGB", size, (value, value, value))


def values(data):
    return data.fetch(torch.arange(len(data)))[:, 0, 0, 0].tolist()


class FakeTable:
    """Answers as datasets.Dataset does: rows by number, columns by name."""

    def __init__(self, columns, names=None):
        self.columns = columns
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace() for name in columns}
        if names:
            self.features["label"] = SimpleNamespace(names=names)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: column[key] for name, column in self.columns.items()}


@pytest.fixture
def table():
    pictures = [grey(5), grey(6, (30, 20)), Image.new("L", (9, 9), 7)]
    return FakeTable({"image": pictures, "label": [2, 0, 1], "family": [1, 0, 0]}, names=["a", "b", "c"])


@pytest.mark.parametrize("memory_limit", [10**9, 0])
def test_hugging_face(table, memory_limit):
    data = HuggingFaceImages(table, label="label", coarse_label="family", size=8, memory_limit=memory_limit)
    assert values(data) == [5, 6, 7]
    assert data.labels.tolist() == [2, 0, 1]
    assert data.coarse_labels.tolist() == [1, 0, 0]
    assert data.classes == ("a", "b", "c")
    assert data.coarse_classes is None
    assert data.in_memory == bool(memory_limit)
    assert data[1][2] == 0


def test_hugging_face_without_labels_and_with_missing_columns(table):
    assert HuggingFaceImages(table).labels is None
    with pytest.raises(ValueError, match="no column 'img', only image, label, family"):
        HuggingFaceImages(table, image="img")
    with pytest.raises(ValueError, match="must hold integers"):
        HuggingFaceImages(FakeTable({"image": [grey(1)], "label": ["cat"]}), label="label")


@pytest.mark.parametrize("memory_limit", [10**9, 0])
def test_hugging_face_captions(memory_limit):
    captions = [["a", " ", "b"], "", "c", None]
    table = FakeTable({"image": [grey(5), grey(6), grey(7), grey(8)], "caption": captions})
    data = HuggingFaceCaptions(table, size=8, memory_limit=memory_limit)
    assert data.modalities == {"image": "image", "text": "text"}
    assert values(data) == [5, 7]
    assert data.inputs(torch.tensor([1, 0]))["text"] == ["c", "a"]
    assert data.captions(0) == ["a", "b"]
    assert data.corpus("text") == ["a", "b", "c"]
    assert data.skipped == [("row 1", "no caption"), ("row 3", "no caption")]
    drawn = {data.inputs(torch.tensor([0]), (0, epoch))["text"][0] for epoch in range(20)}
    assert drawn == {"a", "b"}
    other = HuggingFaceCaptions(FakeTable({**table.columns, "caption": ["a", "", "c", None]}), size=8)
    assert other.fingerprint != data.fingerprint
    with pytest.raises(ValueError, match="no column 'text', only image, caption"):
        HuggingFaceCaptions(table, caption="text")
    with pytest.raises(ValueError, match="no row of dataset huggingface has a caption"):
        HuggingFaceCaptions(FakeTable({"image": [grey(5)], "caption": [""]}))


def test_a_part_of_images_with_captions_still_has_them():
    data = HuggingFaceCaptions(FakeTable({"image": [grey(5), grey(6)], "caption": [["a", "b"], ["c"]]}), size=8)
    part = subset(data, torch.tensor([1, 0]))
    assert part.inputs(torch.tensor([0]))["text"] == ["c"]
    assert part.captions(1) == ["a", "b"]
    assert HuggingFaceImages(FakeTable({"image": [grey(5)]})).captions(0) == []


class Splits(dict):
    """Answers as datasets.DatasetDict does."""


def library(monkeypatch, found, **fails):
    """A module that stands for the library datasets."""

    def load(*call):
        calls.append(call)
        if fails:
            raise fails["error"]
        return found

    calls: list[tuple[object, ...]] = []
    module = SimpleNamespace(load_dataset=load, load_from_disk=load)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


class Selectable(FakeTable):
    def select(self, rows):
        return Selectable({name: [column[row] for row in rows] for name, column in self.columns.items()})


def test_captions_of_the_hub_by_name(monkeypatch, tmp_path):
    first = Selectable({"image": [grey(5), grey(6), grey(7)], "sentences": [["a", "b"], "c", "d"]})
    splits = Splits(train=first, validation=Selectable({"image": [grey(9)], "sentences": ["e"]}))
    calls = library(monkeypatch, splits)
    data = open_dataset("hf:someone/pairs", caption="sentences", size=8)
    assert set(calls) == {("someone/pairs", None)}
    assert data.name == "pairs"
    assert values(data) == [5, 6, 7]
    assert data.captions(0) == ["a", "b"]
    held_out = data.held_out()
    assert (values(held_out), held_out.captions(0), held_out.held_out()) == ([9], ["e"], None)
    assert len(open_dataset("hf:someone/pairs", caption="sentences", size=8, limit=2)) == 2
    with pytest.raises(ValueError, match="hf:someone/pairs has no test split, only train, validation"):
        open_dataset("hf:someone/pairs", split="test")
    (tmp_path / "state.json").write_text("{}")
    calls = library(monkeypatch, first)  # as `save_to_disk` writes it: one split, whatever its name
    assert values(open_dataset(f"hf:{tmp_path}", caption="sentences", size=8)) == [5, 6, 7]
    assert set(calls) == {(str(tmp_path),)}
    only = Splits(test=first)
    library(monkeypatch, only)
    assert open_dataset("hf:flickr30k", caption="sentences", size=8).held_out() is None


def test_what_the_hub_cannot_give_is_one_sentence(monkeypatch):
    library(monkeypatch, None, error=RuntimeError("no such dataset\nsecond line"))
    with pytest.raises(ValueError, match=r"datasets could not load 'hf:nothing': no such dataset$"):
        open_dataset("hf:nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"data 'hf:nothing' needs the library datasets.*pip install datasets"):
        open_dataset("hf:nothing")


def test_the_real_library():
    datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    table = datasets.Dataset.from_dict({"image": [grey(3), grey(4)], "label": [1, 0]}, features=features)
    data = HuggingFaceImages(table, label="label")
    assert values(data) == [3, 4]
    assert data.classes == ("a", "b")


@pytest.mark.parametrize("memory_limit", [10**9, 0])
def test_torch_items_of_every_kind(memory_limit):
    items = [
        (grey(51), 4),
        (torch.full((3, 8, 8), 51, dtype=torch.uint8), torch.tensor(5)),
        (torch.full((1, 8, 8), 0.2), 6),
        (np.full((8, 8, 3), 51, dtype=np.uint8), np.int64(7)),
    ]
    data = TorchImages(items, size=8, memory_limit=memory_limit)
    assert values(data) == [51] * 4
    assert data.labels.tolist() == [4, 5, 6, 7]
    assert data.in_memory == bool(memory_limit)


def test_torch_images_without_labels():
    images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8)
    data = TorchImages(torch.utils.data.StackDataset(images), size=8)
    assert values(data) == [0, 1, 2, 3]
    assert data.labels is None
    assert values(TorchImages(list(images), size=8)) == [0, 1, 2, 3]


def test_channels_keep_their_place():
    image = torch.zeros(3, 8, 8)
    image[0, :4], image[2, 4:] = 1.0, 1.0
    fetched = TorchImages([image], size=8).fetch(torch.tensor([0]))[0]
    assert torch.equal(fetched, (image * 255).to(torch.uint8))


def test_fingerprint_out_of_memory_follows_the_content():
    first = TorchImages([grey(1), grey(2)], memory_limit=0).fingerprint
    assert TorchImages([grey(1), grey(2)], memory_limit=0).fingerprint == first
    assert TorchImages([grey(1), grey(3)], memory_limit=0).fingerprint != first


def test_other_items_are_refused():
    for item, message in [
        (torch.full((3, 8, 8), -0.5), "leave out normalisation"),
        (torch.zeros(5, 8, 8), "a Pillow image"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "a Pillow image"),
        ("a path", "a Pillow image"),
    ]:
        with pytest.raises(ValueError, match=f"item 0 of dataset torch.*{message}"):
            TorchImages([(item, 0)], size=8)


def test_streams_and_partial_labels_are_refused():
    with pytest.raises(ValueError, match="map-style"):
        TorchImages(iter([grey(1)]))
    with pytest.raises(ValueError, match="only 1 of the 2 items"):
        TorchImages([(grey(1), 1), grey(2)])
