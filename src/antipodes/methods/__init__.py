"""How views run through encoders: SimCLR and its kin, MoCo, instance discrimination, CMC, local aggregation, HNSSL."""

from antipodes.methods.cmc import CMC
from antipodes.methods.hnssl import HNSSL
from antipodes.methods.instance import InstanceDiscrimination
from antipodes.methods.local_aggregation import CMCAggregation, InstanceAggregation
from antipodes.methods.method import Method
from antipodes.methods.moco import MoCo, MoCoV1
from antipodes.methods.sane import SANE, SANEImageNet
from antipodes.methods.simclr import SimCLR, SogCLR, SupCon

__all__ = [
    "CMC",
    "HNSSL",
    "SANE",
    "CMCAggregation",
    "InstanceAggregation",
    "InstanceDiscrimination",
    "Method",
    "MoCo",
    "MoCoV1",
    "SANEImageNet",
    "SimCLR",
    "SogCLR",
    "SupCon",
]
