"""Where a second pair of eyes comes from: vectors of samples in another space than that of the young encoder."""

from antipodes.guides.guide import GuideSource
from antipodes.guides.history import HistoryGuide
from antipodes.guides.network import MomentumGuide, NetworkGuide
from antipodes.guides.table import TableGuide
from antipodes.guides.towers import LaterGuide, MomentumKeys, RowGuides, RunGuide

__all__ = [
    "GuideSource",
    "HistoryGuide",
    "LaterGuide",
    "MomentumGuide",
    "MomentumKeys",
    "NetworkGuide",
    "RowGuides",
    "RunGuide",
    "TableGuide",
]
