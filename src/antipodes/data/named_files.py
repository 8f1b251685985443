"""Readers of the named datasets of image files: which images a split has, from the lists in the official archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from antipodes.data.archives import unpacked
from antipodes.data.crops import Box, cut_out
from antipodes.data.dataset import Split, limited
from antipodes.data.folder import natural
from antipodes.data.image_files import ListedImages
from antipodes.data.named_arrays import Place
from antipodes.files import DataError
from antipodes.tables import read_json, read_table

Name = TypeVar("Name", str, Path)
_PER_CLASS = 30  # training images of every class of Caltech-101


def dtd(place: Place, split: Split) -> ListedImages:
    """The first partition, with its validation images for training."""
    base = place.find("dtd", "dtd-r1.0.1.tar.gz")
    lists = ("train1.txt", "val1.txt") if split == "train" else ("test1.txt",)
    lines = [line for name in lists for line in (base / "labels" / name).read_text().split()]
    classes = sorted({entry.name for entry in (base / "images").iterdir() if entry.is_dir()})
    return ListedImages([base / "images" / line for line in lines], _numbers(lines, classes), classes)


def pets(place: Place, split: Split) -> ListedImages:
    """The lists trainval and test."""
    images = place.find("images", "images.tar.gz")
    lists = place.find("annotations", "annotations.tar.gz")
    rows = [line.split() for line in (lists / ("trainval.txt" if split == "train" else "test.txt")).open()]
    everything = [line.split() for name in ("trainval.txt", "test.txt") for line in (lists / name).open()]
    names = {int(row[1]) - 1: row[0].rpartition("_")[0] for row in everything}
    classes = [names[number] for number in range(len(names))]
    return ListedImages([images / f"{row[0]}.jpg" for row in rows], [int(row[1]) - 1 for row in rows], classes)


def food101(place: Place, split: Split) -> ListedImages:
    """The official split."""
    base = place.find("food-101", "food-101.tar.gz")
    content = read_json(base / "meta" / f"{split}.json")
    classes = sorted(content)
    pairs = [(number, image) for number, name in enumerate(classes) for image in content[name]]
    return ListedImages(
        [base / "images" / f"{image}.jpg" for _, image in pairs], [number for number, _ in pairs], classes
    )


def caltech101(place: Place, split: Split, per_class: int | None = _PER_CLASS) -> ListedImages:
    """There is no official split, so the training images are the first of one fixed permutation of every folder: so
    many of each, or four fifths.
    """
    base = _caltech_folder(place)
    classes = sorted(entry.name for entry in base.iterdir() if entry.is_dir())
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        found = sorted((base / name).glob("*.jpg"), key=lambda path: natural(path.name))
        chosen = _share(found, split, per_class)
        files += chosen
        labels += [number] * len(chosen)
    return ListedImages(files, labels, classes)


def caltech101_80(place: Place, split: Split) -> ListedImages:
    """Caltech-101 with four fifths of every folder for training, as in GloFND."""
    return caltech101(replace(place, name="caltech101"), split, per_class=None)


def _caltech_folder(place: Place) -> Path:
    """The folder of classes, from the old archive or from the newer one, which has the old one inside."""
    try:
        return place.find("101_ObjectCategories", "101_ObjectCategories.tar.gz")
    except DataError as error:
        try:
            inner = place.find("caltech-101/101_ObjectCategories.tar.gz", "caltech-101.zip")
        except DataError:
            raise error from None
        return unpacked(inner, descend=False) / "101_ObjectCategories"


def aircraft(place: Place, split: Split) -> ListedImages:
    """The lists trainval and test of variants."""
    base = place.find("fgvc-aircraft-2013b", "fgvc-aircraft-2013b.tar.gz") / "data"
    classes = [line.strip() for line in (base / "variants.txt").open() if line.strip()]
    part = "trainval" if split == "train" else "test"
    rows = [line.strip().partition(" ") for line in (base / f"images_variant_{part}.txt").open() if line.strip()]
    labels = [classes.index(row[2]) for row in rows]
    return ListedImages([base / "images" / f"{row[0]}.jpg" for row in rows], labels, classes)


def sun397(place: Place, split: Split) -> ListedImages:
    """The first partition."""
    base = place.find("SUN397", "SUN397.tar.gz")
    lists = place.find(f"{'Training' if split == 'train' else 'Testing'}_01.txt", "Partitions.zip")
    classes = [line.strip()[3:] for line in (base / "ClassName.txt").open() if line.strip()]
    number = {name: i for i, name in enumerate(classes)}
    lines = [line.strip().lstrip("/") for line in lists.open() if line.strip()]
    labels = [number[line.partition("/")[2].rpartition("/")[0]] for line in lines]
    return ListedImages([base / line for line in lines], labels, classes)


def places205(place: Place, split: Split) -> ListedImages:
    """The training list and the validation list."""
    base = place.find("data/vision/torralba/deeplearning/images256", "imagesPlaces205_resize.tar.gz")
    part = f"trainvalsplit_places205/{'train' if split == 'train' else 'val'}_places205.csv"
    rows = [line.split() for line in place.find(part, "trainvalsplit_places205.tar.gz").open() if line.strip()]
    names = {int(row[1]): row[0].partition("/")[2].rpartition("/")[0] for row in rows}
    classes = [names.get(number, str(number)) for number in range(max(names) + 1)]
    return ListedImages([base / row[0] for row in rows], [int(row[1]) for row in rows], classes)


def voc2007(place: Place, split: Split) -> ListedImages:
    """Labels are (n, 20); an image in which a class is marked as difficult is not counted for it."""
    part = "trainval" if split == "train" else "test"
    base = place.find("VOCdevkit/VOC2007", f"VOC{part}_06-Nov-2007.tar")
    lists = base / "ImageSets" / "Main"
    classes = sorted(path.name.rpartition("_")[0] for path in lists.glob(f"*_{part}.txt"))
    columns = [dict(line.split() for line in (lists / f"{name}_{part}.txt").open()) for name in classes]
    images = (lists / f"{part}.txt").read_text().split()
    mark = {"1": 1, "0": -1, "-1": 0}
    labels = [[mark[column[image]] for column in columns] for image in images]
    return ListedImages([base / "JPEGImages" / f"{image}.jpg" for image in images], labels, classes)


def flowers102(place: Place, split: Split) -> ListedImages:
    """The official split, with its validation images for training."""
    base = place.find("jpg", "102flowers.tgz")
    labels = _matlab(place.find("imagelabels.mat", "imagelabels.mat"))["labels"]
    sets = _matlab(place.find("setid.mat", "setid.mat"))
    parts = ("trnid", "valid") if split == "train" else ("tstid",)
    images = [int(number) for part in parts for number in np.ravel(sets[part])]
    classes = [str(number) for number in range(1, int(np.max(labels)) + 1)]
    return ListedImages(
        [base / f"image_{number:05d}.jpg" for number in images], [int(labels[n - 1]) - 1 for n in images], classes
    )


def cars(place: Place, split: Split) -> ListedImages:
    """The official split."""
    devkit = place.find("devkit", "car_devkit.tgz")
    base = place.find(f"cars_{split}", f"cars_{split}.tgz")
    test = "cars_test_annos_withlabels.mat"
    annotations = devkit / "cars_train_annos.mat" if split == "train" else place.find(test, test)
    classes = [str(name) for name in _matlab(devkit / "cars_meta.mat")["class_names"]]
    rows = _matlab(annotations)["annotations"]
    return ListedImages([base / str(row["fname"]) for row in rows], [int(row["class"]) - 1 for row in rows], classes)


def cub(place: Place, split: Split) -> ListedImages:
    """The official split."""
    base = place.find("CUB_200_2011", "CUB_200_2011.tgz")
    tables = ("images", "train_test_split", "image_class_labels", "classes")
    images, trained, labels, names = (
        dict(line.split() for line in (base / f"{name}.txt").open() if line.strip()) for name in tables
    )
    classes = [names[str(number + 1)] for number in range(len(names))]
    chosen = [key for key in images if trained[key] == ("1" if split == "train" else "0")]
    files = [base / "images" / images[key] for key in chosen]
    return ListedImages(files, [int(labels[key]) - 1 for key in chosen], classes)


def traffic_signs(place: Place, split: Split) -> ListedImages:
    """The training images by folder, the test images by their table."""
    if split == "train":
        base = place.find("GTSRB/Training", "GTSRB-Training_fixed.zip")
        files = sorted(base.glob("*/*.ppm"))
        classes = sorted({file.parent.name for file in files})
        return ListedImages(files, [classes.index(file.parent.name) for file in files], classes)
    base = place.find("GTSRB/Final_Test/Images", "GTSRB_Final_Test_Images.zip")
    table = read_table(place.find("GT-final_test.csv", "GTSRB_Final_Test_GT.zip"), delimiter=";")
    labels = [int(label) for label in table["ClassId"]]
    classes = [f"{number:05d}" for number in range(max(labels) + 1)]
    return ListedImages([base / name for name in table["Filename"]], labels, classes)


def fungi(place: Place, split: Split) -> ListedImages:
    """Both lists are one, as in Meta-Dataset; four fifths of every species, by one permutation, are for training."""
    base = place.find("images", "fungi_train_val.tgz").parent
    content = [read_json(place.find(f"{part}.json", "train_val_annotations.tgz")) for part in ("train", "val")]
    categories = {entry["id"]: entry["name"] for part in content for entry in part["categories"]}
    numbers = {category: number for number, category in enumerate(sorted(categories))}
    members: dict[int, list[str]] = {number: [] for number in numbers.values()}
    for part in content:
        files = {image["id"]: image["file_name"] for image in part["images"]}
        for entry in part["annotations"]:
            members[numbers[entry["category_id"]]].append(files[entry["image_id"]])
    chosen = [(number, name) for number, names in members.items() for name in _share(sorted(names), split)]
    classes = [categories[category] for category in sorted(categories)]
    return ListedImages([base / name for _, name in chosen], [number for number, _ in chosen], classes)


def mscoco(place: Place, split: Split) -> ListedImages:
    """The objects of COCO's training images by their boxes, as in Meta-Dataset, but for crowds; four fifths of every
    class, by one permutation, are for training.
    """
    lists = place.find("annotations/instances_train2017.json", "annotations_trainval2017.zip")
    base, content = place.find("train2017", "train2017.zip"), read_json(lists)
    files = {image["id"]: base / image["file_name"] for image in content["images"]}
    kinds = {entry["id"]: entry["name"] for entry in sorted(content["categories"], key=lambda entry: entry["id"])}
    members: dict[int, list[str]] = {category: [] for category in kinds}
    boxes: dict[Path, dict[str, Box]] = {}
    for entry in content["annotations"]:
        if not entry.get("iscrowd"):
            members[entry["category_id"]].append(name := f"{entry['id']:012d}.png")
            boxes.setdefault(files[entry["image_id"]], {})[name] = entry["bbox"]
    folder = cut_out(boxes, lists)
    chosen = [(number, name) for number, some in enumerate(members.values()) for name in _share(sorted(some), split)]
    return ListedImages([folder / name for _, name in chosen], [n for n, _ in chosen], list(kinds.values()))


def _numbers(lines: list[str], classes: list[str]) -> list[int]:
    number = {name: i for i, name in enumerate(classes)}
    return [number[line.partition("/")[0]] for line in lines]


def _matlab(path: Path) -> Any:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(f"{path} needs scipy to be read: pip install scipy") from error
    try:
        return loadmat(str(path), squeeze_me=True)
    except Exception as error:  # scipy's reader raises nearly anything on a damaged file
        raise DataError(f"{path} cannot be read as a MATLAB file ({error}): get it again") from error


def _share(names: list[Name], split: Split, count: int | None = None) -> list[Name]:
    """So many of some names for training, by default four fifths, rounded up, and the rest for the test."""
    order = limited(len(names), len(names))
    assert order is not None
    cut = -(-4 * len(names) // 5) if count is None else count
    return [names[place] for place in sorted(order[:cut].tolist() if split == "train" else order[cut:].tolist())]
