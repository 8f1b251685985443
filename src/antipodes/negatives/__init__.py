"""Policies: which candidates of an anchor count as negatives."""

from antipodes.negatives.alpha import AlphaEstimates, SampleAlphas, estimate_alpha
from antipodes.negatives.bcl import BCL
from antipodes.negatives.cave import Cave
from antipodes.negatives.chance import Chance
from antipodes.negatives.clustered import Clustered
from antipodes.negatives.dataset_neighbours import DatasetNeighbours
from antipodes.negatives.debiased import HCL, Debiased
from antipodes.negatives.flags import Flags
from antipodes.negatives.fnc import FNC
from antipodes.negatives.glofnd import GloFND
from antipodes.negatives.guided import Guided
from antipodes.negatives.hardest import Hardest
from antipodes.negatives.ifnd import IFND
from antipodes.negatives.known import Known
from antipodes.negatives.oracle import Oracle
from antipodes.negatives.policy import Both, Policy
from antipodes.negatives.positive_aware import PositiveAware
from antipodes.negatives.ring import Ring

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
