"""What the kernel's sums become: a loss."""

from antipodes.objectives.global_contrastive import GlobalContrastive
from antipodes.objectives.hard_pairs import HardPairs
from antipodes.objectives.info_nce import InfoNCE
from antipodes.objectives.local_aggregation import LocalAggregation
from antipodes.objectives.objective import Objective, Refine, Treatment, TreatmentName
from antipodes.objectives.soft_label import SoftLabel, Targets

__all__ = [
    "GlobalContrastive",
    "HardPairs",
    "InfoNCE",
    "LocalAggregation",
    "Objective",
    "Refine",
    "SoftLabel",
    "Targets",
    "Treatment",
    "TreatmentName",
]
