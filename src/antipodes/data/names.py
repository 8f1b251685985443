"""The names a dataset can be asked for, apart from the classes so that listing them imports nothing heavy."""

from pathlib import Path

DATASETS: dict[str, str] = {
    "cifar10": "antipodes.data.cifar.CIFAR10",
    "cifar100": "antipodes.data.cifar.CIFAR100",
    "fashion-mnist": "antipodes.data.fashion_mnist.FashionMNIST",
    "shapes": "antipodes.data.shapes.Shapes",
}
"""Name of a dataset -> dotted path of its class."""


def class_path(name_or_path: str) -> str:
    """Say which class opens this name, folder or ``.npz`` file, as a dotted path.

    Raises:
        ValueError: if it is neither a known name nor an existing folder or ``.npz`` file.

    Example:
        >>> class_path("shapes")
        'antipodes.data.shapes.Shapes'
    """
    if name_or_path in DATASETS:
        return DATASETS[name_or_path]
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return "antipodes.data.folder.Folder"
    if path.is_file() and path.suffix == ".npz":
        return "antipodes.data.npz.Npz"
    problem = "is not a folder or an .npz file (unpack archives)" if path.exists() else "does not exist as a path"
    raise ValueError(
        f"data {name_or_path!r} is not one of {', '.join(DATASETS)} and {problem}: "
        "give one of these names, a folder of images or an .npz file"
    )
