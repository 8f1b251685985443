"""The files that one loss call runs, as docs/architecture.md lists them: read off a trace."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import torch

import antipodes
from antipodes import InfoNCE

PACKAGE = Path(antipodes.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def files_of_a_call() -> list[str]:
    """The files of the package whose functions a call of 64 pairs and its backward run, in the order of their first."""
    z1, z2 = (torch.randn(64, 32, generator=torch.Generator().manual_seed(seed)).requires_grad_() for seed in (0, 1))
    loss_fn, ids = InfoNCE(0.1), torch.arange(64) + 5
    loss_fn(z1, z2, ids).backward()  # what is made once is made here
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parents:
            seen[file.relative_to(PACKAGE).as_posix()] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        loss_fn(z1, z2, ids).backward()
    finally:
        sys.setprofile(before)
    return list(seen)


def test_the_page_lists_the_files_of_a_loss_call() -> None:
    section = PAGE.read_text().partition("## One loss call, file by file")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)
    found = files_of_a_call()
    assert listed == found
    assert len(found) <= 12
