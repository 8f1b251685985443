import json

import pytest
import torch

from antipodes.data import Texts, open_dataset

ALL = torch.arange(3)


def test_a_line_is_a_text(tmp_path):
    (tmp_path / "lines.txt").write_text("one\n\n two \nthree\n")
    data = open_dataset(str(tmp_path / "lines.txt"))
    assert isinstance(data, Texts)
    assert data.modalities == {"text": "text"}
    assert data.inputs(ALL) == {"text": ["one", "two", "three"]}
    assert data.inputs(torch.tensor([2, 0]), (0, 1)) == {"text": ["three", "one"]}
    assert [reason for _, reason in data.skipped] == ["empty text", "empty text"]
    assert data.held_out() is None


def test_a_table_of_pairs(tmp_path):
    (tmp_path / "pairs.csv").write_text("Question,Answer,id\nq1,a1,7\nq2,a2,9\nq3,a3,7\n")
    data = open_dataset(str(tmp_path / "pairs.csv"))
    assert data.modalities == {"query": "text", "document": "text"}
    assert data.inputs(ALL) == {"query": ["q1", "q2", "q3"], "document": ["a1", "a2", "a3"]}
    assert data.samples.tolist() == [0, 1, 0]


def test_labels_classes_and_splits(tmp_path):
    for split, count in (("train", 6), ("test", 3)):
        rows = [{"text": f"{split} {i}", "label": ["cat", "dog", "owl"][i % 3]} for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = open_dataset(str(tmp_path))
    assert data.classes == ("cat", "dog", "owl")
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    test = Texts(str(tmp_path), classes=["owl", "cat"]).held_out()
    assert test.inputs(torch.arange(2)) == {"text": ["test 0", "test 2"]}
    assert test.labels.tolist() == [0, 1]
    assert len(Texts(str(tmp_path), limit=4)) == 4
    assert Texts(str(tmp_path), limit=4).labels.shape == (4,)
    assert data.describe() == ["6 rows of text", "3 classes", "no exact duplicates"]


def test_what_cannot_be_used(tmp_path):
    (tmp_path / "a.csv").write_text("words,label\nx,1\n")
    with pytest.raises(ValueError, match=r"no column of texts.*'words', 'label'"):
        Texts(str(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("query,document\nx,\n,y\n")
    with pytest.raises(ValueError, match="no text that can be used"):
        Texts(str(tmp_path / "a.csv"))
    (tmp_path / "a.txt").write_text("short\n" + "x" * 50)
    data = Texts(str(tmp_path / "a.txt"), longest=20)
    assert data.skipped == [("a.txt row 2", "text of more than 20 characters")]
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read as text"):
        Texts(str(tmp_path / "a.txt"))
    (tmp_path / "a.jsonl").write_text("[1, 2]\n")
    with pytest.raises(ValueError, match="one object for every row"):
        Texts(str(tmp_path / "a.jsonl"))
    with pytest.raises(ValueError, match="no train split"):
        Texts(str(tmp_path / "gone"))


def test_fingerprint_follows_the_content(tmp_path):
    seen = set()
    for content in ("a\nb", "a\nc", "a b"):
        (tmp_path / "x.txt").write_text(content)
        seen.add(Texts(str(tmp_path / "x.txt")).fingerprint)
    assert len(seen) == 3


def save_to_disk(folder, columns, features):
    """Write a folder as `Dataset.save_to_disk` does."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_datasets_saved_by_hugging_face_and_columns_of_other_names(tmp_path):
    features = {"label": {"names": ["x", "y"], "_type": "ClassLabel"}}
    save_to_disk(tmp_path / "both" / "train", {"ask": ["a b", "c"], "reply": ["d", "e"], "label": [1, 0]}, features)
    save_to_disk(tmp_path / "both" / "test", {"ask": ["z"], "reply": ["y"], "label": [1]}, features)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = open_dataset(str(tmp_path / "both"), columns=["ask", "reply"])
    assert data.inputs(torch.tensor([1])) == {"query": ["c"], "document": ["e"]}
    assert (data.classes, data.labels.tolist()) == (("x", "y"), [1, 0])
    assert data.held_out().inputs(torch.tensor([0])) == {"query": ["z"], "document": ["y"]}
    alone = open_dataset(str(tmp_path / "both" / "train"), columns=["ask"], label="reply")
    assert (alone.inputs(torch.arange(2))["text"], alone.classes) == (["a b", "c"], ("d", "e"))
    with pytest.raises(ValueError, match="'ask', 'reply', 'label'"):
        open_dataset(str(tmp_path / "both" / "train"), columns=["words"])
    (tmp_path / "both" / "train" / "state.json").write_text('{"_data_files": [{"filename": "../gone.arrow"}]}')
    with pytest.raises(ValueError, match="cannot be read as a saved dataset"):
        open_dataset(str(tmp_path / "both"))
