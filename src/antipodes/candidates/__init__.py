"""Where negatives come from: the batch, another modality, a queue, a bank."""

from antipodes.candidates.bank import MemoryBank
from antipodes.candidates.batch import batch_pairs
from antipodes.candidates.cross import cross_pairs
from antipodes.candidates.queue import Queue

__all__ = ["MemoryBank", "Queue", "batch_pairs", "cross_pairs"]
