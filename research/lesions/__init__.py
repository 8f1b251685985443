"""Variants of policies, losses and methods that only a study needs, by dotted path: `research.lesions.SharedGloFND`.

They are lesions of a paper, which leave a part out to show what it is worth, and details of the authors' code in which
it differs from their paper.
"""

from research.lesions.losses import PerViewGlobalContrastive, RescaledInfoNCE, RestartingGlobalContrastive
from research.lesions.methods import CrossEntropy, TargetGradientHNSSL
from research.lesions.negatives import (
    HeldIFND,
    NoisyOracle,
    PerClusterIFND,
    QuantileFNC,
    SharedGloFND,
    StaircaseRing,
    WindowRing,
)

__all__ = [
    "CrossEntropy",
    "HeldIFND",
    "NoisyOracle",
    "PerClusterIFND",
    "PerViewGlobalContrastive",
    "QuantileFNC",
    "RescaledInfoNCE",
    "RestartingGlobalContrastive",
    "SharedGloFND",
    "StaircaseRing",
    "TargetGradientHNSSL",
    "WindowRing",
]
