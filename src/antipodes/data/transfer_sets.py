"""The datasets on which papers measure transfer, from their official archives where these are on disk.

Nothing is downloaded: the archives named below are looked for in ``root`` and in a folder of the dataset's name inside
it, checked against their official digests, and unpacked once into the user's cache folder. Where they have been
unpacked in ``root`` by hand, those folders are used. Every dataset carries the metric and the splits that are its
custom.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from antipodes.data.archives import unpacked
from antipodes.data.dataset import DataError, Split, limited
from antipodes.data.listed import Listed
from antipodes.data.listing import natural
from antipodes.data.transfer_set import TransferSet
from antipodes.tables import read_json


class DTD(TransferSet):
    """Describable Textures (Cimpoi et al. 2014): 47 classes, 3,760 / 1,880 images of the first partition."""

    name = "dtd"
    archives: ClassVar[dict[str, str]] = {"dtd-r1.0.1.tar.gz": "md5:fff73e5086ae6bdbea199a49dfb8a4c1"}

    def _listed(self, split: Split) -> Listed:
        base = self.find("dtd", "dtd-r1.0.1.tar.gz")
        lists = ("train1.txt", "val1.txt") if split == "train" else ("test1.txt",)
        lines = [line for name in lists for line in (base / "labels" / name).read_text().split()]
        classes = sorted({entry.name for entry in (base / "images").iterdir() if entry.is_dir()})
        return Listed([base / "images" / line for line in lines], _numbers(lines, classes), classes)


class Pets(TransferSet):
    """Oxford-IIIT Pets (Parkhi et al. 2012): 37 breeds, 3,680 / 3,669 images; judged by the mean over classes."""

    name = "pets"
    metric = "mean per class"
    archives: ClassVar[dict[str, str]] = {
        "images.tar.gz": "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c",
        "annotations.tar.gz": "md5:95a8c909bbe2e81eed6a22bccdf3f68f",
    }

    def _listed(self, split: Split) -> Listed:
        images = self.find("images", "images.tar.gz")
        lists = self.find("annotations", "annotations.tar.gz")
        rows = [line.split() for line in (lists / ("trainval.txt" if split == "train" else "test.txt")).open()]
        everything = [line.split() for name in ("trainval.txt", "test.txt") for line in (lists / name).open()]
        names = {int(row[1]) - 1: row[0].rpartition("_")[0] for row in everything}
        classes = [names[number] for number in range(len(names))]
        return Listed([images / f"{row[0]}.jpg" for row in rows], [int(row[1]) - 1 for row in rows], classes)


class Food101(TransferSet):
    """Food-101 (Bossard et al. 2014): 101 dishes, 75,750 / 25,250 images."""

    name = "food101"
    archives: ClassVar[dict[str, str]] = {"food-101.tar.gz": "md5:85eeb15f3717b99a5da872d97d918f87"}

    def _listed(self, split: Split) -> Listed:
        base = self.find("food-101", "food-101.tar.gz")
        content = read_json(base / "meta" / f"{split}.json")
        classes = sorted(content)
        pairs = [(number, image) for number, name in enumerate(classes) for image in content[name]]
        return Listed(
            [base / "images" / f"{image}.jpg" for _, image in pairs], [number for number, _ in pairs], classes
        )


class Caltech101(TransferSet):
    """Caltech-101 (Fei-Fei et al. 2004): 102 folders (the background is one), 30 training images of each.

    There is no official split, so the training images are the first of one fixed permutation of every folder. Judged
    by the mean over classes.
    """

    name = "caltech101"
    metric = "mean per class"
    archives: ClassVar[dict[str, str]] = {
        "101_ObjectCategories.tar.gz": "md5:b224c7392d521a49829488ab0f1120d9",
        "caltech-101.zip": "md5:3138e1922a9193bfa496528edbbc45d0",
    }
    per_class: ClassVar[int] = 30

    def _listed(self, split: Split) -> Listed:
        base = self._folder()
        classes = sorted(entry.name for entry in base.iterdir() if entry.is_dir())
        files: list[Path] = []
        labels: list[int] = []
        for number, name in enumerate(classes):
            found = sorted((base / name).glob("*.jpg"), key=lambda path: natural(path.name))
            order = limited(len(found), len(found))
            assert order is not None
            chosen = order[: self.per_class] if split == "train" else order[self.per_class :]
            files += [found[i] for i in sorted(chosen.tolist())]
            labels += [number] * len(chosen)
        return Listed(files, labels, classes)

    def _folder(self) -> Path:
        """The folder of classes, from the old archive or from the newer one, which has the old one inside."""
        try:
            return self.find("101_ObjectCategories", "101_ObjectCategories.tar.gz")
        except DataError as error:
            try:
                inner = self.find("caltech-101/101_ObjectCategories.tar.gz", "caltech-101.zip")
            except DataError:
                raise error from None
            return unpacked(inner, descend=False) / "101_ObjectCategories"


class Aircraft(TransferSet):
    """FGVC-Aircraft (Maji et al. 2013): 100 variants, 6,667 / 3,333 images; judged by the mean over classes."""

    name = "aircraft"
    metric = "mean per class"
    archives: ClassVar[dict[str, str]] = {"fgvc-aircraft-2013b.tar.gz": "md5:d4acdd33327262359767eeaa97a4f732"}

    def _listed(self, split: Split) -> Listed:
        base = self.find("fgvc-aircraft-2013b", "fgvc-aircraft-2013b.tar.gz") / "data"
        classes = [line.strip() for line in (base / "variants.txt").open() if line.strip()]
        part = "trainval" if split == "train" else "test"
        rows = [line.strip().partition(" ") for line in (base / f"images_variant_{part}.txt").open() if line.strip()]
        labels = [classes.index(row[2]) for row in rows]
        return Listed([base / "images" / f"{row[0]}.jpg" for row in rows], labels, classes)


class SUN397(TransferSet):
    """SUN397 (Xiao et al. 2010): 397 scenes, 19,850 / 19,850 images of the first partition."""

    name = "sun397"
    archives: ClassVar[dict[str, str]] = {
        "SUN397.tar.gz": "md5:8ca2778205c41d23104230ba66911c7a",
        "Partitions.zip": "md5:29a205c0a0129d21f36cbecfefe81881",
    }

    def _listed(self, split: Split) -> Listed:
        base = self.find("SUN397", "SUN397.tar.gz")
        lists = self.find(f"{'Training' if split == 'train' else 'Testing'}_01.txt", "Partitions.zip")
        classes = [line.strip()[3:] for line in (base / "ClassName.txt").open() if line.strip()]
        number = {name: i for i, name in enumerate(classes)}
        lines = [line.strip().lstrip("/") for line in lists.open() if line.strip()]
        labels = [number[line.partition("/")[2].rpartition("/")[0]] for line in lines]
        return Listed([base / line for line in lines], labels, classes)


class Places205(TransferSet):
    """Places205 (Zhou et al. 2014): 205 scenes, 2,448,873 / 20,500 images; the test split is its validation list."""

    name = "places205"
    archives: ClassVar[dict[str, str]] = {}  # no official digests are known
    images: ClassVar[str] = "data/vision/torralba/deeplearning/images256"

    def _listed(self, split: Split) -> Listed:
        base = self.find(self.images, "imagesPlaces205_resize.tar.gz")
        part = f"trainvalsplit_places205/{'train' if split == 'train' else 'val'}_places205.csv"
        rows = [line.split() for line in self.find(part, "trainvalsplit_places205.tar.gz").open() if line.strip()]
        names = {int(row[1]): row[0].partition("/")[2].rpartition("/")[0] for row in rows}
        classes = [names.get(number, str(number)) for number in range(max(names) + 1)]
        return Listed([base / row[0] for row in rows], [int(row[1]) for row in rows], classes)


class VOC2007(TransferSet):
    """PASCAL VOC 2007 (Everingham et al. 2010): 20 classes, several an image, 5,011 / 4,952 images; judged by mAP.

    Labels are (n, 20); images in which a class is marked as difficult are not counted for it.
    """

    name = "voc2007"
    metric = "mAP"
    archives: ClassVar[dict[str, str]] = {
        "VOCtrainval_06-Nov-2007.tar": "md5:c52e279531787c972589f7e41ab4ae64",
        "VOCtest_06-Nov-2007.tar": "md5:b6e924de25625d8de591ea690078ad9f",
    }

    def _listed(self, split: Split) -> Listed:
        part = "trainval" if split == "train" else "test"
        base = self.find("VOCdevkit/VOC2007", f"VOC{part}_06-Nov-2007.tar")
        lists = base / "ImageSets" / "Main"
        classes = sorted(path.name.rpartition("_")[0] for path in lists.glob(f"*_{part}.txt"))
        columns = [dict(line.split() for line in (lists / f"{name}_{part}.txt").open()) for name in classes]
        images = (lists / f"{part}.txt").read_text().split()
        mark = {"1": 1, "0": -1, "-1": 0}
        labels = [[mark[column[image]] for column in columns] for image in images]
        return Listed([base / "JPEGImages" / f"{image}.jpg" for image in images], labels, classes)


class Flowers102(TransferSet):
    """Oxford 102 Flowers (Nilsback and Zisserman 2008): 2,040 / 6,149 images; judged by the mean over classes."""

    name = "flowers102"
    metric = "mean per class"
    archives: ClassVar[dict[str, str]] = {
        "102flowers.tgz": "md5:52808999861908f626f3c1f4e79d11fa",
        "imagelabels.mat": "md5:e0620be6f572b9609742df49c70aed4d",
        "setid.mat": "md5:a5357ecc9cb78c4bef273ce3793fc85c",
    }

    def _listed(self, split: Split) -> Listed:
        base = self.find("jpg", "102flowers.tgz")
        labels = _matlab(self.find("imagelabels.mat", "imagelabels.mat"))["labels"]
        sets = _matlab(self.find("setid.mat", "setid.mat"))
        parts = ("trnid", "valid") if split == "train" else ("tstid",)
        images = [int(number) for part in parts for number in np.ravel(sets[part])]
        classes = [str(number) for number in range(1, int(np.max(labels)) + 1)]
        return Listed(
            [base / f"image_{number:05d}.jpg" for number in images], [int(labels[n - 1]) - 1 for n in images], classes
        )


class Cars(TransferSet):
    """Stanford Cars (Krause et al. 2013): 196 models, 8,144 / 8,041 images."""

    name = "cars"
    archives: ClassVar[dict[str, str]] = {
        "car_devkit.tgz": "md5:c3b158d763b6e2245038c8ad08e45376",
        "cars_train.tgz": "md5:065e5b463ae28d29e77c1b4b166cfe61",
        "cars_test.tgz": "md5:4ce7ebf6a94d07f1952d94dd34c4d501",
        "cars_test_annos_withlabels.mat": "md5:b0a2b23655a3edd16d84508592a98d10",
    }

    def _listed(self, split: Split) -> Listed:
        devkit = self.find("devkit", "car_devkit.tgz")
        base = self.find(f"cars_{split}", f"cars_{split}.tgz")
        test = "cars_test_annos_withlabels.mat"
        annotations = devkit / "cars_train_annos.mat" if split == "train" else self.find(test, test)
        classes = [str(name) for name in _matlab(devkit / "cars_meta.mat")["class_names"]]
        rows = _matlab(annotations)["annotations"]
        return Listed([base / str(row["fname"]) for row in rows], [int(row["class"]) - 1 for row in rows], classes)


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
