"""What callbacks of every trainer do with losses: find them, tell them the progress, collect numbers, save and load."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class AttachedLosses:
    """Losses whose calls get `progress` from a trainer.

    A loss is any module with `stats` whose forward takes `progress`: the losses of this package and of
    `antipodes.integrations`. A call that gives `progress=` itself keeps its own.

    Args:
        given: The losses by name, one loss, or None for those that are parts of `owner`.
        owner: The model of the trainer. Its own checkpoints hold the state of losses that are parts of it.
    """

    def __init__(self, given: nn.Module | Mapping[str, nn.Module] | None, owner: nn.Module) -> None:
        parts = {id(each) for each in owner.modules()}
        self.losses = find_losses(owner) if given is None else named(given)
        if not self.losses:
            raise ValueError("the model has no loss of antipodes as an attribute: give the callback the loss itself")
        self.outside = {name: loss for name, loss in self.losses.items() if id(loss) not in parts}
        self.progress = 0.0
        self._hooks = [
            loss.register_forward_pre_hook(self._add_progress, with_kwargs=True) for loss in self.losses.values()
        ]

    def detach(self) -> None:
        """Leave the losses as they were before."""
        for hook in self._hooks:
            hook.remove()

    def stats(self) -> dict[str, float]:
        """The numbers of the last call of every loss; several losses have their names in front."""
        several = len(self.losses) > 1
        return {
            f"{name}/{key}" if several else key: value
            for name, loss in self.losses.items()
            for key, value in loss.stats.items()  # type: ignore[union-attr, operator]
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the losses that no checkpoint of the model holds."""
        states = {name: loss.state_dict() for name, loss in self.outside.items()}
        return {f"{name}.{key}": each for name, state in states.items() for key, each in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of these losses back."""
        for name, loss in self.outside.items():
            start = f"{name}."
            loss.load_state_dict({key[len(start) :]: each for key, each in state.items() if key.startswith(start)})

    def _add_progress(self, _: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, {"progress": self.progress, **keywords}


def named(given: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Losses by name, each one that a callback can serve.

    Raises:
        ValueError: for anything else.
    """
    losses = {"loss": given} if isinstance(given, nn.Module) else dict(given)
    for name, loss in losses.items():
        if not is_loss(loss):
            raise ValueError(f"loss must be one of antipodes, such as InfoNCE(), got {name}: a {type(loss).__name__}")
    return losses


def find_losses(module: nn.Module) -> dict[str, nn.Module]:
    """The losses that are parts of a module, by name; a loss inside of another one is part of that."""
    found: dict[str, nn.Module] = {}
    for name, part in module.named_modules():
        inner = any(name.startswith(f"{outer}.") for outer in found)
        if name and is_loss(part) and not inner:
            found[name] = part
    return found


def is_loss(part: object) -> bool:
    """Whether this is a module with statistics whose calls take `progress`."""
    if not isinstance(part, nn.Module) or not hasattr(type(part), "stats"):
        return False
    return "progress" in inspect.signature(part.forward).parameters
