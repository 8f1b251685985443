"""How views run through encoders: SimCLR, SogCLR, SupCon, MoCo, instance discrimination, CMC, HNSSL."""

from antipodes.methods.cmc import CMC
from antipodes.methods.hnssl import HNSSL
from antipodes.methods.instance import InstanceDiscrimination
from antipodes.methods.method import Method
from antipodes.methods.moco import MoCo, MoCoV1
from antipodes.methods.simclr import SimCLR, SogCLR, SupCon

__all__ = ["CMC", "HNSSL", "InstanceDiscrimination", "Method", "MoCo", "MoCoV1", "SimCLR", "SogCLR", "SupCon"]
