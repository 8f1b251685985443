"""Other libraries' own code, for tests that compare with it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TEXT = "red green blue car cat dog house tree runs sleeps eats big small old new river stone bird fish king"
WORDS = TEXT.split()
"""The vocabulary of the small transformer."""


def open_clip_losses() -> Any:
    """open_clip's own file of losses, by itself: the package as a whole imports torchvision."""
    package = importlib.util.find_spec("open_clip")
    if package is None or package.origin is None:
        pytest.skip("open_clip is not installed (pip install --no-deps open_clip_torch)")
    file = importlib.util.spec_from_file_location("open_clip_loss", Path(package.origin).parent / "loss.py")
    assert file is not None
    assert file.loader is not None
    losses = importlib.util.module_from_spec(file)
    file.loader.exec_module(losses)
    return losses


def flag_embedding(module: str) -> Any:
    """A module of FlagEmbedding's fine-tuning, without the rest of the package, which imports peft and models."""
    package = importlib.util.find_spec("FlagEmbedding")
    if package is None or package.origin is None:
        pytest.skip("FlagEmbedding is not installed (pip install --no-deps FlagEmbedding)")
    parent = ModuleType("flag_embedding")
    parent.__path__ = [str(Path(package.origin).parent / "abc" / "finetune" / "embedder")]
    sys.modules.setdefault("flag_embedding", parent)
    return importlib.import_module(f"flag_embedding.{module}")


def with_empty_torchvision(name: str) -> Any:
    """A module of timm or lightly; torchvision, which torch's CPU build cannot import, is replaced by empty classes."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (pip install --no-deps {package})")
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(EmptyTorchvision())
    return importlib.import_module(name)


class EmptyClass(type):
    """A class whose attributes are texts, such as the members of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class EmptyModule(ModuleType):
    """A module that has every class, none of which does anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return EmptyClass(name, (), {})


class EmptyTorchvision(MetaPathFinder, Loader):
    """Imports torchvision and its modules as empty ones."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""
