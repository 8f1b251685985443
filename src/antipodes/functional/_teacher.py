"""`Teacher`: how much each false negative is pulled, by its similarity to the anchor in a teacher's space."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Teacher:
    """The weights w_ik = exp(t_i . k_k / T - reference_i) of pulled pairs, at most 1, as constants.

    Attributes:
        vectors: (A, G) the teacher's vector t of every anchor, divided by the teacher's temperature T.
        candidates: (C, G) the candidates k as the teacher sees them; a zero vector is unknown and weighs 0.
        reference: (R, A) what weights are relative to, by rule; infinite for an anchor whose weights are all 0.
    """

    vectors: Tensor
    candidates: Tensor
    reference: Tensor

    def of_candidates(self, positions: Tensor) -> Teacher:
        """Return the teacher for the candidates at these positions."""
        return replace(self, candidates=self.candidates[positions])

    def logits(self, rows: slice, columns: slice, out: Tensor) -> Tensor:
        """Return t_i . k_k / T (h, w) of some anchors and candidates."""
        return torch.mm(self.vectors[rows], self.candidates[columns].T, out=out)

    def weights(self, rule: int, rows: slice, columns: slice, out: Tensor) -> Tensor:
        """Return the weights (h, w) of some anchors and candidates under a rule."""
        said = self.logits(rows, columns, out).sub_(self.reference[rule, rows, None])
        known = self.candidates[columns].any(1).to(said.dtype)
        return said.clamp_(max=0.0).exp_().mul_(known)
