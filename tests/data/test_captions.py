import csv
import json
import warnings
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import open_dataset, pictures
from antipodes.data.caption_tables import find_tables
from antipodes.data.captions import Captions
from antipodes.data.columns import draw_choices


def picture(path, value=100, size=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def table(path, rows, header=("image", "caption")):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


PAIRS = [("a.png", "a cat"), ("b.png", "a dog"), ("a.png", "some cat"), ("a.png", "the cat"), ("b.png", "one dog")]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pairs"
    picture(root / "images" / "a.png", 10)
    picture(root / "images" / "b.png", 20)
    table(root / "captions.csv", PAIRS)
    return root


def shown(data, rows=None, draw=None):
    rows = torch.arange(len(data)) if rows is None else torch.tensor(rows)
    inputs = data.inputs(rows, draw)
    return list(zip(inputs["image"][:, 0, 0, 0].tolist(), inputs["text"], strict=True))


def test_a_row_is_an_image_and_its_first_caption_without_a_draw(folder):
    data = open_dataset(str(folder))
    assert isinstance(data, Captions)
    assert data.modalities == {"image": "image", "text": "text"}
    assert shown(data) == [(10, "a cat"), (20, "a dog")]
    assert data.captions(0) == ["a cat", "some cat", "the cat"]
    assert data.samples is None
    assert data.sample_ids(torch.tensor([1, 0])).tolist() == [1, 0]
    assert data.held_out() is None
    assert data.image_size == 32  # the smallest default
    assert "2 images with 5 captions (2 to 3 an image)" in data.describe()[0]


def test_a_row_is_a_caption_and_its_image_the_sample(folder):
    data = Captions(str(folder), rows="caption")
    assert len(data) == 5
    assert data.samples.tolist() == [0, 0, 0, 1, 1]
    expected = [(10, "a cat"), (10, "some cat"), (10, "the cat"), (20, "a dog"), (20, "one dog")]
    assert shown(data) == shown(data, draw=(0, 3)) == expected
    assert data.captions(4) == ["a dog", "one dog"]
    assert [path.endswith("b.png") for path in data.paths] == [False, False, False, True, True]


def test_captions_of_one_image_as_strangers(folder):
    """The control: which captions share an image is known only to a policy that compares images, and in evaluation."""
    data, known = Captions(str(folder), rows="separate"), Captions(str(folder), rows="caption")
    assert shown(data) == shown(known)
    assert data.samples is None
    assert data.sample_ids(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert data.image_ids(torch.arange(5)).tolist() == [0, 0, 0, 1, 1]
    assert data.groups().tolist() == [0, 0, 0, 1, 1]
    assert known.groups().tolist() == [-1] * 5
    assert data.fingerprint != known.fingerprint
    assert torch.equal(data.keys(), known.keys())
    assert "those of one image are each other's negatives" in data.describe()[2]
    (folder / "train.txt").write_text("a.png\n")
    (folder / "test.txt").write_text("b.png\n")
    assert Captions(str(folder), rows="separate").held_out().samples.tolist() == [0, 0]
    with pytest.raises(ValueError, match="rows must be one of image, caption, separate, got 'text'"):
        Captions(str(folder), rows="text")


@pytest.mark.parametrize("rows", ["caption", "separate"])
def test_rows_of_one_image_are_known_to_show_it(folder, rows):
    data = Captions(str(folder), rows=rows)
    repeated = data.repeated("image")
    assert repeated is not None
    first, shown = repeated
    every = torch.arange(len(data))
    assert torch.equal(data.fetch(first[shown]), data.fetch(every))
    assert torch.equal(first[shown] == every, torch.isin(every, first))
    assert len(first) < len(data)
    assert data.repeated("text") is None
    assert Captions(str(folder)).repeated("image") is None


def test_captions_are_drawn_from_the_draw_and_the_row_alone(folder):
    data = Captions(str(folder))
    for epoch in range(20):
        assert shown(data, [1, 0], (7, epoch)) == shown(data, [0, 1], (7, epoch))[::-1]
    seen = Counter(text for epoch in range(300) for _, text in shown(data, [0], (0, epoch)))
    assert set(seen) == set(data.captions(0))
    assert min(seen.values()) > 70  # of 100 expected


def test_choices_are_uniform_and_independent():
    rows = np.arange(50_000)
    for count in (1, 3, 5):
        drawn = draw_choices((0, 1), rows, np.full(len(rows), count))
        share = np.bincount(drawn, minlength=count) / len(rows)
        assert np.allclose(share, 1 / count, atol=0.01)
    first, second = (draw_choices((0, epoch), rows, np.full(len(rows), 5)) for epoch in (1, 2))
    assert abs((first == second).mean() - 0.2) < 0.01
    assert abs((first[1:] == first[:-1]).mean() - 0.2) < 0.01


def write_csv(root):
    table(root / "captions.csv", PAIRS, ("File_Name ", "TEXT"))


def write_txt(root):
    table(root / "captions.txt", PAIRS)


def write_jsonl(root):
    lines = [{"path": "a.png", "captions": ["a cat", "some cat", "the cat"]}, {"path": "b.png", "captions": "a dog"}]
    (root / "captions.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")


def write_list(root):
    (root / "captions.json").write_text(json.dumps([{"filename": image, "title": text} for image, text in PAIRS]))


def write_mapping(root):
    (root / "captions.json").write_text(json.dumps({"a.png": ["a cat", "some cat", "the cat"], "b.png": "a dog"}))


def write_coco(root):
    content = {
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 3, "file_name": "b.png"}],
        "annotations": [{"image_id": 7 if image == "a.png" else 3, "caption": text} for image, text in PAIRS],
    }
    (root / "captions.json").write_text(json.dumps(content))


