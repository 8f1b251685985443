"""Contrastive representation learning that gets the negatives right.

    >>> from antipodes import InfoNCE
    >>> loss_fn = InfoNCE(temperature=0.1)

The names below are imported when they are first used, so that `antipodes --help` does not wait for torch.
"""

from importlib import import_module

TYPE_CHECKING = False  # not from typing: `python -m antipodes` would look for a typing.py in the current folder first
if TYPE_CHECKING:
    from typing import Any

    from antipodes.encoders.loading import load
    from antipodes.guides import HistoryGuide, MomentumGuide, NetworkGuide, TableGuide
    from antipodes.negatives import (
        BCL,
        DCL,
        FNC,
        HCL,
        IFND,
        Cave,
        Chance,
        GloFND,
        Guided,
        Hardest,
        Known,
        Neighbours,
        Oracle,
        Policy,
        PositiveAware,
        Ring,
        estimate_alpha,
    )
    from antipodes.objectives import (
        GlobalContrastive,
        GuideView,
        HardPairs,
        InfoNCE,
        LocalAggregation,
        Refine,
        Sigmoid,
        Temperature,
        TwoWay,
    )
    from antipodes.pairs import Bounds, Group, Guide, Listed, Pairs, Ranks, Rule
    from antipodes.state import SampleTable

_HOMES = {
    "BCL": "negatives",
    "Bounds": "pairs",
    "Cave": "negatives",
    "Chance": "negatives",
    "DCL": "negatives",
    "FNC": "negatives",
    "GloFND": "negatives",
    "GlobalContrastive": "objectives",
    "Group": "pairs",
    "Guide": "pairs",
    "GuideView": "objectives",
    "Guided": "negatives",
    "HCL": "negatives",
    "HardPairs": "objectives",
    "Hardest": "negatives",
    "HistoryGuide": "guides",
    "IFND": "negatives",
    "InfoNCE": "objectives",
    "Known": "negatives",
    "Listed": "pairs",
    "LocalAggregation": "objectives",
    "MomentumGuide": "guides",
    "Neighbours": "negatives",
    "NetworkGuide": "guides",
    "Oracle": "negatives",
    "Pairs": "pairs",
    "Policy": "negatives",
    "PositiveAware": "negatives",
    "Ranks": "pairs",
    "Refine": "objectives",
    "Ring": "negatives",
    "Rule": "pairs",
    "SampleTable": "state",
    "Sigmoid": "objectives",
    "TableGuide": "guides",
    "Temperature": "objectives",
    "TwoWay": "objectives",
    "estimate_alpha": "negatives",
    "load": "encoders.loading",
}

__all__ = [
    "BCL",
    "DCL",
    "FNC",
    "HCL",
    "IFND",
    "Bounds",
    "Cave",
    "Chance",
    "GloFND",
    "GlobalContrastive",
    "Group",
    "Guide",
    "GuideView",
    "Guided",
    "HardPairs",
    "Hardest",
    "HistoryGuide",
    "InfoNCE",
    "Known",
    "Listed",
    "LocalAggregation",
    "MomentumGuide",
    "Neighbours",
    "NetworkGuide",
    "Oracle",
    "Pairs",
    "Policy",
    "PositiveAware",
    "Ranks",
    "Refine",
    "Ring",
    "Rule",
    "SampleTable",
    "Sigmoid",
    "TableGuide",
    "Temperature",
    "TwoWay",
    "estimate_alpha",
    "load",
]


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
