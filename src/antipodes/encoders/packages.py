"""Files inside installed packages: pretrained weights and vocabularies are found there and never downloaded."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def find_packaged(packages: tuple[str, ...], ending: str) -> Path | None:
    """Find a file of the first of these packages that is installed, without importing the package.

    Args:
        packages: the packages' names for pip.
        ending: the end of the file's path.

    Returns:
        The file's path, or None if no installed package has such a file.

    Example:
        >>> find_packaged(("numpy",), "numpy/__init__.py").name
        '__init__.py'
        >>> find_packaged(("no-such-package",), ".pth") is None
        True
    """
    for package in packages:
        try:
            files = distribution(package).files or []
        except PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if str(file).endswith(ending) and path.is_file():
                return path
    return None


def require_packaged(what: str, extra: str, packages: tuple[str, ...], ending: str) -> Path:
    """Find a file as `find_packaged` does; if there is none, name the extra of antipodes that installs it.

    Raises:
        ValueError: none of the packages is installed.
    """
    path = find_packaged(packages, ending)
    if path is None:
        raise ValueError(
            f"{what} are in the package {' or '.join(packages)}, which is not installed: "
            f"pip install '.[{extra}]' (nothing is downloaded at run time)"
        )
    return path
