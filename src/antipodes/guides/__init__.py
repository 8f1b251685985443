"""Guides: a second opinion about which samples are alike, as vectors in a space other than the trained encoder's.

Sources of guide vectors, for any training loop: `TableGuide` (vectors computed beforehand), `NetworkGuide` (a frozen
network), `MomentumGuide` (a slowly moving copy of the trained network) and `HistoryGuide` (the mean of a sample's
earlier embeddings). `RunGuide` joins the sources of a training run's towers; `MomentumKeyGuide` is MoCo's momentum
network.
"""

from antipodes.guides.guide import GuideSource
from antipodes.guides.history import HistoryGuide
from antipodes.guides.network import MomentumGuide, NetworkGuide
from antipodes.guides.run_guide import MomentumKeyGuide, RunGuide
from antipodes.guides.table import TableGuide

__all__ = [
    "GuideSource",
    "HistoryGuide",
    "MomentumGuide",
    "MomentumKeyGuide",
    "NetworkGuide",
    "RunGuide",
    "TableGuide",
]