def write_tokens(root):
    (root / "Flickr8k.token.txt").write_text("".join(f"{image}#{k}\t{text}\n" for k, (image, text) in enumerate(PAIRS)))


def write_karpathy(root):
    images = [
        {"filename": name, "sentences": [{"raw": text} for image, text in PAIRS if image == name], "split": "train"}
        for name in ("a.png", "b.png")
    ]
    (root / "dataset_own.json").write_text(json.dumps({"images": images}))


def write_parquet(root):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"image": [image for image, _ in PAIRS], "caption": [text for _, text in PAIRS]}
    parquet.write_table(pyarrow.table(columns), root / "captions.parquet")


@pytest.mark.parametrize(
    "write",
    [
        write_csv,
        write_txt,
        write_jsonl,
        write_list,
        write_mapping,
        write_coco,
        write_tokens,
        write_karpathy,
        write_parquet,
    ],
)
def test_layouts(folder, write):
    (folder / "captions.csv").unlink()
    write(folder)
    data = open_dataset(str(folder))
    assert shown(data) == [(10, "a cat"), (20, "a dog")]
    assert data.captions(0) == ["a cat", "some cat", "the cat"]


def test_the_table_itself_may_be_given(folder):
    assert shown(open_dataset(str(folder / "captions.csv"))) == [(10, "a cat"), (20, "a dog")]


def test_a_wrong_header_lists_the_columns(folder):
    table(folder / "captions.csv", PAIRS, ("photo", "caption"))
    with pytest.raises(ValueError, match=r"captions\.csv has no column of images .*its columns are 'photo', 'caption'"):
        Captions(str(folder))
    table(folder / "captions.csv", PAIRS, ("image", "words"))
    with pytest.raises(ValueError, match=r"no column of captions .*'image', 'words'"):
        Captions(str(folder))
    (folder / "captions.csv").write_text("")
    with pytest.raises(ValueError, match="holds no captions"):
        Captions(str(folder))
    (folder / "captions.csv").write_bytes(b"image,caption\na.png,caf\xe9\n")
    with pytest.raises(ValueError, match="cannot be read as a table"):
        Captions(str(folder))
    (folder / "captions.csv").unlink()
    (folder / "captions.json").write_text('{"images": [{"no": 1}], "annotations": []}')
    with pytest.raises(ValueError, match="neither COCO's captions nor Karpathy's"):
        Captions(str(folder))


