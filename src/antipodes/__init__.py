"""Contrastive representation learning that gets the negatives right.

    >>> from antipodes import InfoNCE
    >>> loss_fn = InfoNCE(temperature=0.1)

The names below are imported when they are first used, so that `antipodes --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antipodes.encoders.loading import load
    from antipodes.negatives import DCL, FNC, HCL, IFND, Cave, GloFND, Hardest, Oracle, Policy, Ring
    from antipodes.objectives import GlobalContrastive, HardPairs, InfoNCE, LocalAggregation, Refine
    from antipodes.pairs import Group, Listed, Pairs, Ranks, Rule
    from antipodes.state import SampleTable

_HOMES = {
    "Cave": "negatives",
    "DCL": "negatives",
    "FNC": "negatives",
    "GlobalContrastive": "objectives",
    "GloFND": "negatives",
    "Group": "pairs",
    "HCL": "negatives",
    "HardPairs": "objectives",
    "Hardest": "negatives",
    "IFND": "negatives",
    "InfoNCE": "objectives",
    "Listed": "pairs",
    "LocalAggregation": "objectives",
    "Oracle": "negatives",
    "Pairs": "pairs",
    "Policy": "negatives",
    "Ranks": "pairs",
    "Refine": "objectives",
    "Ring": "negatives",
    "Rule": "pairs",
    "SampleTable": "state",
    "load": "encoders.loading",
}

__all__ = [
    "DCL",
    "FNC",
    "HCL",
    "IFND",
    "Cave",
    "GloFND",
    "GlobalContrastive",
    "Group",
    "HardPairs",
    "Hardest",
    "InfoNCE",
    "Listed",
    "LocalAggregation",
    "Oracle",
    "Pairs",
    "Policy",
    "Ranks",
    "Refine",
    "Ring",
    "Rule",
    "SampleTable",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
