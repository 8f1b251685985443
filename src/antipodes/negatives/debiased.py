"""`Debiased` and `HCL`: no candidate is left out, but the sum over them is corrected."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from antipodes.functional.contrast import Sums
from antipodes.negatives.debias import debias, harden
from antipodes.negatives.policy import Needs, Numbers, Policy
from antipodes.pairs import Pairs, Rule


class Debiased(Policy):
    """Debiased contrastive learning (Chuang et al. 2020): take the false negatives' expected part out of the sum.

    With S the sum of e^{s/tau} over the N kept candidates of an anchor and s+ its positive, the loss has instead of S

        S' = max( (S - N tau_plus e^{s+/tau}) / (1 - tau_plus),  N e^{-1/tau} )

    It finds no false negatives and keeps every candidate; joined with a policy that does, as in `Ring() & Debiased()`,
    the sum over those that remain is corrected. `at_floor` in the log is the share of anchors whose S' is the second of
    the two: nothing pushes them. At low temperatures e^{s+/tau} soon outweighs the sum and that is most of them (the
    paper has a temperature of 0.5).

    Args:
        tau_plus: Share of the candidates that are false negatives, about 1 / classes.

    Example:
        >>> from antipodes import InfoNCE
        >>> loss_fn = InfoNCE(temperature=0.5, negatives=Debiased(tau_plus=0.1))
    """

    needs = Needs(rows=False, positive=True, cosine=True, reweighs=True)

    def __init__(self, tau_plus: float = 0.1) -> None:
        super().__init__()
        if not 0 <= tau_plus < 1:
            raise ValueError(f"tau_plus must be in [0, 1), got {tau_plus}: it is the share of false negatives")
        self.tau_plus = tau_plus
        self._at_floor: float | Tensor = 0.0  # of the last step

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Keep every candidate."""
        return [Rule()]

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float | Tensor) -> Sums:
        """Replace S by S'."""
        return self._debias(sums.log_sum, pairs, sums, temperature)

    def statistics(self) -> Numbers:
        """The share of anchors that nothing pushes."""
        return {"at_floor": self._at_floor}

    def _debias(self, log_sum: Tensor, pairs: Pairs, sums: Sums, temperature: float | Tensor) -> Sums:
        debiased = debias(log_sum, sums.kept, pairs.positives, self.tau_plus, temperature)
        floor = sums.kept.to(log_sum.dtype).log() - 1 / temperature
        self._at_floor = (debiased.detach() <= floor).float().mean()
        return sums._replace(log_sum=debiased)


class HCL(Debiased):
    """Contrastive learning with hard negatives (Robinson et al. 2021): weigh candidates by their similarity, debiased.

    In Debiased's S' the sum over candidates becomes

        S = N sum_k w_k e^{s_k/tau} / sum_k w_k,    w_k = e^{beta s_k/tau}

    As in the authors' code, beta multiplies s/tau, not s, and gradients go through the weights. S is the ratio of two
    sums of the kernel, at temperatures tau / (1 + beta) and tau / beta; with beta = 1 the second is there already.
    beta = 0 is `Debiased`; with tau_plus = 0 too it is the plain loss.

    Args:
        tau_plus: Share of the candidates that are false negatives, about 1 / classes.
        beta: How much more the hard candidates weigh; towards infinity only the hardest counts.

    Example:
        >>> from antipodes import InfoNCE
        >>> loss_fn = InfoNCE(temperature=0.5, negatives=HCL(tau_plus=0.1, beta=1.0))
    """

    def __init__(self, tau_plus: float = 0.1, beta: float = 1.0) -> None:
        super().__init__(tau_plus)
        if not 0 <= beta < float("inf"):
            raise ValueError(f"beta must be at least 0 and finite, got {beta}: it is the weight of hardness")
        self.beta = beta

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float | Tensor) -> Sums:
        """Replace S by the weighted S'."""
        if self.beta == 0:
            return super().reweigh(pairs, rules, sums, temperature)
        weighted = pairs.contrast(temperature / (1 + self.beta), rules).log_sum
        weights = sums.log_sum if self.beta == 1 else pairs.contrast(temperature / self.beta, rules).log_sum
        return self._debias(harden(weighted, weights, sums.kept), pairs, sums, temperature)
