"""`LossCallback`: progress, numbers and checkpoints of a loss in a Lightning `Trainer`.

    trainer = lightning.Trainer(callbacks=[LossCallback()])

A loss that is an attribute of the `LightningModule` is found and is in Lightning's checkpoints with it; any other loss
is given to the callback, which then saves and loads its state. On several devices use
`DDPStrategy(broadcast_buffers=False)`: tables are equal on all ranks without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from antipodes.integrations.callbacks import AttachedLosses

if TYPE_CHECKING:

    class Callback:
        """Lightning's class of callbacks."""
else:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        try:
            from pytorch_lightning.callbacks import Callback
        except ImportError:
            Callback = None  # refused in the constructor


class _Base(Callback or object):  # type: ignore[misc]
    """Lightning's class of callbacks; a plain one without Lightning, so that this file can be imported."""


class LossCallback(_Base):
    """Tell losses the share of training done, log their numbers and keep their state in checkpoints.

    Progress is `trainer.global_step / trainer.estimated_stepping_batches`, so leave `progress=` out of the calls.

    Args:
        loss: A loss of this package or a dict of several by name; None takes those that are attributes of the
            `LightningModule`.
        prefix: Of the names in the log.
    """

    def __init__(self, loss: nn.Module | Mapping[str, nn.Module] | None = None, prefix: str = "loss/") -> None:
        super().__init__()
        if Callback is None:
            raise ImportError("LossCallback needs Lightning: pip install lightning")
        self.loss, self.prefix = loss, prefix
        self.attached: AttachedLosses | None = None
        self._state: dict[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the losses before training starts."""
        if stage == "fit":
            self.attached = AttachedLosses(self.loss, pl_module)
            if self._state is not None:
                self.attached.load_state_dict(self._state)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the losses as they were."""
        if self.attached is not None and stage == "fit":
            self.attached.detach()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Move losses that are not parts of the module to its device."""
        assert self.attached is not None
        for loss in self.attached.outside.values():
            loss.to(pl_module.device)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Set the share of training done."""
        assert self.attached is not None
        total = trainer.estimated_stepping_batches
        self.attached.progress = min(1.0, trainer.global_step / total) if 0 < total < float("inf") else 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the numbers of the losses every `log_every_n_steps` steps."""
        assert self.attached is not None
        if trainer.log_every_n_steps and trainer.global_step % trainer.log_every_n_steps == 0:
            pl_module.log_dict({self.prefix + name: value for name, value in self.attached.stats().items()})

    def state_dict(self) -> dict[str, Any]:
        """The state of the losses that are not parts of the module."""
        return {} if self.attached is None else {"losses": self.attached.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back, now or once the losses are known."""
        self._state = state_dict.get("losses")
        if self.attached is not None and self._state is not None:
            self.attached.load_state_dict(self._state)
