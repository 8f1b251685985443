"""Policies: which candidates of an anchor count as negatives."""

from antipodes.negatives.fnc import FNC
from antipodes.negatives.glofnd import GloFND
from antipodes.negatives.oracle import Oracle
from antipodes.negatives.policy import Both, Policy

__all__ = ["FNC", "Both", "GloFND", "Oracle", "Policy"]
