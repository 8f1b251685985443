"""The named datasets: one table of names, official archives with their digests, metrics, and readers.

Datasets of small images are kept in memory (`NamedArrays`), all others are image files in their archives
(`NamedFiles`). Of these nothing is downloaded: archives are looked for in ``root`` and in its subfolder of that name,
checked against their official digests, and unpacked once into the user's cache folder. Where they have been unpacked in
``root`` by hand, those folders are used. Every dataset carries the metric and the splits that are its custom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from antipodes.data import named_arrays as arrays
from antipodes.data import named_files as files
from antipodes.data.dataset import Classes, Split, TensorImages, check_split
from antipodes.data.image_files import Decoding, ImageFiles, ListedImages
from antipodes.data.named_arrays import Place
from antipodes.files import DataError

Metric = Literal["top-1", "mean per class", "mAP"]


@dataclass(frozen=True)
class NamedSet:
    """A row of the table.

    Args:
        title: what it is, for people.
        read: reads a split: arrays for `NamedArrays`, a list of images for `NamedFiles`.
        archives: file name of every official archive -> its digest, empty where none is known.
        metric: by which classifiers on it are judged.
    """

    title: str
    read: Callable[[Place, Split], Any]
    archives: Mapping[str, str] = field(default_factory=dict)
    metric: Metric = "top-1"


NAMED: dict[str, NamedSet] = {
    "cifar10": NamedSet(
        "CIFAR-10 (Krizhevsky 2009): 10 classes, 50,000 / 10,000 photos of 32 x 32",
        arrays.cifar,
        {"cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a"},
    ),
    "cifar100": NamedSet(
        "CIFAR-100 (Krizhevsky 2009): 100 classes in 20 coarse ones, 50,000 / 10,000 photos of 32 x 32",
        arrays.cifar,
        {"cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85"},
    ),
    "fashion-mnist": NamedSet(
        "Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 10 classes of clothing, 60,000 / 10,000 grey images of 28 x 28",
        arrays.fashion_mnist,
        {
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "mnist": NamedSet(
        "MNIST (LeCun et al. 1998): the digits 0 to 9, 60,000 / 10,000 grey images of 28 x 28",
        arrays.mnist,
        {
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "stl10": NamedSet(
        "STL-10 (Coates, Ng, Lee 2011): 10 classes, 5,000 / 8,000 photos of 96 x 96, and 100,000 unlabelled ones",
        arrays.stl10,
        {"stl10_binary.tar.gz": "md5:91f7769df0f17e558f3565bffb0c7dfb"},
    ),
    "dtd": NamedSet(
        "Describable Textures (Cimpoi et al. 2014): 47 classes, 3,760 / 1,880 images of the first partition",
        files.dtd,
        {"dtd-r1.0.1.tar.gz": "md5:fff73e5086ae6bdbea199a49dfb8a4c1"},
    ),
    "pets": NamedSet(
        "Oxford-IIIT Pets (Parkhi et al. 2012): 37 breeds, 3,680 / 3,669 images",
        files.pets,
        {
            "images.tar.gz": "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c",
            "annotations.tar.gz": "md5:95a8c909bbe2e81eed6a22bccdf3f68f",
        },
        "mean per class",
    ),
    "flowers102": NamedSet(
        "Oxford 102 Flowers (Nilsback and Zisserman 2008): 2,040 / 6,149 images",
        files.flowers102,
        {
            "102flowers.tgz": "md5:52808999861908f626f3c1f4e79d11fa",
            "imagelabels.mat": "md5:e0620be6f572b9609742df49c70aed4d",
            "setid.mat": "md5:a5357ecc9cb78c4bef273ce3793fc85c",
        },
        "mean per class",
    ),
    "food101": NamedSet(
        "Food-101 (Bossard et al. 2014): 101 dishes, 75,750 / 25,250 images",
        files.food101,
        {"food-101.tar.gz": "md5:85eeb15f3717b99a5da872d97d918f87"},
    ),
    "caltech101": NamedSet(
        "Caltech-101 (Fei-Fei et al. 2004): 102 folders (the background is one), 30 training images of each",
        files.caltech101,
        {
            "101_ObjectCategories.tar.gz": "md5:b224c7392d521a49829488ab0f1120d9",
            "caltech-101.zip": "md5:3138e1922a9193bfa496528edbbc45d0",
        },
        "mean per class",
    ),
    "caltech101-80": NamedSet(
        "Caltech-101 (Fei-Fei et al. 2004): 102 folders, four fifths of each for training",
        files.caltech101_80,
        {
            "101_ObjectCategories.tar.gz": "md5:b224c7392d521a49829488ab0f1120d9",
            "caltech-101.zip": "md5:3138e1922a9193bfa496528edbbc45d0",
        },
        "mean per class",
    ),
    "cars": NamedSet(
        "Stanford Cars (Krause et al. 2013): 196 models, 8,144 / 8,041 images",
        files.cars,
        {
            "car_devkit.tgz": "md5:c3b158d763b6e2245038c8ad08e45376",
            "cars_train.tgz": "md5:065e5b463ae28d29e77c1b4b166cfe61",
            "cars_test.tgz": "md5:4ce7ebf6a94d07f1952d94dd34c4d501",
            "cars_test_annos_withlabels.mat": "md5:b0a2b23655a3edd16d84508592a98d10",
        },
    ),
    "aircraft": NamedSet(
        "FGVC-Aircraft (Maji et al. 2013): 100 variants, 6,667 / 3,333 images",
        files.aircraft,
        {"fgvc-aircraft-2013b.tar.gz": "md5:d4acdd33327262359767eeaa97a4f732"},
        "mean per class",
    ),
    "sun397": NamedSet(
        "SUN397 (Xiao et al. 2010): 397 scenes, 19,850 / 19,850 images of the first partition",
        files.sun397,
        {
            "SUN397.tar.gz": "md5:8ca2778205c41d23104230ba66911c7a",
            "Partitions.zip": "md5:29a205c0a0129d21f36cbecfefe81881",
        },
    ),
    "places205": NamedSet(
        "Places205 (Zhou et al. 2014): 205 scenes, 2,448,873 / 20,500 images; the test split is its validation list",
        files.places205,
    ),
    "voc2007": NamedSet(
        "PASCAL VOC 2007 (Everingham et al. 2010): 20 classes, several an image, 5,011 / 4,952 images",
        files.voc2007,
        {
            "VOCtrainval_06-Nov-2007.tar": "md5:c52e279531787c972589f7e41ab4ae64",
            "VOCtest_06-Nov-2007.tar": "md5:b6e924de25625d8de591ea690078ad9f",
        },
        "mAP",
    ),
    # the rest of Meta-Dataset's collection (Triantafillou et al. 2019)
    "cub": NamedSet(
        "Caltech-UCSD Birds 200-2011 (Wah et al. 2011): 200 species, 5,994 / 5,794 images",
        files.cub,
        {"CUB_200_2011.tgz": "md5:97eceeb196236b17998738112f37df78"},
    ),
    "traffic-signs": NamedSet(
        "German traffic signs (Stallkamp et al. 2011): 43 signs, 26,640 / 12,630 images",
        files.traffic_signs,
        {
            "GTSRB-Training_fixed.zip": "md5:513f3c79a4c5141765e10e952eaa2478",
            "GTSRB_Final_Test_Images.zip": "md5:c7e4e6327067d32654124b0fe9e82185",
            "GTSRB_Final_Test_GT.zip": "md5:fe31e9c9270bbcd7b84b7f21a9d9d9e5",
        },
    ),
    "fungi": NamedSet("FGVCx Fungi 2018: 1,394 species, both lists in one and divided again", files.fungi),
    "mscoco": NamedSet("COCO 2017 (Lin et al. 2014): 80 classes, the objects of its training images", files.mscoco),
}
"""Every named dataset; `registry` lists the same names."""


class NamedArrays(TensorImages):
    """A named dataset of small images, kept in memory: CIFAR-10, CIFAR-100, Fashion-MNIST, MNIST or STL-10.

    CIFAR and Fashion-MNIST are downloaded if they are not on disk, MNIST and STL-10 are not: see ``named_arrays``.

    Args:
        dataset: its name in ``NAMED``.
        split: "train" or "test".
        root: folder to look in and to keep it in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        part: of STL-10's train split, the "labelled" images or the "unlabelled" ones, which have no labels.
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images, such as 224; None is the images' own.
        verify: whether the archives of MNIST and STL-10 must have their official digests.

    Raises:
        ValueError: if it is neither in ``root`` nor reachable, a checksum differs, or it does not hold what it should.
    """

    def __init__(
        self,
        dataset: str,
        split: Split = "train",
        root: str | None = None,
        part: Literal["labelled", "unlabelled"] = "labelled",
        limit: int | None = None,
        classes: Classes = None,
        size: int | None = None,
        verify: bool = True,
    ) -> None:
        check_split(split)
        if part not in ("labelled", "unlabelled"):
            raise ValueError(f'part must be "labelled" or "unlabelled", got {part!r}')
        if part == "unlabelled" and dataset != "stl10":
            raise ValueError(f"part must be labelled for {dataset}: only stl10 has unlabelled images")
        self.split = split
        self._options: dict[str, Any] = {"dataset": dataset, "root": root, "classes": classes, "verify": verify}
        place = Place(dataset, NAMED[dataset].archives, root, verify, unlabelled=part == "unlabelled")
        found = arrays.contents(NAMED[dataset].read(place, split), dataset)
        super().__init__(**found, name=dataset, limit=limit, only=classes, size=size)

    def held_out(self, limit: int | None = None) -> NamedArrays | None:
        """Return the official test split, None when this is it."""
        if self.split == "test":
            return None
        return NamedArrays(split="test", limit=limit, size=self.image_size, **self._options)


class NamedFiles(ImageFiles):
    """A named dataset of image files whose splits and classes its official archive lists.

    Args:
        dataset: its name in ``NAMED``.
        split: "train" or "test".
        root: folder to look in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        limit: keep only this many images, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        verify: whether archives must have their official digests.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.

    Raises:
        ValueError: if the archives are not there, have another digest, or do not hold what they should.
    """

    def __init__(
        self,
        dataset: str,
        split: Split = "train",
        root: str | None = None,
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        classes: Classes = None,
        verify: bool = True,
        cache: bool = True,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        check_split(split)
        self.name, self.split, self.metric = dataset, split, NAMED[dataset].metric
        self._options: dict[str, Any] = {"dataset": dataset, "root": root, "classes": classes, "verify": verify}
        try:
            listed: ListedImages = NAMED[dataset].read(Place(dataset, NAMED[dataset].archives, root, verify), split)
        except (OSError, KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{dataset} is not laid out as its official archive ({error}): get it again") from error
        self._open_listed(listed, limit, classes, Decoding(size, decode, cache, workers, memory_limit))
        self._check_skipped(dataset)

    def held_out(self, limit: int | None = None) -> NamedFiles | None:
        """Return the official test split, None when this is it."""
        if self.split == "test":
            return None
        reopened: NamedFiles = self._reopened("test", limit, **self._options)
        return reopened
