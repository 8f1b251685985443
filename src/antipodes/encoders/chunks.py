"""`chunked`: embed a batch that is larger than memory, exactly.

A contrastive loss needs the embeddings of the whole batch at once, but not the activations behind them:

1. The forward pass embeds the batch in pieces and keeps the embeddings only.
2. The loss compares all embeddings, as always.
3. The backward pass computes each piece once more, with its activations, and frees them before the next one.

The gradients are those of the whole batch, for about one more forward pass of time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from antipodes.arguments import describe, whole

Output = TypeVar("Output")


def chunked(encoder: Callable[[Any], Output], x: Tensor | Mapping[str, Tensor], micro_batch: int = 64) -> Output:
    """Embed a batch in pieces, each of which is computed again in the backward pass.

    Memory grows with one piece instead of the batch. Random numbers (dropout) and autocast are replayed, so that the
    second computation of a piece equals the first. Several calls, one for each tower, may lead into one loss. Under
    `DistributedDataParallel` gradients are reduced once per backward pass, and `no_sync` has its usual meaning: give
    the wrapped module itself, one of its methods, or a function that calls it by name.

    Args:
        encoder: Maps `x`, or a part of its rows, to embeddings: a tensor (B, ...) or a dict of such tensors. Each row
            must be embedded independently of the others.
        x: The batch: a tensor (B, ...), or a dict of such tensors, which the encoder receives as one argument.
        micro_batch: Rows in a piece.

    Returns:
        What `encoder(x)` returns.

    Raises:
        ValueError: if the encoder normalises by statistics of the batch, if x is something else or its tensors are not
            equally long, or if the encoder returns another number of rows than it received.

    Example:
        >>> encoder = nn.Linear(8, 4)
        >>> z = chunked(encoder, torch.ones(100, 8), micro_batch=32)
        >>> z.shape
        torch.Size([100, 4])
    """
    size = whole("micro_batch", micro_batch, least=1)
    modules = list(_modules_of(encoder))
    refuse_batch_statistics(modules)
    outputs = embed_pieces(encoder, _pieces(x, size), modules)
    return cast(Output, _joined(outputs))


def embed_pieces(
    encoder: Callable[[Any], Any], pieces: Sequence[Any], modules: Sequence[nn.Module] | None = None
) -> list[Any]:
    """Embed pieces one by one: what `chunked` does between cutting a batch and joining its embeddings.

    Args:
        encoder: As in `chunked`.
        pieces: What it receives, one call each: a tensor, or a dict of tensors.
        modules: Those that the encoder consists of, if they are known.
    """
    wrappers = [each for each in modules or _modules_of(encoder) if isinstance(each, DistributedDataParallel)]
    if not torch.is_grad_enabled() or len(pieces) == 1:
        return [_checked(encoder(piece), piece) for piece in pieces]
    outputs = []
    for number, piece in enumerate(pieces):
        run = _Piece(encoder, wrappers, prepares=number == 0)
        outputs.append(_checked(checkpoint(run, piece, use_reentrant=False), piece))
    return outputs


def refuse_batch_statistics(modules: Sequence[nn.Module]) -> None:
    """Raise a ValueError if one of the modules normalises by the mean and variance of the batch that it sees."""
    for module in modules:
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ValueError(
                f"the encoder has a {type(module).__name__} in training mode, whose statistics would be those of a "
                "piece instead of the batch: use group or layer normalisation (encoder resnet18-slim-gn), or freeze "
                "it with .eval(); SyncBatchNorm does not help, as it joins the statistics of processes, not of pieces"
            )


class _Piece:
    """One piece of a batch, for `checkpoint`: it is called in the forward pass, and again in the backward pass.

    `DistributedDataParallel` has to know of one forward pass per backward pass, that of the first piece, which makes it
    ready to reduce gradients. All other calls go to the module inside: the wrapper would reset its bookkeeping in the
    middle of a backward pass.
    """

    def __init__(self, encoder: Callable[[Any], Any], wrappers: Sequence[nn.Module], prepares: bool) -> None:
        self.encoder, self.wrappers = encoder, wrappers
        self.prepares = prepares

    def __call__(self, piece: Any) -> Any:
        prepares, self.prepares = self.prepares, False
        with _without([] if prepares else self.wrappers):
            return self.encoder(dict(piece) if isinstance(piece, Mapping) else piece)


@contextmanager
def _without(wrappers: Sequence[nn.Module]) -> Iterator[None]:
    """Let these data-parallel wrappers pass calls on to their modules and do nothing else."""
    own = [wrapper.__dict__.get("forward") for wrapper in wrappers]
    for wrapper in wrappers:
        assert isinstance(wrapper.module, nn.Module)
        wrapper.forward = wrapper.module.__call__
    try:
        yield
    finally:
        for wrapper, forward in zip(wrappers, own, strict=True):
            del wrapper.forward  # what stays is the method of its class
            if forward is not None:
                wrapper.forward = forward


def _modules_of(encoder: Any) -> Iterator[nn.Module]:
    """Every module that a call of the encoder may reach: a module's own, and those that a function names."""
    if isinstance(encoder, nn.Module):
        yield from encoder.modules()
    elif isinstance(encoder, functools.partial):
        for part in (encoder.func, *encoder.args, *encoder.keywords.values()):
            yield from _modules_of(part)
    elif inspect.ismethod(encoder):
        yield from _modules_of(encoder.__self__)
    elif inspect.isfunction(encoder):
        named = inspect.getclosurevars(encoder)
        for part in (*named.nonlocals.values(), *named.globals.values()):
            if isinstance(part, nn.Module) or inspect.ismethod(part):
                yield from _modules_of(part)


def _pieces(x: Tensor | Mapping[str, Tensor], size: int) -> list[Any]:
    """Return the rows of a batch, `size` at a time."""
    if isinstance(x, Tensor):
        if not x.dim() or not len(x):
            raise ValueError(f"x must be a tensor (B, ...) of at least one row, got {describe(x)}")
        return list(x.split(size))
    if not isinstance(x, Mapping) or not x:
        raise ValueError(f"x must be a tensor (B, ...) or a dict of such tensors, got {describe(x)}")
    for name, each in x.items():
        if not isinstance(each, Tensor) or not each.dim():
            raise ValueError(f"x must hold tensors (B, ...), got {describe(each)} for {name!r}")
    if len({len(each) for each in x.values()}) > 1 or not len(next(iter(x.values()))):
        lengths = ", ".join(f"{name}: {len(each)}" for name, each in x.items())
        raise ValueError(f"the tensors of x must have the same number of rows, at least one, got {lengths}")
    parts = zip(*(each.split(size) for each in x.values()), strict=True)
    return [dict(zip(x, part, strict=True)) for part in parts]


def _checked(output: Any, piece: Any) -> Any:
    """Return the embeddings of a piece; refuse an output that has not one row for each of its rows."""
    rows = len(piece if isinstance(piece, Tensor) else next(iter(piece.values())))
    tensors = list(output.values()) if isinstance(output, Mapping) else [output]
    if not tensors or not all(isinstance(each, Tensor) and each.dim() and len(each) == rows for each in tensors):
        what = ", ".join(describe(each) for each in tensors) or "nothing"
        raise ValueError(f"the encoder must return one embedding for each of the {rows} rows of a piece, got {what}")
    return output


def _joined(outputs: Sequence[Any]) -> Any:
    """Concatenate the embeddings of all pieces."""
    if isinstance(outputs[0], Tensor):
        return outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))
    return {name: _joined([output[name] for output in outputs]) for name in outputs[0]}
