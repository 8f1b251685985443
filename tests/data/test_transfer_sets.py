import io
import json
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import open_dataset

scipy_io = pytest.importorskip("scipy.io")


def picture(value):
    file = io.BytesIO()
    Image.fromarray(np.full((12, 16, 3), value, np.uint8)).save(file, "PNG")  # Pillow goes by content, not by name
    return file.getvalue()


def packed(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    members = {name: content.encode() if isinstance(content, str) else content for name, content in members.items()}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
    else:
        with tarfile.open(path, "w:" if path.suffix == ".tar" else "w:gz") as file:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def matlab(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, arrays)


def shown(data):
    return data.fetch(torch.arange(len(data)))[:, 0, 0, 0].tolist()


def opened(name, root, **options):
    return open_dataset(name, root=str(root), verify=False, **options)


@pytest.fixture
def root(tmp_path, cache):
    return tmp_path / "archives"


def test_dtd(root):
    names = ["banded/a.jpg", "dotted/b.jpg", "banded/c.jpg", "dotted/d.jpg"]
    members = {f"dtd/images/{name}": picture(value) for value, name in enumerate(names)}
    lists = {"train1": names[0], "val1": names[1], "test1": "\n".join(names[2:]) + "\n"}
    members |= {f"dtd/labels/{name}.txt": content for name, content in lists.items()}
    packed(root / "dtd-r1.0.1.tar.gz", members)
    data = opened("dtd", root)
    assert data.classes == ("banded", "dotted")
    assert (shown(data), data.labels.tolist()) == ([0, 1], [0, 1])
    assert (shown(data.held_out()), data.held_out().labels.tolist()) == ([2, 3], [0, 1])
    assert data.metric == "top-1"
    assert shown(opened("dtd", root, classes=["dotted"])) == [1]
    packed(root / "again" / "dtd-r1.0.1.tar.gz", members)
    with pytest.raises(ValueError, match=r"md5 .* instead of fff73e5086ae6bdbea199a49dfb8a4c1"):
        open_dataset("dtd", root=str(root / "again"))
    with pytest.raises(ValueError, match=r"needs dtd-r1\.0\.1\.tar\.gz in"):
        open_dataset("dtd", root=str(root / "empty"))


def test_pets(root):
    images = {"Abyssinian_1": 1, "beagle_2": 2, "beagle_3": 3}
    packed(root / "pets" / "images.tar.gz", {f"images/{name}.jpg": picture(value) for name, value in images.items()})
    lists = {"trainval": "Abyssinian_1 1 1 1\nbeagle_2 2 2 1\n", "test": "beagle_3 2 2 1\n"}
    packed(root / "pets" / "annotations.tar.gz", {f"annotations/{name}.txt": text for name, text in lists.items()})
    data = opened("pets", root)
    assert data.classes == ("Abyssinian", "beagle")
    assert (shown(data), shown(data.held_out())) == ([1, 2], [3])
    assert data.held_out().labels.tolist() == [1]
    assert data.metric == "mean per class"


def test_food101(root):
    names = {"train": {"pie": ["pie/1"], "apple": ["apple/2"]}, "test": {"pie": ["pie/3"], "apple": []}}
    members = {f"food-101/meta/{split}.json": json.dumps(content) for split, content in names.items()}
    members |= {f"food-101/images/{name}.jpg": picture(i) for i, name in enumerate(["pie/1", "apple/2", "pie/3"])}
    packed(root / "food-101.tar.gz", members)
    data = opened("food101", root)
    assert data.metric == "top-1"
    assert data.classes == ("apple", "pie")
    assert (shown(data), data.labels.tolist()) == ([1, 0], [0, 1])
    assert shown(data.held_out()) == [2]


@pytest.mark.parametrize("newer", [False, True])
def test_caltech101(root, newer):
    members = {
        f"101_ObjectCategories/{name}/image_{number:04d}.jpg": picture(number)
        for name in ("BACKGROUND_Google", "ant")
        for number in range(1, 36)
    }
    packed(root / "101_ObjectCategories.tar.gz", members)
    if newer:
        inner = (root / "101_ObjectCategories.tar.gz").read_bytes()
        (root / "101_ObjectCategories.tar.gz").unlink()
        packed(root / "caltech-101.zip", {"caltech-101/101_ObjectCategories.tar.gz": inner})
    data = opened("caltech101", root)
    assert data.metric == "mean per class"
    assert torch.bincount(data.labels).tolist() == [30, 30]
    assert torch.bincount(data.held_out().labels).tolist() == [5, 5]
    assert not set(data.files) & set(data.held_out().files)
    fifths = opened("caltech101-80", root)
    assert fifths.metric == "mean per class"
    assert torch.bincount(fifths.labels).tolist() == [28, 28]
    assert sorted(shown(fifths) + shown(fifths.held_out())) == sorted([*range(1, 36)] * 2)


def test_aircraft(root):
    members = {f"fgvc-aircraft-2013b/data/images/{n}.jpg": picture(n) for n in range(3)}
    lists = {
        "variants": "707-320\nDC-10\n",
        "images_variant_trainval": "0 DC-10\n2 707-320\n",
        "images_variant_test": "1 DC-10\n",
    }
    members |= {f"fgvc-aircraft-2013b/data/{name}.txt": text for name, text in lists.items()}
    packed(root / "fgvc-aircraft-2013b.tar.gz", members)
    data = opened("aircraft", root)
    assert data.metric == "mean per class"
    assert (shown(data), data.labels.tolist()) == ([0, 2], [1, 0])
    assert shown(data.held_out()) == [1]


def test_sun397(root):
    names = ["a/abbey/sun_1.jpg", "a/apse/indoor/sun_2.jpg", "a/abbey/sun_3.jpg"]
    members = {f"SUN397/{name}": picture(i) for i, name in enumerate(names)}
    packed(root / "SUN397.tar.gz", {**members, "SUN397/ClassName.txt": "/a/abbey\n/a/apse/indoor\n"})
    lists = {"Training_01.txt": "/" + "\r\n/".join(names[:2]), "Testing_01.txt": f"/{names[2]}\n"}
    packed(root / "Partitions.zip", lists)
    data = opened("sun397", root)
    assert data.metric == "top-1"
    assert data.classes == ("abbey", "apse/indoor")
    assert (shown(data), data.labels.tolist()) == ([0, 1], [0, 1])
    assert shown(data.held_out()) == [2]


def test_places205(root):
    names = ["a/abbey/g1.jpg", "b/bow_window/indoor/g2.jpg", "a/abbey/g3.jpg"]
    images = "data/vision/torralba/deeplearning/images256"
    packed(root / "imagesPlaces205_resize.tar.gz", {f"{images}/{name}": picture(i) for i, name in enumerate(names)})
    lists = {"train": f"{names[1]} 1\n{names[0]} 0\n", "val": f"{names[2]} 0\n"}
    lists = {f"trainvalsplit_places205/{split}_places205.csv": text for split, text in lists.items()}
    packed(root / "trainvalsplit_places205.tar.gz", lists)
    data = open_dataset("places205", root=str(root))
    assert data.classes == ("abbey", "bow_window/indoor")
    assert (shown(data), data.labels.tolist()) == ([1, 0], [1, 0])
    assert shown(data.held_out()) == [2]


def test_voc2007(root):
    for part, images in (("trainval", ["000005", "000007"]), ("test", ["000001"])):
        marks = {"car": ["1", "0"], "cat": ["-1", "1"]}
        members = {f"VOCdevkit/VOC2007/JPEGImages/{image}.jpg": picture(int(image)) for image in images}
        lists = {part: "\n".join(images)}
        lists |= {
            f"{name}_{part}": "".join(f"{image} {mark:>2}\n" for image, mark in zip(images, column, strict=False))
            for name, column in marks.items()
        }
        members |= {f"VOCdevkit/VOC2007/ImageSets/Main/{name}.txt": text for name, text in lists.items()}
        packed(root / f"VOC{part}_06-Nov-2007.tar", members)
    data = opened("voc2007", root)
    assert data.classes == ("car", "cat")
    assert data.labels.tolist() == [[1, 0], [-1, 1]]
    assert data.metric == "mAP"
    assert data.held_out().labels.tolist() == [[1, 0]]
    with pytest.raises(ValueError, match="several labels"):
        opened("voc2007", root, classes=1)


def test_flowers102(root):
    packed(root / "102flowers.tgz", {f"jpg/image_{n:05d}.jpg": picture(n) for n in range(1, 5)})
    matlab(root / "imagelabels.mat", labels=np.array([[2, 1, 2, 1]]))
    matlab(root / "setid.mat", trnid=np.array([[1]]), valid=np.array([[3]]), tstid=np.array([[4, 2]]))
    data = opened("flowers102", root)
    assert data.metric == "mean per class"
    assert (shown(data), data.labels.tolist()) == ([1, 3], [1, 1])
    assert (shown(data.held_out()), data.held_out().labels.tolist()) == ([4, 2], [0, 0])
    (root / "setid.mat").write_bytes(b"no matlab")
    with pytest.raises(ValueError, match="cannot be read as a MATLAB file"):
        opened("flowers102", root)


def test_cars(root, tmp_path):
    kind = [("fname", "O"), ("class", "O")]
    matlab(tmp_path / "m" / "cars_meta.mat", class_names=np.array([["Audi", "BMW"]], dtype=object))
    matlab(tmp_path / "m" / "cars_train_annos.mat", annotations=np.array([("1.jpg", 2), ("2.jpg", 1)], dtype=kind))
    matlab(root / "cars_test_annos_withlabels.mat", annotations=np.array([("3.jpg", 2), ("4.jpg", 2)], dtype=kind))
    packed(root / "car_devkit.tgz", {f"devkit/{p.name}": p.read_bytes() for p in (tmp_path / "m").iterdir()})
    packed(root / "cars_train.tgz", {f"cars_train/{n}.jpg": picture(n) for n in (1, 2)})
    packed(root / "cars_test.tgz", {f"cars_test/{n}.jpg": picture(n) for n in (3, 4)})
    data = opened("cars", root)
    assert data.metric == "top-1"
    assert data.classes == ("Audi", "BMW")
    assert (shown(data), data.labels.tolist()) == ([1, 2], [1, 0])
    assert (shown(data.held_out()), data.held_out().labels.tolist()) == ([3, 4], [1, 1])


def test_cub(root):
    images = {1: "001.Albatross/a.jpg", 2: "002.Auklet/b.jpg", 3: "001.Albatross/c.jpg"}
    members = {f"CUB_200_2011/images/{name}": picture(number) for number, name in images.items()}
    lists = {
        "images": "".join(f"{number} {name}\n" for number, name in images.items()),
        "train_test_split": "1 1\n2 1\n3 0\n",
        "image_class_labels": "1 1\n2 2\n3 1\n",
        "classes": "1 001.Albatross\n2 002.Auklet\n",
    }
    packed(root / "CUB_200_2011.tgz", members | {f"CUB_200_2011/{name}.txt": text for name, text in lists.items()})
    data = opened("cub", root)
    assert data.classes == ("001.Albatross", "002.Auklet")
    assert (shown(data), data.labels.tolist()) == ([1, 2], [0, 1])
    assert (shown(data.held_out()), data.held_out().labels.tolist()) == ([3], [0])
    assert data.metric == "top-1"


def test_traffic_signs(root):
    train = {f"GTSRB/Training/{sign}/00000_0000{n}.ppm": picture(n) for sign, n in (("00000", 1), ("00001", 2))}
    packed(root / "traffic-signs" / "GTSRB-Training_fixed.zip", train)
    test = {f"GTSRB/Final_Test/Images/0000{n}.ppm": picture(5 + n) for n in (0, 1)}
    packed(root / "traffic-signs" / "GTSRB_Final_Test_Images.zip", test)
    rows = "Filename;Width;ClassId\n00000.ppm;16;1\n00001.ppm;16;0\n"
    packed(root / "traffic-signs" / "GTSRB_Final_Test_GT.zip", {"GT-final_test.csv": rows})
    data = opened("traffic-signs", root)
    assert (shown(data), data.labels.tolist()) == ([1, 2], [0, 1])
    assert (shown(data.held_out()), data.held_out().labels.tolist()) == ([5, 6], [1, 0])


def test_fungi(root):
    names = [f"images/{kind}/{number}.JPG" for kind in ("amanita", "boletus") for number in range(5)]
    packed(root / "fungi_train_val.tgz", {name: picture(place) for place, name in enumerate(names)})
    kinds = [{"id": 7, "name": "amanita"}, {"id": 3, "name": "boletus"}]
    parts = {"train": names[:6], "val": names[6:]}
    members = {}
    for part, some in parts.items():
        images = [{"id": place, "file_name": name} for place, name in enumerate(some)]
        owners = [{"image_id": place, "category_id": 7 if "amanita" in name else 3} for place, name in enumerate(some)]
        members[f"{part}.json"] = json.dumps({"images": images, "annotations": owners, "categories": kinds})
    packed(root / "train_val_annotations.tgz", members)
    data = opened("fungi", root)
    test = data.held_out()
    assert data.classes == ("boletus", "amanita")  # by their numbers
    assert torch.bincount(data.labels).tolist() == [4, 4]
    assert torch.bincount(test.labels).tolist() == [1, 1]
    assert sorted(shown(data) + shown(test)) == list(range(10))
    assert all((value < 5) == (label == 1) for value, label in zip(shown(data), data.labels.tolist(), strict=True))


def test_mscoco(root):
    """Each object is an image of its own: here every photo is a row of four squares of 8 x 8 in shades of its own."""

    def row(number):
        file = io.BytesIO()
        shades = np.repeat(np.arange(4, dtype=np.uint8) + 4 * number, 8)
        Image.fromarray(np.broadcast_to(shades, (8, 32)).copy()).save(file, "PNG")
        return file.getvalue()

    packed(root / "train2017.zip", {f"train2017/{number}.jpg": row(number) for number in range(5)})
    boxes = [(number, place) for number in range(5) for place in range(4)]
    entries = [
        {
            "id": k,
            "image_id": number,
            "category_id": 9 if place < 2 else 4,
            "bbox": [8.0 * place, 0, 8, 8],
            "iscrowd": 0,
        }
        for k, (number, place) in enumerate(boxes)
    ]
    crowd = {"id": 99, "image_id": 0, "category_id": 9, "bbox": [0, 0, 32, 8], "iscrowd": 1}
    kinds = [{"id": 9, "name": "cat"}, {"id": 4, "name": "dog"}]
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(5)]
    content = {"images": images, "annotations": [*entries, crowd], "categories": kinds}
    packed(root / "annotations_trainval2017.zip", {"annotations/instances_train2017.json": json.dumps(content)})
    data = opened("mscoco", root)
    test = data.held_out()
    assert data.classes == ("dog", "cat")  # by their numbers
    assert torch.bincount(data.labels).tolist() == [8, 8]
    assert sorted(shown(data) + shown(test)) == list(range(20))
    assert all((value % 4 < 2) == (label == 1) for value, label in zip(shown(data), data.labels.tolist(), strict=True))


