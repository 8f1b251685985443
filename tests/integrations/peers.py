"""Other libraries' own code, for tests that compare with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


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
