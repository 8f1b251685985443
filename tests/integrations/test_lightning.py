"""The callback in a real Lightning trainer: progress, log, and a run that is continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antipodes import GloFND, InfoNCE

try:
    import lightning
except (ImportError, RuntimeError) as error:
    pytest.skip(f"lightning cannot be imported: {error}", allow_module_level=True)

from antipodes.integrations.lightning import LossCallback

N, B, STEPS = 32, 8, 4  # steps in an epoch
DATA = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))


def make_loss() -> InfoNCE:
    return InfoNCE(0.2, GloFND(N, alpha=0.2, start=0.0))


class Module(lightning.LightningModule):
    def __init__(self, loss_fn: InfoNCE, inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(6, 4)
        self.losses = nn.ModuleList([loss_fn] if inside else [])
        self.get_loss = lambda: loss_fn

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        (ids,) = batch
        z1, z2 = self.encoder(DATA[ids]), self.encoder(DATA[ids] + 0.1)
        loss: Tensor = self.get_loss()(z1, z2, ids)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.encoder.parameters(), lr=0.1)


def fit(folder: Path, inside: bool, epochs: int, checkpoint: str | None = None) -> tuple[Any, InfoNCE, Module]:
    loss_fn = make_loss()
    module = Module(loss_fn, inside)
    seen: list[float] = []
    callback = LossCallback(None if inside else loss_fn)
    judge = loss_fn.judge

    def record(pairs: Any, progress: float, learn: bool = True) -> Any:
        seen.append(progress)
        return judge(pairs, progress, learn)

    loss_fn.judge = record  # type: ignore[method-assign]
    trainer = lightning.Trainer(
        default_root_dir=folder, max_epochs=2, accelerator="cpu", logger=False, log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], limit_train_batches=STEPS,
    )  # fmt: skip
    if epochs == 1:
        trainer.fit_loop.epoch_loop.max_steps = STEPS
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(N)), B)
    trainer.fit(module, loader, ckpt_path=checkpoint, **({"weights_only": False} if checkpoint else {}))
    trainer.progress_seen = seen
    return trainer, loss_fn, module


@pytest.mark.parametrize("inside", [True, False])
def test_progress_and_log(tmp_path: Path, inside: bool) -> None:
    trainer, loss_fn, _ = fit(tmp_path, inside, 2)
    assert trainer.progress_seen == [step / (2 * STEPS) for step in range(2 * STEPS)]
    logged = {name.removeprefix("loss/"): float(value) for name, value in trainer.callback_metrics.items()}
    assert logged == pytest.approx(loss_fn.stats)
    assert "flagged_share" in logged
    assert not loss_fn._forward_pre_hooks


@pytest.mark.parametrize("inside", [True, False])
def test_a_continued_run_is_bit_equal(tmp_path: Path, inside: bool) -> None:
    _, loss_fn, module = fit(tmp_path / "whole", inside, 2)
    (checkpoint,) = (tmp_path / "whole").rglob("*.ckpt")
    half, _, _ = fit(tmp_path / "half", inside, 1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    _, again, continued = fit(tmp_path / "rest", inside, 2, str(tmp_path / "half.ckpt"))
    for name, each in loss_fn.state_dict().items():
        assert torch.equal(again.state_dict()[name], each), name
    assert torch.equal(continued.encoder.weight, module.encoder.weight)
    saved = torch.load(checkpoint, weights_only=False)
    held = saved["state_dict"] if inside else saved["callbacks"]["LossCallback"]["losses"]
    assert any("negatives" in name for name in held)


def test_a_module_without_a_loss_is_refused(tmp_path: Path) -> None:
    module = Module(make_loss(), inside=False)
    with pytest.raises(ValueError, match="loss"):
        LossCallback().setup(None, module, "fit")
    with pytest.raises(ValueError, match="Linear"):
        LossCallback(module.encoder).setup(None, module, "fit")