def test_what_cannot_be_used_is_counted_and_listed(folder, tmp_path):
    (folder / "images" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    rows = [*PAIRS, ("gone.png", "no image"), ("cut.jpg", "damaged"), ("a.png", "  "), ("b.png", "x" * 10_000)]
    picture(folder / "images" / "extra.png")
    picture(folder / "images" / "silent.png")
    table(folder / "captions.csv", [*rows, ("silent.png", "")])
    data = Captions(str(folder))
    assert shown(data) == [(10, "a cat"), (20, "a dog")]
    assert data.captions(1) == ["a dog", "one dog"]
    reasons = dict(data.skipped)
    assert reasons["gone.png"] == "missing image"
    assert reasons["images/cut.jpg"] == "not an image that can be read"
    assert ("images/a.png", "empty caption") in data.skipped
    assert ("images/b.png", "caption of more than 2,000 characters") in data.skipped
    assert len(data.skipped) == 5
    assert data.describe()[-1] == "passed over 1 images without a caption"
    data.write_skipped(tmp_path / "skipped.csv")
    with (tmp_path / "skipped.csv").open(newline="") as file:
        assert [tuple(row) for row in csv.reader(file)] == [("path", "reason"), *data.skipped]
    with pytest.raises(ValueError, match=r"5 image.* cannot be used"):
        Captions(str(folder), strict=True)


def test_one_file_is_one_image_however_it_is_spelled(folder):
    names = ["a.png", "images/a.png", "./images/a.png", "images//a.png", ".\\images\\a.png", "pairs/images/a.png"]
    names += [str(folder / "images" / "a.png"), "/elsewhere/pairs/images/a.png"]
    table(folder / "captions.csv", [*((name, f"cat {k}") for k, name in enumerate(names)), ("b.png", "a dog")])
    data = Captions(str(folder))
    assert data.files == ("images/a.png", "images/b.png")
    assert data.captions(0) == [f"cat {k}" for k in range(len(names))]
    assert not data.skipped
    assert Captions(str(folder), rows="caption").samples.tolist() == [0] * len(names) + [1]


def test_a_name_with_a_folder_is_not_that_of_another_folder(folder):
    picture(folder / "images" / "deep" / "a.png", 30)
    rows = [("other/a.png", "not there"), ("deep/a.png", "the deep one"), ("a.png", "the first"), ("s/b.png", "none")]
    table(folder / "captions.csv", rows)
    data = Captions(str(folder))
    assert shown(data) == [(30, "the deep one"), (10, "the first")]
    assert data.skipped == [("other/a.png", "missing image"), ("s/b.png", "missing image")]
    picture(folder / "others" / "deep" / "a.png", 40)
    assert ("deep/a.png", "missing image") in Captions(str(folder)).skipped  # which of the two?


def test_karpathys_folders_may_be_there_or_not(folder):
    (folder / "captions.csv").unlink()
    picture(folder / "val2014" / "b.png", 50)
    images = [
        {"filepath": path, "filename": name, "sentences": [{"raw": text}], "split": "train"}
        for path, name, text in (("train2014", "a.png", "a cat"), ("val2014", "b.png", "a dog"))
    ]
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images}))
    assert shown(Captions(str(folder))) == [(10, "a cat"), (50, "a dog")]


def test_a_table_in_the_folder_of_a_split_names_files_below_it(tmp_path):
    for split, value in (("train", 10), ("test", 20)):
        picture(tmp_path / split / "images" / "a.png", value)
        table(tmp_path / split / "captions.csv", [("a.png", f"of {split}")])
    data = Captions(str(tmp_path))
    assert shown(data) == [(10, "of train")]
    assert shown(data.held_out()) == [(20, "of test")]


def test_splits_are_known_or_refused(folder):
    rows = [("a.png", "a cat", " train"), ("b.png", "a dog", "Test ")]
    table(folder / "captions.csv", rows, ("image", "caption", "split"))
    data = Captions(str(folder))
    assert shown(data) == [(10, "a cat")]
    assert shown(data.held_out()) == [(20, "a dog")]
    table(folder / "captions.csv", [*rows, ("b.png", "x", "tset"), ("b.png", "x", "")], ("image", "caption", "split"))
    with pytest.raises(ValueError, match=r"captions\.csv has splits that are not known \('', 'tset'\): write train"):
        Captions(str(folder))
    table(folder / "captions.csv", [("a.png", "a cat", "")], ("image", "caption", "split"))
    assert shown(Captions(str(folder))) == [(10, "a cat")]  # a column that says nothing


