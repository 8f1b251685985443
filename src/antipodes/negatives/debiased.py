"""`Debiased`, `HCL` and `BCL`: every candidate stays, and the sum over them is corrected."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional.contrast import Sums
from antipodes.negatives.policy import Needs, Numbers, Policy
from antipodes.pairs import Pairs, Ranks, Rule


def debias(log_sum: Tensor, kept: Tensor, positives: Tensor, tau_plus: float, temperature: float | Tensor) -> Tensor:
    """Debiased's estimate of the sum over true negatives: take away what the share `tau_plus` of positives adds to it.

        S' = max( (S - N tau_plus e^{s+/tau}) / (1 - tau_plus),  N e^{-1/tau} )

    The second is the smallest sum that N cosines can have. There the gradient ends.

    Args:
        log_sum: (R, A) logs of the sums S of e^{s/tau}.
        kept: (R, A) their numbers of terms N; without any, the result is -inf, with zero gradient.
        positives: (A,) similarities to the positives.
        tau_plus: share of the candidates that are positives.
        temperature: tau.

    Returns:
        (R, A) log S', with gradients to log_sum and positives.

    Example:
        >>> debias(torch.tensor([[3.0]]), torch.tensor([[5]]), torch.tensor([0.5]), 0.0, 0.5)
        tensor([[3.]])
    """
    if tau_plus == 0:
        return log_sum
    empty = kept == 0
    log_sum = log_sum.masked_fill(empty, 0.0)
    count = kept.clamp(min=1).to(log_sum.dtype).log()
    taken = math.log(tau_plus) + count + positives / temperature - log_sum  # the log of the share of S that goes
    floor = count - 1 / temperature
    rest = (-torch.expm1(taken.where(taken < 0, -1.0))).log()
    debiased = (log_sum + rest - math.log1p(-tau_plus)).where(taken < 0, floor)
    return torch.maximum(debiased, floor).masked_fill(empty, -torch.inf)


def harden(weighted: Tensor, weights: Tensor, kept: Tensor) -> Tensor:
    """HCL's sum over negatives that are drawn by their weights: log( N sum_k w_k e^{s_k/tau} / sum_k w_k ).

    Args:
        weighted: (R, A) logs of the sums of w e^{s/tau}.
        weights: (R, A) logs of the sums of w.
        kept: (R, A) their numbers of terms N; without any, the result is -inf, with zero gradient.

    Returns:
        (R, A), with gradients to both.

    Example:
        >>> harden(torch.tensor([[2.0]]), torch.tensor([[1.5]]), torch.tensor([[1]]))
        tensor([[0.5000]])
    """
    empty = kept == 0
    count = kept.clamp(min=1).to(weighted.dtype).log()
    mean = weighted.masked_fill(empty, 0.0) - weights.masked_fill(empty, 0.0)
    return (mean + count).masked_fill(empty, -torch.inf)


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


MOST_BANDS = 4096  # each is a rule of its own


class BCL(Policy):
    """Bayesian contrastive learning (Liu, Wang and Li 2023): debias and mine by the rank of a candidate.

    alpha is the chance that a false negative is more similar than a true one. With F a distribution of similarities,
    the two kinds are then distributed like the densities

        true:  2 alpha (1 - F) + 2 (1 - alpha) F        false:  2 (1 - alpha) (1 - F) + 2 alpha F

    and all candidates like their mixture with shares 1 - tau_plus and tau_plus, which gives F of a candidate's rank. In
    the sum over candidates each weighs the density of hard true negatives over that mixture, where beta moves true
    negatives towards the hard ones; beta = 0.5 only corrects the bias.

    The weight is taken to be constant within each of `bands` bands of equally many ranks, so that the kernel sums band
    by band and no matrix of weights exists; with as many bands as candidates it is the paper's weight. Ranks are those
    among all candidates, also where another policy leaves some of them out.

    Args:
        tau_plus: Share of the candidates that are false negatives, about 1 / classes.
        alpha: In [0.5, 1): how well similarities tell the two kinds apart; 0.5 not at all.
        beta: In [0.5, 1]: how much hard negatives are preferred.
        bands: In how many steps the weight follows the rank.

    Example:
        >>> from antipodes import InfoNCE
        >>> loss_fn = InfoNCE(temperature=0.5, negatives=BCL(tau_plus=0.1, alpha=0.8, beta=0.8))
    """

    needs = Needs(rows=False, reweighs=True)

    def __init__(self, tau_plus: float = 0.1, alpha: float = 0.8, beta: float = 0.8, bands: int = 16) -> None:
        super().__init__()
        if not 0 <= tau_plus < 1:
            raise ValueError(f"tau_plus must be in [0, 1), got {tau_plus}: it is the share of false negatives")
        if not 0.5 <= alpha < 1:
            raise ValueError(f"alpha must be in [0.5, 1), got {alpha}: it is how well similarities tell the two apart")
        if not 0.5 <= beta <= 1:
            raise ValueError(f"beta must be in [0.5, 1], got {beta}: it is the preference for hard negatives")
        if not 1 <= bands <= MOST_BANDS:
            raise ValueError(f"bands must be in 1..{MOST_BANDS}, got {bands}: it is the number of steps of the weight")
        self.tau_plus, self.alpha, self.beta, self.bands = tau_plus, alpha, beta, bands

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Keep every candidate."""
        return [Rule()]

    def weight(self, share_below: float) -> float:
        """The weight of a candidate that this share of the candidates is less similar than.

        Example:
            >>> BCL(tau_plus=0.1, alpha=0.5, beta=0.5).weight(0.9)  # nothing is known: all weigh the same
            1.0
        """
        alpha, beta, true = self.alpha, self.beta, 1 - self.tau_plus
        # F of the candidates: the root of quadratic F^2 + linear F = share_below
        quadratic = (1 - 2 * alpha) * (true - self.tau_plus)
        linear = 2 * (alpha * true + (1 - alpha) * self.tau_plus)
        root = math.sqrt(max(0.0, linear**2 + 4 * quadratic * share_below))
        place = 2 * share_below / (linear + root)
        mixture = true * (alpha * (1 - place) + (1 - alpha) * place)
        mixture += self.tau_plus * ((1 - alpha) * (1 - place) + alpha * place)
        easy, hard = alpha * (1 - beta), (1 - alpha) * beta
        return (easy * (1 - place) + hard * place) / (easy + hard) / mixture

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float | Tensor) -> Sums:
        """Replace the sum by the weighted sum over bands of ranks, the most similar first."""
        edges = [number / self.bands for number in range(self.bands + 1)]
        bands = [Rule(ranks=(Ranks(edges[number], edges[number + 1]),)) for number in range(self.bands)]
        parts = pairs.contrast(temperature, [rule & band for rule in rules for band in bands]).log_sum
        weights = [self.weight(1 - (number + 0.5) / self.bands) for number in range(self.bands)]
        log_weights = torch.tensor(weights, dtype=torch.float64, device=parts.device).log().to(parts.dtype)
        weighed = parts.view(len(rules), self.bands, -1) + log_weights[:, None]
        empty = sums.kept == 0  # a sum without terms has no gradient
        total = weighed.masked_fill(empty[:, None], 0.0).logsumexp(1)
        return sums._replace(log_sum=total.masked_fill(empty, -math.inf))
