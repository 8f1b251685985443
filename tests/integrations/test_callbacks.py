"""What the callbacks of all trainers share, and that they can be imported without the trainers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from antipodes import FNC, InfoNCE, OneWay, TwoWay
from antipodes.integrations.callbacks import AttachedLosses
from antipodes.integrations.lightly import NTXentLoss
from antipodes.integrations.open_clip import ClipLoss, SigLipLoss

Z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        policy = FNC(0.2, start=0.5)
        self.text = OneWay(InfoNCE(negatives=policy))
        self.both = TwoWay(InfoNCE(negatives=policy))
        self.clip = ClipLoss(negatives=policy)
        self.views = NTXentLoss(negatives=policy)
        self.siglip = SigLipLoss(negatives=policy)
        self.head = nn.Linear(3, 3)


def test_every_loss_is_found_once_and_told_the_progress() -> None:
    model = Model()
    attached = AttachedLosses(None, model)
    assert list(attached.losses) == ["text", "both", "clip", "views", "siglip"]
    assert attached.outside == {}
    scale = torch.tensor(10.0)
    for progress, flags in ((0.2, False), (0.8, True)):
        attached.progress = progress
        for loss, more in ((model.text, ()), (model.both, ()), (model.views, ()), (model.clip, (scale,))):
            loss(Z, Z.roll(1, 0), *more)
        model.siglip(Z, Z.roll(1, 0), scale, torch.tensor(-3.0))
        shares = [value for name, value in attached.stats().items() if name.endswith("flagged_share")]
        assert len(shares) == 7  # two of the five have two directions
        assert all((share > 0) is flags for share in shares)
    attached.detach()
    with pytest.raises(ValueError, match="progress"):
        model.text(Z, Z)


def test_a_call_with_progress_keeps_its_own() -> None:
    loss = InfoNCE(negatives=FNC(0.2, start=0.5))
    AttachedLosses(loss, nn.Linear(1, 1))
    loss(Z, Z.roll(1, 0), progress=1.0)
    assert loss.stats["flagged_share"] > 0
    loss(Z, Z.roll(1, 0))
    assert loss.stats["flagged_share"] == 0


@pytest.mark.parametrize(("module", "package"), [("lightning", "Lightning"), ("hugging_face", "transformers")])
def test_without_the_package_the_constructor_says_what_to_install(module: str, package: str) -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(('lightning', 'pytorch_lightning', 'transformers'))\n"
        f"from antipodes.integrations.{module} import LossCallback\n"
        "try: LossCallback(None)\nexcept ImportError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert package in shown.stdout


def test_the_package_imports_no_adapter() -> None:
    program = "import sys, antipodes, antipodes.losses; print(any('antipodes.integrations' in n for n in sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False"]
