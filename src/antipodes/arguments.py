"""Checks of constructor and call arguments: one sentence that names the argument if it is wrong.

`checked` compares a constructor's arguments with their annotations; the range of a number is checked where it is used.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeGuard, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

Arguments = ParamSpec("Arguments")
LARGEST = 1e30  # of a floating-point number: beyond it products overflow in float32
LARGEST_WHOLE = 2**63 - 1
_OWN_SENTENCE = ("negatives", "fill")  # arguments for which constructors have more precise messages


def checked(init: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Decorate a constructor so that arguments which do not fit their annotations raise a ValueError with their name.

    Numbers must be finite, whole numbers may be floats such as 1e6, and classes are compared with `isinstance`.
    Annotations of other kinds are not checked.
    """
    signature = inspect.signature(init)
    hints: dict[str, Any] = {}

    @functools.wraps(init)
    def construct(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        if not hints:
            hints.update(_hints(init))
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # Python's own sentence names the argument
            return init(*args, **kwargs)
        for name, value in given.items():
            if name in hints and name not in _OWN_SENTENCE and not _fits(hints[name], value):
                raise ValueError(f"{name} must be {_wanted(hints[name])}, got {describe(value)}")
        return init(*args, **kwargs)

    return construct


def describe(value: object) -> str:
    """Describe a value for an error message: numbers and short strings as they are, other values by their class."""
    if isinstance(value, Tensor):
        return f"a Tensor of {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, Real) or (isinstance(value, str) and len(value) < 40):
        shown = repr(value)
        return shown if len(shown) < 40 else f"a number of {len(shown)} digits"
    return f"a {type(value).__name__}"


def number(name: str, value: Any, least: float = -math.inf, below: float = math.inf, why: str = "") -> float:
    """Return a finite number in [least, below); raise a ValueError that names the argument otherwise."""
    if not _finite(value) or not least <= value < below:
        reason = f": {why}" if why else ""
        raise ValueError(f"{name} must be a number in [{least:g}, {below:g}), got {describe(value)}{reason}")
    return value  # type: ignore[no-any-return]


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number of at least `least` as an int; raise a ValueError that names the argument otherwise."""
    if not _whole(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} must be a whole number{bound}, got {describe(value)}")
    return int(value)


def is_dense(given: object) -> TypeGuard[Tensor]:
    """Return True for a dense tensor, False for a sparse tensor or another object."""
    return isinstance(given, Tensor) and given.layout == torch.strided


def check_vectors(name: str, given: Any, dim: int | None = None) -> None:
    """Raise a ValueError unless the argument is a (b, dim) floating-point tensor; b may be 0."""
    fits = is_dense(given) and given.dim() == 2 and given.is_floating_point()
    if not fits or given.shape[1] != (given.shape[1] if dim is None else dim) or not given.shape[1]:
        raise ValueError(f"{name} must be a floating-point tensor (b, {dim or 'D'}), got {describe(given)}")


def check_numbers(name: str, given: Any, count: int | None = None) -> None:
    """Raise a ValueError unless the argument is a (b,) or (count,) tensor of whole numbers."""
    fits = is_dense(given) and given.dim() == 1 and given.dtype in (torch.int64, torch.int32)
    if not fits or len(given) != (len(given) if count is None else count):
        shape = "(b,)" if count is None else f"({count},)"
        raise ValueError(f"{name} must be int64 of shape {shape}, got {describe(given)}")


def _hints(init: Callable[..., None]) -> dict[str, Any]:
    try:
        found = get_type_hints(init)
    except NameError:  # an annotation that is imported for type checkers only
        found = {}
    found.pop("return", None)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in inspect.signature(init).parameters.items():
        if parameter.kind in several:  # the annotation is that of each argument, not of the tuple
            found.pop(name, None)
    for name, written in init.__annotations__.items():
        if written == "Alpha":  # the command line takes a number only
            found[name] = float | Tensor
    return found or {"": None}


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex() and bool(value.abs() <= LARGEST)
    largest = LARGEST_WHOLE if isinstance(value, int) else LARGEST
    return isinstance(value, Real) and not isinstance(value, bool) and bool(-largest <= value <= largest)  # type: ignore[operator]


def _whole(value: Any) -> bool:
    return (
        _finite(value) and not isinstance(value, Tensor) and float(value).is_integer() and abs(value) <= LARGEST_WHOLE
    )


def _fits(hint: Any, value: Any) -> bool:
    """Return True if a value fits an annotation; annotations that are not known here fit every value."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is float:
        return _finite(value)
    if hint is int:
        return _whole(value)
    if hint is bool:
        return isinstance(value, bool)
    if (
        hint in (str, Path)
        or is_dataclass(hint)
        or (isinstance(hint, type) and issubclass(hint, (Tensor, nn.Module, torch.dtype)))
    ):
        return isinstance(value, hint)
    if hint is type(None):
        return value is None
    if origin is Literal:
        return isinstance(value, str)  # the constructor checks which ones
    if origin in (Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        several = isinstance(value, (tuple, list)) and len(value) == len(parts)
        return several and all(map(_fits, parts, value))
    if origin in (tuple, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(parts[0], v) for v in value)
    return True


def _wanted(hint: Any) -> str:
    """Describe an annotation in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_wanted(part) for part in parts))
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"{len(parts)} of {_wanted(parts[0])}"
    if origin in (tuple, Sequence):
        return f"a sequence of {_wanted(parts[0])}"
    words = {
        float: "a finite number",
        int: "a whole number",
        bool: "True or False",
        str: "a string",
        type(None): "None",
    }
    return words.get(hint, f"a {getattr(hint, '__name__', hint)}")
