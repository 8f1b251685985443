"""How views run through encoders: SimCLR, SogCLR, SupCon, MoCo, SANE, instance discrimination, CMC."""

from antipodes.methods.cmc import CMC
from antipodes.methods.instance import InstanceDiscrimination
from antipodes.methods.method import Method
from antipodes.methods.moco import MoCo, MoCoV1
from antipodes.methods.sane import SANE, SANEImageNet
from antipodes.methods.simclr import SimCLR, SogCLR, SupCon

__all__ = [
    "CMC",
    "SANE",
    "InstanceDiscrimination",
    "Method",
    "MoCo",
    "MoCoV1",
    "SANEImageNet",
    "SimCLR",
    "SogCLR",
    "SupCon",
]
