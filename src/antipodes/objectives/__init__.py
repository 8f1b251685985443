"""What the kernel's sums become: a loss."""

from antipodes.objectives.base import LossModule
from antipodes.objectives.global_contrastive import GlobalContrastive
from antipodes.objectives.guide_view import GuideView
from antipodes.objectives.hard_pairs import HardPairs
from antipodes.objectives.info_nce import InfoNCE
from antipodes.objectives.local_aggregation import LocalAggregation
from antipodes.objectives.objective import Objective, Reduction, Treatment, TreatmentName
from antipodes.objectives.observation import Observation
from antipodes.objectives.refinery import Refine
from antipodes.objectives.sigmoid import Sigmoid
from antipodes.objectives.soft_label import SoftLabel, Targets
from antipodes.objectives.temperature import Temperature
from antipodes.objectives.two_way import TwoWay, other_direction

__all__ = [
    "GlobalContrastive",
    "GuideView",
    "HardPairs",
    "InfoNCE",
    "LocalAggregation",
    "LossModule",
    "Objective",
    "Observation",
    "Reduction",
    "Refine",
    "Sigmoid",
    "SoftLabel",
    "Targets",
    "Temperature",
    "Treatment",
    "TreatmentName",
    "TwoWay",
    "other_direction",
]
