"""Kernels in other people's steps: under torch.compile they run as they are, and under autocast in full precision."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep a function out of compiled graphs, at one graph break a call.

    The tiles of a kernel are many small operations on reused buffers: traced, they would be one graph per batch size.
    `torch.compiler.disable` does that, but imports the compiler, two seconds that most programs do not need: it is
    asked only once somebody else has imported it.
    """
    disabled: list[Any] = []

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        result: Result = disabled[0](*args, **kwargs)
        return result

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off where it is on: products of similarities are divided by small temperatures."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
