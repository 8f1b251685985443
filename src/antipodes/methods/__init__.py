"""Methods (SimCLR, MoCo, SANE, HNSSL, CMC, CLIP, BYOL, PCL, ...): from a batch through towers to a loss."""

from antipodes.methods.batch import Batch, InputViews
from antipodes.methods.byol import BYOL
from antipodes.methods.clip import CLIP
from antipodes.methods.cmc import CMC
from antipodes.methods.hnssl import HNSSL
from antipodes.methods.imix import IMix
from antipodes.methods.instance import InstanceDiscrimination
from antipodes.methods.method import Method
from antipodes.methods.moco import MoCo
from antipodes.methods.pcl import PCL
from antipodes.methods.retrieval import Retrieval
from antipodes.methods.sane import SANE
from antipodes.methods.simclr import SimCLR
from antipodes.methods.simsiam import SimSiam
from antipodes.methods.swav import SwAV
from antipodes.methods.towers import Tower, TowerPlan, Towers

__all__ = [
    "BYOL",
    "CLIP",
    "CMC",
    "HNSSL",
    "PCL",
    "SANE",
    "Batch",
    "IMix",
    "InputViews",
    "InstanceDiscrimination",
    "Method",
    "MoCo",
    "Retrieval",
    "SimCLR",
    "SimSiam",
    "SwAV",
    "Tower",
    "TowerPlan",
    "Towers",
]
