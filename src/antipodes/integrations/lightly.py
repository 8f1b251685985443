"""`NTXentLoss` with lightly's constructor and call, with a policy for false negatives and a memory bank that is saved.

Three things differ from lightly's class:

- The memory bank starts empty, not with random vectors: empty places do not count.
- The bank is part of the checkpoint, with the ids of its keys: a stale key of the anchor's own sample does not count.
- With `gather_distributed=True` gradients flow to the embeddings of all ranks: the mean over ranks of losses and
  gradients is that of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipodes import InfoNCE, Policy
from antipodes.candidates import Queue
from antipodes.distributed import alone, rank, world_size
from antipodes.identity import identities

_UNNAMED = 2**62  # identities of samples that come without ids count up from here


class NTXentLoss(nn.Module):
    """lightly's `NTXentLoss` with a policy.

    Without a memory bank every view of the batch is an anchor, and all views of other samples are its negatives. With a
    memory bank the first views are the anchors, each with its second view as positive and the bank as negatives; the
    second views then replace the oldest keys of the bank.

    Args:
        temperature: Divides the similarities.
        memory_bank_size: Number of keys, or (number, dimension); 0 for no memory bank.
        gather_distributed: Whether negatives come from all ranks.
        negatives: The policy.
        treatment: What happens to false negatives, as in `InfoNCE`.
        total_steps: How many calls the training has, so that `progress` may be left out.

    Attributes:
        progress: Share of training done for calls without `progress=`.

    Example:
        >>> loss = NTXentLoss(temperature=0.1, memory_bank_size=8)
        >>> value = loss(torch.eye(4, requires_grad=True), torch.eye(4), ids=[0, 1, 2, 3])
        >>> value = loss(torch.eye(4, requires_grad=True), torch.eye(4), ids=[0, 1, 4, 5])
        >>> loss.stats["kept_per_anchor"]  # 3, 3, 4 and 4: the bank holds the samples 0 to 3
        3.5
    """

    seen: Tensor

    def __init__(
        self,
        temperature: float = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        *,
        negatives: Policy | None = None,
        treatment: Any = "eliminate",
        total_steps: int | None = None,
    ) -> None:
        super().__init__()
        size = (memory_bank_size,) if isinstance(memory_bank_size, int) else tuple(memory_bank_size)
        if len(size) not in (1, 2) or not all(isinstance(each, int) and each >= 0 for each in size):
            raise ValueError(f"memory_bank_size must be a number of keys or (number, dim), got {memory_bank_size!r}")
        self.size, self.gather_distributed = size[0], gather_distributed
        self.loss_fn = InfoNCE(temperature, negatives, treatment, total_steps=total_steps)
        self.queue: Queue | None = Queue(*size) if len(size) == 2 and self.size else None
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.progress: float | None = None

    @property
    def stats(self) -> dict[str, float]:
        """Numbers of the last call by name."""
        return self.loss_fn.stats

    def policies(self) -> list[Policy]:
        """The policies of the loss, each part of a joined one by itself."""
        return self.loss_fn.policies()

    def forward(
        self,
        out0: Tensor,
        out1: Tensor,
        *,
        ids: Any = None,
        rows: Any = None,
        guide: tuple[Tensor, Tensor] | None = None,
        progress: float | None = None,
    ) -> Tensor:
        """The mean over this rank's anchors.

        Args:
            out0: (B, D) embeddings of the first views; any length.
            out1: (B, D) of the second views.
            ids: (B,) identities of the samples, whole numbers or texts. None: every sample of every batch is another
                one.
            rows: (B,) where the samples stand in a policy's tables, without a memory bank; None takes the ids.
            guide: A guide's vectors (B, G) of both views, without a memory bank.
            progress: Share of training done; None takes `self.progress`.
        """
        progress = self.progress if progress is None else progress
        if not self.gather_distributed:
            with alone():
                return self._loss(out0, out1, ids, rows, guide, progress)
        return self._loss(out0, out1, ids, rows, guide, progress)

    def _loss(self, out0: Tensor, out1: Tensor, ids: Any, rows: Any, guide: Any, progress: float | None) -> Tensor:
        if not self.size:
            loss: Tensor = self.loss_fn(out0, out1, ids, rows=rows, guide=guide, progress=progress)
            return loss
        if rows is not None or guide is not None:
            raise ValueError("the memory bank holds neither rows nor a guide's vectors: leave rows and guide out")
        if ids is None and self.loss_fn.needs_rows:
            raise ValueError("ids are missing: the policy looks samples up by their dataset indices (B,)")
        queue = self._queue(out1)
        if ids is None:
            numbers = _UNNAMED + self.seen + rank() * len(out0) + torch.arange(len(out0), device=out0.device)
        else:
            numbers = (ids if isinstance(ids, Tensor) else identities(ids)).to(out0.device, torch.int64)
        # a copy of the keys: backward needs those of now, and they change below
        keys, key_ids = queue.keys.to(_precision(out0), copy=True), queue.ids.clone()
        loss = self.loss_fn(
            out0, out1, numbers, candidates=keys, candidate_ids=key_ids, gathered=True, progress=progress
        )
        if out0.requires_grad and self.training:
            queue.push(F.normalize(out1.detach().to(keys.dtype), dim=1), numbers)
            self.seen += len(out0) * world_size()
        return loss

    def _queue(self, like: Tensor) -> Queue:
        """The memory bank; made in the first call where its dimension was not given."""
        if self.queue is None:
            self.queue = Queue(self.size, like.shape[-1]).to(like.device, _precision(like))
        return self.queue

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        keys = state_dict.get(prefix + "queue.keys")
        if self.queue is None and self.size and keys is not None:
            self.queue = Queue(self.size, keys.shape[1]).to(self.seen.device, keys.dtype)
            self.queue.load_state_dict({name: state_dict[f"{prefix}queue.{name}"] for name in self.queue.state_dict()})
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _precision(like: Tensor) -> torch.dtype:
    """The type of keys that are compared with these embeddings."""
    return torch.promote_types(like.dtype, torch.float32)
