"""Policies: which candidates of an anchor count as negatives."""

from antipodes.negatives.cave import Cave
from antipodes.negatives.clustered import Clustered
from antipodes.negatives.debiased import DCL, HCL
from antipodes.negatives.fnc import FNC
from antipodes.negatives.glofnd import GloFND
from antipodes.negatives.hardest import Hardest
from antipodes.negatives.ifnd import IFND
from antipodes.negatives.oracle import Oracle
from antipodes.negatives.policy import Both, Policy
from antipodes.negatives.ring import Ring

__all__ = ["DCL", "FNC", "HCL", "IFND", "Both", "Cave", "Clustered", "GloFND", "Hardest", "Oracle", "Policy", "Ring"]