@pytest.mark.parametrize("name", ["captions.jsonl", "dataset_own.json"])
def test_sentences_without_their_text_are_one_sentence(folder, name):
    (folder / "captions.csv").unlink()
    image = {"filename": "a.png", "sentences": [{"tokens": ["a", "cat"]}]}
    (folder / name).write_text(json.dumps(image if name.endswith("l") else {"images": [image]}))
    with pytest.raises(ValueError, match=r"neither COCO's captions nor Karpathy's splits \(KeyError: 'raw'\)"):
        Captions(str(folder))


def test_images_in_no_list_of_a_split_are_not_called_uncaptioned(folder):
    picture(folder / "images" / "bare.png")
    (folder / "train.txt").write_text("./a.png\n")
    lines = Captions(str(folder)).describe()
    assert "passed over 1 images with captions that are in no list of a split" in lines
    assert lines[-1] == "passed over 1 images without a caption"


def test_a_comma_without_quotes_does_not_cut_a_caption(folder):
    (folder / "captions.csv").write_text("image,caption\na.png,a cat, sleeping, alone\nb.png,a dog\n")
    data = Captions(str(folder))
    assert shown(data) == [(10, "a cat, sleeping, alone"), (20, "a dog")]
    assert not data.skipped
    text = "image,caption,split\na.png,a cat, sleeping,train\nb.png,a dog,train\n"
    (folder / "captions.csv").write_text(text)
    data = Captions(str(folder))
    assert shown(data) == [(20, "a dog")]
    assert data.skipped == [("a.png", "more columns than the header has: put the caption in quotes")]


def test_nothing_usable_is_refused(folder):
    table(folder / "captions.csv", [("gone.png", "no image")])
    with pytest.raises(ValueError, match=r"no image that can be used.*gone\.png \(missing image\)"):
        Captions(str(folder))
    with pytest.raises(ValueError, match="no val split, only train"):
        Captions(str(folder), split="val")


@pytest.mark.parametrize("layout", ["files", "column", "folders", "tables"])
def test_splits(tmp_path, layout):
    root, names = tmp_path / "data", {"train": ["a", "b"], "val": ["c"], "test": ["d"]}
    where = {name: f"{split}/{name}.png" for split, members in names.items() for name in members}
    for value, (name, path) in enumerate(where.items()):
        picture(root / (path if layout in ("folders", "tables") else f"images/{name}.png"), value)
    flat = [f"{name}.png" for name in where]
    if layout == "files":
        table(root / "captions.csv", [(name, f"of {name}") for name in flat])
        for split, members in names.items():
            (root / f"{split}.txt").write_text("".join(f"{name}.png\n" for name in members))
    elif layout == "column":
        rows = [(f"{name}.png", f"of {name}.png", path.split("/")[0]) for name, path in where.items()]
        table(root / "captions.csv", rows, ("image", "caption", "split"))
    elif layout == "folders":
        table(root / "captions.csv", [(path, f"of {name}.png") for name, path in where.items()])
    else:
        for split, members in names.items():
            table(root / split / "metadata.csv", [(f"{n}.png", f"of {n}.png") for n in members], ("file_name", "text"))
    data = open_dataset(str(root))
    assert shown(data) == [(0, "of a.png"), (1, "of b.png")]
    assert shown(data.held_out()) == [(3, "of d.png")]
    assert data.held_out().held_out() is None
    assert shown(Captions(str(root), split="val")) == [(2, "of c.png")]
    assert data.held_out().image_size == data.image_size
    assert "split train of test, train, val" in data.describe()


