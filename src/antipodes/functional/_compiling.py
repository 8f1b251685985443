"""What torch.compile does with the kernels: it runs them as they are, between two graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from torch._compile import _disable_dynamo

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep a function out of compiled graphs, at one graph break a call.

    The tiles of a kernel are many small operations on reused buffers: traced, they would be one graph per batch size.
    """
    # Not `torch.compiler.disable`, which imports the compiler, two seconds that most programs do not need.
    wrapped: Any = _disable_dynamo(function)
    return cast(Callable[Arguments, Result], functools.wraps(function)(wrapped))
