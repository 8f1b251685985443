"""`attach`: progress, numbers and checkpoints of a loss in a Hugging Face `Trainer`.

    trainer = Trainer(model, args, train_dataset=dataset)  # its compute_loss calls loss_fn
    attach(trainer, loss_fn)
    trainer.train()

A loss that is an attribute of the model is found and is in the model's checkpoints; the state of any other loss is
written to `checkpoint-N/antipodes.safetensors` and read when training resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import nn

from antipodes.integrations.callbacks import AttachedLosses

if TYPE_CHECKING:

    class TrainerCallback:
        """transformers' class of callbacks."""
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = None  # refused in the constructor

FILE = "antipodes.safetensors"


class _Base(TrainerCallback or object):  # type: ignore[misc]
    """transformers' class of callbacks; a plain one without transformers, so that this file can be imported."""


class LossCallback(_Base):
    """Tell losses the share of training done, log their numbers and keep their state in checkpoints.

    Args:
        losses: As `attach` finds them.
        prefix: Of the names in the log.
        resume_from: The checkpoint to read when training starts at a step above 0; None takes the one of that step in
            `output_dir`.
    """

    def __init__(self, losses: AttachedLosses, prefix: str = "loss/", resume_from: str | Path | None = None) -> None:
        super().__init__()
        if TrainerCallback is None:
            raise ImportError("LossCallback needs transformers: pip install transformers")
        self.attached, self.prefix, self.resume_from = losses, prefix, resume_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Move the losses to the device of training, and read their state where training resumes."""
        for loss in self.attached.outside.values():
            loss.to(args.device)
        if state.global_step == 0 or not self.attached.outside:
            return
        folder = self._folder(args, state) if self.resume_from is None else Path(self.resume_from)
        if not (folder / FILE).is_file():
            raise FileNotFoundError(
                f"{folder / FILE} is missing: training resumes at step {state.global_step} without the state of its "
                "loss, give attach(..., resume_from=) the checkpoint that has it"
            )
        self.attached.load_state_dict(load_file(folder / FILE))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the share of training done."""
        self.attached.progress = min(1.0, state.global_step / state.max_steps) if state.max_steps > 0 else 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Add the numbers of the losses to those of the trainer, for reporters and for `state.log_history`."""
        if logs is None or "loss" not in logs:  # evaluation, or the summary at the end
            return
        numbers = {self.prefix + name: value for name, value in self.attached.stats().items()}
        logs.update(numbers)
        if state.log_history:
            state.log_history[-1].update(numbers)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state of the losses next to the checkpoint that was just written."""
        if self.attached.outside and state.is_world_process_zero:
            folder = self._folder(args, state)
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: each.detach().cpu().contiguous() for name, each in self.attached.state_dict().items()}
            save_file({name: each.clone() for name, each in tensors.items()}, folder / FILE)

    @staticmethod
    def _folder(args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def attach(
    trainer: Any,
    loss: nn.Module | Mapping[str, nn.Module] | None = None,
    *,
    prefix: str = "loss/",
    resume_from: str | Path | None = None,
) -> LossCallback:
    """Serve the losses of a trainer; call it before `trainer.train()`.

    Progress is `global_step / max_steps`, so leave `progress=` out of the calls.

    Args:
        trainer: A `transformers.Trainer`.
        loss: A loss of this package or a dict of several by name; None takes those that are attributes of the model.
        prefix: Of the names in the log.
        resume_from: As in `LossCallback`.

    Returns:
        The callback, which stands first: reporters that come before it would log without its numbers.
    """
    callback = LossCallback(AttachedLosses(loss, trainer.model), prefix, resume_from)
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback
