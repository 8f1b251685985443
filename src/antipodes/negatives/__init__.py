"""Policies: which candidates of an anchor count as negatives."""

from antipodes.negatives.alpha import AlphaEstimates, SampleAlphas, estimate_alpha
from antipodes.negatives.clustered import Cave, Clustered
from antipodes.negatives.controls import Chance, Oracle
from antipodes.negatives.dataset_neighbours import DatasetNeighbours
from antipodes.negatives.debiased import BCL, HCL, Debiased
from antipodes.negatives.flags import Flags
from antipodes.negatives.fnc import FNC
from antipodes.negatives.glofnd import GloFND
from antipodes.negatives.ifnd import IFND
from antipodes.negatives.known import Known
from antipodes.negatives.policy import Both, Policy
from antipodes.negatives.positive_bound import Guided, PositiveAware
from antipodes.negatives.ranked import Hardest, Ring

__all__ = [
    "BCL",
    "FNC",
    "HCL",
    "IFND",
    "AlphaEstimates",
    "Both",
    "Cave",
    "Chance",
    "Clustered",
    "DatasetNeighbours",
    "Debiased",
    "Flags",
    "GloFND",
    "Guided",
    "Hardest",
    "Known",
    "Oracle",
    "Policy",
    "PositiveAware",
    "Ring",
    "SampleAlphas",
    "estimate_alpha",
]
