"""Policies: which candidates of an anchor count as negatives."""

from antipodes.negatives.oracle import Oracle
from antipodes.negatives.policy import Both, Policy

__all__ = ["Both", "Oracle", "Policy"]
