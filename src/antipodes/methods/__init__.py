"""Methods (SimCLR, MoCo, SANE, instance discrimination, CMC, HNSSL, CLIP): from a batch through towers to a loss."""

from antipodes.methods.batch import Batch, Inputs
from antipodes.methods.clip import CLIP
from antipodes.methods.cmc import CMC
from antipodes.methods.hnssl import HNSSL
from antipodes.methods.instance import InstanceDiscrimination
from antipodes.methods.method import Method
from antipodes.methods.moco import MoCo
from antipodes.methods.sane import SANE
from antipodes.methods.simclr import SimCLR
from antipodes.methods.towers import Tower, TowerPlan, Towers

__all__ = [
    "CLIP",
    "CMC",
    "HNSSL",
    "SANE",
    "Batch",
    "Inputs",
    "InstanceDiscrimination",
    "Method",
    "MoCo",
    "SimCLR",
    "Tower",
    "TowerPlan",
    "Towers",
]
