"""Datasets of the Meta-Dataset collection (Triantafillou et al. 2019) that are on no other list here.

Aircraft, DTD and flowers are in ``transfer_sets``, MNIST and Fashion-MNIST in ``fashion_mnist``. The archives are those
that its instructions name, looked for in ``root`` and in a folder of the dataset's name inside it.
"""

from typing import ClassVar

from antipodes.data.dataset import Split, limited
from antipodes.data.listed import Listed
from antipodes.data.transfer_set import TransferSet
from antipodes.tables import read_json, read_table


class CUB(TransferSet):
    """Caltech-UCSD Birds 200-2011 (Wah et al. 2011): 200 species, 5,994 / 5,794 images."""

    name = "cub"
    archives: ClassVar[dict[str, str]] = {"CUB_200_2011.tgz": "md5:97eceeb196236b17998738112f37df78"}

    def _listed(self, split: Split) -> Listed:
        base = self.find("CUB_200_2011", "CUB_200_2011.tgz")
        tables = ("images", "train_test_split", "image_class_labels", "classes")
        images, trained, labels, names = (
            dict(line.split() for line in (base / f"{name}.txt").open() if line.strip()) for name in tables
        )
        classes = [names[str(number + 1)] for number in range(len(names))]
        chosen = [key for key in images if trained[key] == ("1" if split == "train" else "0")]
        files = [base / "images" / images[key] for key in chosen]
        return Listed(files, [int(labels[key]) - 1 for key in chosen], classes)


class TrafficSigns(TransferSet):
    """German traffic signs (Stallkamp et al. 2011): 43 signs, 26,640 / 12,630 images."""

    name = "traffic-signs"
    archives: ClassVar[dict[str, str]] = {
        "GTSRB-Training_fixed.zip": "md5:513f3c79a4c5141765e10e952eaa2478",
        "GTSRB_Final_Test_Images.zip": "md5:c7e4e6327067d32654124b0fe9e82185",
        "GTSRB_Final_Test_GT.zip": "md5:fe31e9c9270bbcd7b84b7f21a9d9d9e5",
    }

    def _listed(self, split: Split) -> Listed:
        if split == "train":
            base = self.find("GTSRB/Training", "GTSRB-Training_fixed.zip")
            files = sorted(base.glob("*/*.ppm"))
            classes = sorted({file.parent.name for file in files})
            return Listed(files, [classes.index(file.parent.name) for file in files], classes)
        base = self.find("GTSRB/Final_Test/Images", "GTSRB_Final_Test_Images.zip")
        table = read_table(self.find("GT-final_test.csv", "GTSRB_Final_Test_GT.zip"), delimiter=";")
        labels = [int(label) for label in table["ClassId"]]
        classes = [f"{number:05d}" for number in range(max(labels) + 1)]
        return Listed([base / name for name in table["Filename"]], labels, classes)


class Fungi(TransferSet):
    """FGVCx Fungi 2018: 1,394 species, the training and validation lists together, divided again.

    As in Meta-Dataset both lists are one; four fifths of every species, by one fixed permutation, are for training.
    """

    name = "fungi"
    archives: ClassVar[dict[str, str]] = {}  # no official digests are known

    def _listed(self, split: Split) -> Listed:
        base = self.find("images", "fungi_train_val.tgz").parent
        content = [read_json(self.find(f"{part}.json", "train_val_annotations.tgz")) for part in ("train", "val")]
        categories = {entry["id"]: entry["name"] for part in content for entry in part["categories"]}
        numbers = {category: number for number, category in enumerate(sorted(categories))}
        members: dict[int, list[str]] = {number: [] for number in numbers.values()}
        for part in content:
            files = {image["id"]: image["file_name"] for image in part["images"]}
            for entry in part["annotations"]:
                members[numbers[entry["category_id"]]].append(files[entry["image_id"]])
        chosen = [(number, name) for number, names in members.items() for name in _share(sorted(names), split)]
        classes = [categories[category] for category in sorted(categories)]
        return Listed([base / name for _, name in chosen], [number for number, _ in chosen], classes)


def _share(names: list[str], split: Split) -> list[str]:
    """Four fifths of some names for training, rounded up, and the rest for the test."""
    order = limited(len(names), len(names))
    assert order is not None
    cut = -(-4 * len(names) // 5)
    return [names[place] for place in sorted(order[:cut].tolist() if split == "train" else order[cut:].tolist())]
