"""Contrastive representation learning that gets the negatives right.

    >>> from antipodes import InfoNCE
    >>> loss_fn = InfoNCE(temperature=0.1)

The names below are imported when they are first used, so that `antipodes --help` does not wait for torch.
"""

from importlib import import_module

TYPE_CHECKING = False  # not from typing: `python -m antipodes` would look for a typing.py in the current folder first
if TYPE_CHECKING:
    from typing import Any

    from antipodes.auditing.audit import audit
    from antipodes.auditing.embedding import embed
    from antipodes.auditing.mining import mine
    from antipodes.auditing.neighbourhood import neighbours
    from antipodes.encoders.chunks import chunked
    from antipodes.encoders.loading import load
    from antipodes.evaluation.scoring import evaluate
    from antipodes.guides import HistoryGuide, MomentumGuide, NetworkGuide, TableGuide
    from antipodes.identity import content_ids
    from antipodes.losses import (
        Distillation,
        GlobalContrastive,
        Hardness,
        HardPairs,
        InfoNCE,
        LocalAggregation,
        OneWay,
        Refine,
        Sigmoid,
        Temperature,
        TwoWay,
    )
    from antipodes.negatives import (
        BCL,
        FNC,
        HCL,
        IFND,
        Cave,
        Chance,
        DatasetNeighbours,
        Debiased,
        GloFND,
        Guided,
        Hardest,
        Known,
        Oracle,
        Policy,
        PositiveAware,
        Ring,
        estimate_alpha,
    )
    from antipodes.pairs import Bounds, Group, Guide, Listed, Pairs, Ranks, Rule
    from antipodes.reporting.report import report
    from antipodes.runs.exporting import export
    from antipodes.state import SampleTable
    from antipodes.studies.comparison import compare
    from antipodes.studies.run import study
    from antipodes.training.loop import train

_HOMES = {
    "BCL": "negatives",
    "Bounds": "pairs",
    "Cave": "negatives",
    "Chance": "negatives",
    "Debiased": "negatives",
    "FNC": "negatives",
    "GloFND": "negatives",
    "GlobalContrastive": "losses",
    "Group": "pairs",
    "Guide": "pairs",
    "Distillation": "losses",
    "Guided": "negatives",
    "HCL": "negatives",
    "HardPairs": "losses",
    "Hardest": "negatives",
    "Hardness": "losses",
    "HistoryGuide": "guides",
    "IFND": "negatives",
    "InfoNCE": "losses",
    "Known": "negatives",
    "Listed": "pairs",
    "LocalAggregation": "losses",
    "MomentumGuide": "guides",
    "DatasetNeighbours": "negatives",
    "NetworkGuide": "guides",
    "OneWay": "losses",
    "Oracle": "negatives",
    "Pairs": "pairs",
    "Policy": "negatives",
    "PositiveAware": "negatives",
    "Ranks": "pairs",
    "Refine": "losses",
    "Ring": "negatives",
    "Rule": "pairs",
    "SampleTable": "state",
    "Sigmoid": "losses",
    "TableGuide": "guides",
    "Temperature": "losses",
    "TwoWay": "losses",
    "audit": "auditing.audit",
    "chunked": "encoders.chunks",
    "compare": "studies.comparison",
    "content_ids": "identity",
    "embed": "auditing.embedding",
    "estimate_alpha": "negatives",
    "evaluate": "evaluation.scoring",
    "export": "runs.exporting",
    "load": "encoders.loading",
    "mine": "auditing.mining",
    "neighbours": "auditing.neighbourhood",
    "report": "reporting.report",
    "study": "studies.run",
    "train": "training.loop",
}

_RENAMED = {"DCL": "Debiased", "GuideView": "Distillation", "Neighbours": "DatasetNeighbours"}

__all__ = [
    "BCL",
    "FNC",
    "HCL",
    "IFND",
    "Bounds",
    "Cave",
    "Chance",
    "DatasetNeighbours",
    "Debiased",
    "Distillation",
    "GloFND",
    "GlobalContrastive",
    "Group",
    "Guide",
    "Guided",
    "HardPairs",
    "Hardest",
    "Hardness",
    "HistoryGuide",
    "InfoNCE",
    "Known",
    "Listed",
    "LocalAggregation",
    "MomentumGuide",
    "NetworkGuide",
    "OneWay",
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
    "audit",
    "chunked",
    "compare",
    "content_ids",
    "embed",
    "estimate_alpha",
    "evaluate",
    "export",
    "load",
    "mine",
    "neighbours",
    "report",
    "study",
    "train",
]


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name in _RENAMED:
        raise AttributeError(f"antipodes.{name} is now called antipodes.{_RENAMED[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    dunder = [name for name in globals() if name.startswith("__")]
    return sorted([*dunder, "__version__", *__all__])