def test_coco_in_its_usual_layout(tmp_path):
    for split, number in (("train", 1), ("val", 2)):
        picture(tmp_path / f"{split}2017" / f"00{number}.jpg", 40 * number)
        content = {
            "images": [{"id": number, "file_name": f"00{number}.jpg"}],
            "annotations": [{"image_id": number, "id": k, "caption": f"{split} {k}"} for k in range(2)],
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"captions_{split}2017.json").write_text(json.dumps(content))
    data = open_dataset("coco-captions", path=str(tmp_path))
    assert data.captions(0) == ["train 0", "train 1"]
    assert data.held_out().captions(0) == ["val 0", "val 1"]


def test_limits_are_nested_and_count_images(tmp_path):
    for value in range(12):
        picture(tmp_path / f"{value}.png", value)
    table(tmp_path / "captions.csv", [(f"{value}.png", f"{value} {k}") for value in range(12) for k in range(2)])
    seven, three = Captions(str(tmp_path), limit=7), Captions(str(tmp_path), limit=3)
    assert shown(seven)[:3] == shown(three)
    assert len(Captions(str(tmp_path), limit=3, rows="caption")) == 6


def test_fingerprint_follows_captions_images_and_rows(folder):
    seen = {Captions(str(folder)).fingerprint, Captions(str(folder), rows="caption").fingerprint}
    assert Captions(str(folder), workers=0, memory_limit=0).fingerprint in seen
    table(folder / "captions.csv", [*PAIRS[:-1], ("b.png", "two dogs")])
    seen.add(Captions(str(folder)).fingerprint)
    picture(folder / "images" / "b.png", 21)
    seen.add(Captions(str(folder)).fingerprint)
    assert len(seen) == 4


def test_archives_are_unpacked_once(folder, tmp_path, cache):
    archive = tmp_path / "pairs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    data = open_dataset(str(archive))
    assert shown(data) == [(10, "a cat"), (20, "a dog")]
    (unpacked,) = (cache / "unpacked").iterdir()
    before = unpacked.stat().st_mtime_ns
    assert shown(open_dataset(str(archive))) == shown(data)
    assert [path.stat().st_mtime_ns for path in (cache / "unpacked").iterdir()] == [before]


def test_splits_of_one_folder_do_not_push_each_other_out_of_the_cache(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(pictures, "WORTH_KEEPING", 1)
    for value in range(4):
        picture(tmp_path / "data" / "images" / f"{value}.png", value)
    rows = [(f"{value}.png", f"of {value}", "test" if value == 3 else "train") for value in range(4)]
    table(tmp_path / "data" / "captions.csv", rows, ("image", "caption", "split"))
    data = Captions(str(tmp_path / "data"), workers=0)
    assert shown(data.held_out()) == [(3, "of 3")]
    monkeypatch.setattr(pictures, "decode_sources", lambda *_, **__: pytest.fail("decoded again"))
    again = Captions(str(tmp_path / "data"), workers=0)
    assert shown(again) == shown(data)
    assert shown(again.held_out()) == [(3, "of 3")]


def test_flickr8k(shared_data, cache):
    data = open_dataset("flickr8k", path=str(shared_data / "flickr8k_128.zip"), limit=300, size=32)
    assert len(data) == 300
    assert all(len(data.captions(row)) == 5 for row in range(300))
    assert not data.skipped
    test = data.held_out(50)
    assert len(test) == 50
    assert not set(test.files) & set(data.files)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = open_dataset("flickr8k", path=str(shared_data / "flickr8k_128.zip"), limit=300, size=32)
    assert again.fingerprint == data.fingerprint
    rows = torch.arange(0, 300, 7)
    assert torch.equal(again.fetch(rows), data.fetch(rows))


def test_coco_fixture(shared_data, cache):
    data = open_dataset(str(shared_data / "coco_ccby_fixture.zip"), size=32)
    assert len(data) == 51
    assert {len(data.captions(row)) for row in range(51)} == {5}
    assert data.fetch(torch.arange(51)).float().std() > 20


def test_a_folder_without_a_table_has_none(tmp_path):
    picture(tmp_path / "a.png")
    assert find_tables(tmp_path) == []
    with pytest.raises(ValueError, match="has no table of captions"):
        Captions(str(tmp_path))
    with pytest.raises(ValueError, match="does not exist"):
        Captions(str(tmp_path / "nothing"))