def test_mnist(root):
    def idx(array):
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()

    folder = root / "mnist"
    folder.mkdir(parents=True)
    for prefix, labels in (("train", [3, 7, 7]), ("t10k", [1])):
        pixels = np.stack([np.full((28, 28), label, np.uint8) for label in labels])
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(pixels))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.array(labels, np.uint8)))
    data = open_dataset("mnist", root=str(root))
    assert (data.name, data.classes[7], data.labels.tolist()) == ("mnist", "7", [3, 7, 7])
    assert data.fetch(torch.arange(3))[:, 0, 16, 16].tolist() == [3, 7, 7]
    assert type(data.held_out()) is type(data)
    assert data.held_out().labels.tolist() == [1]
    (folder / "train-images-idx3-ubyte").rename(folder / "train-images-idx3-ubyte.gz")
    with pytest.raises(ValueError, match=r"md5 .* instead of f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        open_dataset("mnist", root=str(root))
    with pytest.raises(ValueError, match=r"mnist needs train-images-idx3-ubyte\.gz in"):
        open_dataset("mnist", root=str(root / "elsewhere"))


def test_stl10(root):
    def pixels(values):
        images = np.zeros((len(values), 3, 96, 96), np.uint8)
        images[:, 0, 5, 60] = values  # stored column by column: row 60, column 5
        return images.tobytes()

    members = {"train_X": pixels([1, 2]), "train_y": bytes([10, 1]), "test_X": pixels([3]), "test_y": bytes([4])}
    members = {f"stl10_binary/{name}.bin": content for name, content in members.items()}
    members |= {"stl10_binary/unlabeled_X.bin": pixels([7, 8, 9])}
    names = "airplane bird car cat deer dog horse monkey ship truck".replace(" ", "\n")
    packed(root / "stl10_binary.tar.gz", {**members, "stl10_binary/class_names.txt": names})
    data = opened("stl10", root)
    assert data.fetch(torch.arange(2))[:, 0, 60, 5].tolist() == [1, 2]
    assert data.labels.tolist() == [9, 0]
    assert data.held_out().labels.tolist() == [3]
    free = opened("stl10", root, part="unlabelled", size=64)
    assert free.labels is None
    assert (len(free), free.image_size, len(free.held_out())) == (3, 64, 1)
    with pytest.raises(ValueError, match=r"stl10_binary\.tar\.gz has md5"):
        open_dataset("stl10", root=str(copied(root)))


def copied(root):
    """The archive elsewhere, where it has not been unpacked yet."""
    other = root.parent / "other"
    other.mkdir()
    (other / "stl10_binary.tar.gz").write_bytes((root / "stl10_binary.tar.gz").read_bytes())
    return other


def test_another_layout_is_one_sentence(root):
    packed(root / "dtd-r1.0.1.tar.gz", {"dtd/labels/train1.txt": "banded/a.jpg", "dtd/images/banded/a.jpg": picture(1)})
    with pytest.raises(ValueError, match="dtd is not laid out as its official archive"):
        opened("dtd", root)
    packed(root / "food-101.tar.gz", {"food-101/meta/train.json": '{"pie": ["pie/1"]}'})
    with pytest.raises(ValueError, match="food101 has no image that can be used"):
        opened("food101", root)


def test_archives_unpacked_by_hand(root):
    for name, content in {"meta/train.json": b'{"pie": ["pie/1"]}', "images/pie/1.jpg": picture(9)}.items():
        path = root / "food101" / "food-101" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert shown(open_dataset("food101", root=str(root))) == [9]
