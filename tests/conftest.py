from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import hypothesis
import pytest

# the same examples in every run: a change is judged by what it does, not by luck
hypothesis.settings.register_profile("stable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("stable")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the tests' tensors are too small to share out

from tests.ranks import Ranks  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are not flushed to the disk: that takes milliseconds for each of them, and only a loss of power shows it.

    `test_files.py` holds that and when they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def shapes_are_drawn_once() -> Iterator[None]:
    """Datasets of shapes share their pictures, which hundreds of tests would draw again; `test_shapes.py` does draw."""
    from antipodes.data import shapes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_draw", lru_cache(maxsize=200)(shapes._draw))
        yield


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two real processes in one gloo group, shared by every distributed test."""
    with Ranks(2, tmp_path_factory.mktemp("ranks") / "store") as ranks:
        yield ranks


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Photos for development that are not part of the repository."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the development photos are not here")
    return folder
