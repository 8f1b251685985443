"""What all functions here share: few reads from devices, full precision, first derivatives only, and `NotFinite`.

On a GPU every reading of a number makes the program wait, so numbers are read in one go, and seldom. Losses and kernels
run outside of compiled graphs and with autocast off.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor


class NotFinite(ValueError):
    """Embeddings hold NaN or infinite numbers: in a training run, the sign that it has diverged."""


def on_host(tensor: Tensor) -> bool:
    """Return True if reading values from the tensor needs no device synchronisation."""
    return tensor.device.type == "cpu"


def read(*numbers: Tensor) -> list[float]:
    """Return the numbers of tensors that hold one each, in one go."""
    if len(numbers) < 2 or on_host(numbers[0]):
        return [number.item() for number in numbers]
    every: list[float] = torch.stack([number.detach().double() for number in numbers]).tolist()
    return every


def has_zero(numbers: Tensor) -> bool:
    """Whether one of the numbers is 0."""
    return not bool(numbers.numpy().all() if on_host(numbers) else numbers.all())


class Span(NamedTuple):
    """The smallest and the largest number of a tensor, NaN if it holds one, and whether they are known to differ."""

    lowest: float
    highest: float
    distinct: bool = False


def spans(*tensors: Tensor) -> list[Span]:
    """Return the smallest and the largest number of each tensor, in one go."""
    numbers = read(*(end for tensor in tensors for end in torch.aminmax(tensor)))
    return [Span(lowest, highest) for lowest, highest in zip(numbers[::2], numbers[1::2], strict=True)]


def span_on_host(ids: Tensor) -> Span:
    """Return the smallest and the largest of whole numbers (B,) on the host, and whether no number comes twice."""
    numbers = ids.numpy().tolist()  # of a batch: arrays take longer to look at
    return Span(min(numbers), max(numbers), len(set(numbers)) == len(numbers))


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_DEVICE_TYPES = tuple(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))
_NOTHING_TO_SWITCH = nullcontext()


def eager_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep a function out of compiled graphs, at one graph break a call, and switch autocast off inside of it.

    The tiles of a kernel are many small operations on reused buffers: traced, they would be one graph per batch size.
    `torch.compiler.disable` does that, but imports the compiler, two seconds that most programs do not need: it is
    asked only once it has been imported. Similarities are divided by small temperatures, which half precision
    cannot afford: every loss and every kernel has this at its door, so that nothing inside has to think of it.
    """
    disabled: list[Any] = []

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with full_precision():
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            if not disabled:
                disabled.append(torch.compiler.disable(function))
            result: Result = disabled[0](*args, **kwargs)
            return result

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def full_precision() -> AbstractContextManager[Any]:
    """Switch autocast off on every type of device on which it is on."""
    enabled = [kind for kind in _DEVICE_TYPES if torch.is_autocast_enabled(kind)]
    return _switched_off(enabled) if enabled else _NOTHING_TO_SWITCH


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward of an autograd function whose gradients cannot be differentiated again.

    Autograd runs a backward in the autocast state of the caller of `backward()`, so it is switched off here as well.
    `once_differentiable` of torch notices a second derivative only if the incoming gradient depends on something, which
    that of a mean does not: the result of a gradient penalty would silently be zero. Here every gradient that is made
    with `create_graph=True` raises once it is differentiated.
    """

    @functools.wraps(backward)
    def call(ctx: Any, *gradients: Any) -> Any:
        with torch.no_grad(), full_precision():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        return tuple(map(_once, found)) if isinstance(found, tuple) else _once(found)

    return call


@contextmanager
def _switched_off(device_types: list[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in device_types:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _Once(torch.autograd.Function):
    """The identity, which refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "the losses of antipodes have first derivatives only: leave create_graph out, "
            "or take a gradient penalty of something else"
        )


def _once(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    return _Once.apply(gradient.detach().requires_grad_())  # type: ignore[no-untyped-call, no-any-return]
