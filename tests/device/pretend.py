"""A device that is not there: its tensors compute on the CPU, and count what a real device would cost.

`Pretend` is a tensor subclass on torch's device for backends of one's own (`privateuse1`). Inside `Trace` every
operation on one is a launch; devices are not mixed and memory is not handed to NumPy, as on a GPU. What makes the host
wait for a real device is a read-back: numbers read into Python, copies to the CPU, and results whose size depends on
the numbers. Each is kept with the line of the package that asked for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import antipodes

PACKAGE = str(Path(antipodes.__file__).parent)
aten = torch.ops.aten

# results that have a size which only the device knows
SIZED = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount}
SIZED |= {aten.repeat_interleave}
READ = {aten._local_scalar_dense, aten.equal, aten.is_nonzero}
COPIES = {aten._to_copy, aten.copy_, aten.copy}
# what changes only how memory is looked at, and allocation, launch nothing
FREE = {aten.view, aten._unsafe_view, aten.t, aten.transpose, aten.expand, aten.slice, aten.select, aten.unsqueeze}
FREE |= {aten.squeeze, aten.detach, aten.alias, aten.as_strided, aten.permute, aten.diagonal, aten.split, aten.unbind}
FREE |= {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.split_with_sizes, aten.lift_fresh}
FREE |= {aten.chunk, aten.narrow, aten.reshape, aten.unfold, aten.set_, aten.resize_}


class Module:
    """What torch asks of a backend's module."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        del seed

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def register() -> torch.device:
    """Register the device once for this process, and return it."""
    if not hasattr(torch, "pretend"):
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend("pretend", Module())
        # what torch.tensor(..., device=) comes to, where it leaves no room for a dispatch mode
        LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
        LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
        LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
    return torch.device("pretend", 0)


LIBRARY = torch.library.Library("aten", "IMPL")


def _empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, **_: Any
) -> Any:
    return Pretend(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any) -> Any:
    return Pretend(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    del non_blocking
    target.raw.copy_(source)
    return target


class Pretend(Tensor):
    """A tensor on the pretend device; `raw` has its numbers, with the same sizes and strides."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Pretend:
        made: Pretend = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=register(),
            requires_grad=False,
        )
        made.raw = raw
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Pretend({self.raw})"

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as a tensor of a GPU does."""
        raise TypeError("can't convert a tensor of the pretend device to NumPy: copy it to the host first")

    def tolist(self) -> Any:
        """Copy the numbers to Python, which is one read-back."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {}, None)


class Trace(TorchDispatchMode):
    """Count launches, read-backs and copies while it is entered, and make tensors on the device on request.

    Attributes:
        launches: How often each operation ran on the device.
        read_backs: For each line of the package, how often it made the host wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.read_backs: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {}, self)

    def clear(self) -> None:
        """Begin to count at zero."""
        self.launches.clear()
        self.read_backs.clear()
        self.copies.clear()


def place() -> str:
    """The line of the package that is being executed."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of the package"


def execute(func: Any, args: Any, kwargs: Any, trace: Trace | None) -> Any:
    """Run an operation on the numbers behind pretend tensors; on others as it is."""
    leaves, spec = tree_flatten((args, kwargs))
    there = [leaf for leaf in leaves if isinstance(leaf, Pretend)]
    here = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Pretend)]
    wanted = kwargs.get("device")
    packet = func.overloadpacket
    goes = wanted is not None and torch.device(wanted).type == "pretend"
    if not there and not goes:
        return func(*args, **kwargs)
    if packet in COPIES:
        return copied(func, packet, args, kwargs, there, goes, trace)
    far = [leaf for leaf in here if leaf.dim()]
    if there and far:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in far)
        raise RuntimeError(f"{func} got tensors of the pretend device and of the CPU ({shapes}), at {place()}")
    counted(packet, leaves, trace)
    if torch.Tag.inplace_view in func.tags:  # it changes sizes: of what is seen, and of the numbers behind it
        with no_dispatch():
            func(*args, **kwargs)
    back = {id(leaf.raw): leaf for leaf in there}
    plain = [leaf.raw if isinstance(leaf, Pretend) else leaf for leaf in leaves]
    args, kwargs = tree_unflatten(plain, spec)
    if goes:
        kwargs = {**kwargs, "device": "cpu"}
    result = func(*args, **kwargs)

    def there_again(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        known = back.get(id(each))  # what an operation in place returns is what it was given
        return Pretend(each) if known is None else known

    return tree_map(there_again, result)


def counted(packet: Any, leaves: list[Any], trace: Trace | None) -> None:
    """Count a launch, and a read-back where the host has to wait."""
    if trace is None or packet in FREE:
        return
    by_mask = packet in (aten.index, aten.index_put, aten.index_put_) and any(
        isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in leaves[1:3]
    )
    if packet in READ | SIZED or by_mask:
        trace.read_backs[place()] += 1
    if packet not in READ:
        trace.launches[str(packet)] += 1


def copied(
    func: Any, packet: Any, args: Any, kwargs: Any, there: list[Pretend], goes: bool, trace: Trace | None
) -> Any:
    """Copy between devices or on one of them; from the pretend one to the CPU is a read-back."""
    raw: Callable[[Any], Any] = lambda leaf: leaf.raw if isinstance(leaf, Pretend) else leaf  # noqa: E731
    plain = tree_map(raw, args)
    if packet in (aten.copy_, aten.copy):
        target, source = args[0], args[1]
        arrives = isinstance(target, Pretend)
        func(*plain, **kwargs)
        leaves = isinstance(source, Pretend) and not arrives
    else:
        device = kwargs.get("device")
        leaves = bool(there) and device is not None and torch.device(device).type == "cpu"
        arrives = goes or (bool(there) and not leaves)
    if trace is not None:
        if leaves:
            trace.read_backs[place()] += 1
        elif arrives and not isinstance(args[-1] if packet is not aten._to_copy else args[0], Pretend):
            trace.copies[place()] += 1
        else:
            trace.launches[str(packet)] += 1
    if packet is not aten._to_copy:
        return args[0]
    result = func(*plain, **({**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs))
    return Pretend(result) if arrives else result
