"""`attach` with a real transformers trainer: progress, log, and a run that is continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antipodes import GloFND, InfoNCE

try:
    import accelerate
    from transformers import Trainer, TrainerCallback, TrainingArguments
except (ImportError, RuntimeError) as error:
    pytest.skip(f"transformers' trainer cannot be imported: {error}", allow_module_level=True)

from antipodes.integrations.hugging_face import FILE, attach

N, B, STEPS = 32, 8, 8
DATA = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self, loss_fn: InfoNCE, inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(6, 4)
        self.losses = nn.ModuleList([loss_fn] if inside else [])
        self.get_loss = lambda: loss_fn

    def forward(self, labels: Tensor) -> dict[str, Tensor]:
        z1, z2 = self.encoder(DATA[labels]), self.encoder(DATA[labels] + 0.1)
        return {"loss": self.get_loss()(z1, z2, labels)}


def test_an_accelerate_loop_saves_the_tables_of_a_registered_loss(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model, loss_fn = accelerator.prepare(nn.Linear(6, 4)), InfoNCE(0.1, GloFND(N, alpha=0.1))
    accelerator.register_for_checkpointing(loss_fn)
    ids = torch.arange(B)
    accelerator.backward(loss_fn(model(DATA[:B]), model(DATA[:B] + 0.1), ids))
    accelerator.save_state(str(tmp_path))
    policy = loss_fn.negatives
    assert isinstance(policy, GloFND)
    learned = policy.threshold.clone()
    loss_fn(model(DATA[:B]), model(DATA[:B] + 0.1), ids)
    assert not torch.equal(policy.threshold, learned)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(policy.threshold, learned)


class Reporter(TrainerCallback):
    """A reporter that is registered before `attach` is called."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


def train(
    folder: Path, inside: bool, resume: Path | None = None, **options: Any
) -> tuple[InfoNCE, Model, Reporter, Any, list[float]]:
    loss_fn = InfoNCE(0.2, GloFND(N, alpha=0.2, start=0.0))
    model, reporter, seen = Model(loss_fn, inside), Reporter(), []
    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=B, logging_steps=1, save_steps=4, use_cpu=True,
        report_to=[], disable_tqdm=True, learning_rate=0.05, seed=1,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=[{"labels": i} for i in range(N)], callbacks=[reporter],
    )  # fmt: skip
    attach(trainer, None if inside else loss_fn, **options)
    judge = loss_fn.judge

    def record(pairs: Any, progress: float, learn: bool = True) -> Any:
        seen.append(progress)
        return judge(pairs, progress, learn)

    loss_fn.judge = record  # type: ignore[method-assign]
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return loss_fn, model, reporter, trainer, seen


@pytest.mark.parametrize("inside", [True, False])
def test_progress_log_and_a_continued_run(tmp_path: Path, inside: bool) -> None:
    loss_fn, model, reporter, trainer, seen = train(tmp_path / "run", inside)
    assert seen == [step / STEPS for step in range(STEPS)]
    assert "loss/flagged_share" in reporter.logs[STEPS - 1]
    assert trainer.state.log_history[STEPS - 1]["loss/flagged_share"] == loss_fn.stats["flagged_share"]
    half = tmp_path / "run" / "checkpoint-4"
    assert (half / FILE).is_file() is not inside
    again, continued, *_, rest = train(tmp_path / "run", inside, half)
    assert rest == seen[4:]
    for name, each in loss_fn.state_dict().items():
        assert torch.equal(again.state_dict()[name], each), name
    assert torch.equal(continued.encoder.weight, model.encoder.weight)


def test_a_missing_state_is_refused_and_found_elsewhere(tmp_path: Path) -> None:
    loss_fn, *_ = train(tmp_path / "run", False)
    half, kept = tmp_path / "run" / "checkpoint-4", tmp_path / "kept"
    kept.mkdir()
    (half / FILE).rename(kept / FILE)
    with pytest.raises(FileNotFoundError, match=FILE):
        train(tmp_path / "run", False, half)
    again, *_ = train(tmp_path / "run", False, half, resume_from=kept)
    torch.testing.assert_close(again.state_dict(), loss_fn.state_dict(), rtol=0, atol=0)
