"""What the kernel's sums become: a loss."""

from antipodes.losses.base import LossModule
from antipodes.losses.distillation import Distillation
from antipodes.losses.global_contrastive import GlobalContrastive
from antipodes.losses.hard_pairs import HardPairs
from antipodes.losses.hardness import Hardness
from antipodes.losses.info_nce import InfoNCE
from antipodes.losses.local_aggregation import LocalAggregation
from antipodes.losses.loss import Loss, Reduction, Treatment, TreatmentName
from antipodes.losses.observation import Observation
from antipodes.losses.one_way import OneWay
from antipodes.losses.regression import Regression
from antipodes.losses.sigmoid import Sigmoid
from antipodes.losses.soft_label import SoftLabel, Targets
from antipodes.losses.soft_targets import Refine
from antipodes.losses.temperature import Temperature
from antipodes.losses.two_way import TwoWay, other_direction

__all__ = [
    "Distillation",
    "GlobalContrastive",
    "HardPairs",
    "Hardness",
    "InfoNCE",
    "LocalAggregation",
    "Loss",
    "LossModule",
    "Observation",
    "OneWay",
    "Reduction",
    "Refine",
    "Regression",
    "Sigmoid",
    "SoftLabel",
    "Targets",
    "Temperature",
    "Treatment",
    "TreatmentName",
    "TwoWay",
    "other_direction",
]
