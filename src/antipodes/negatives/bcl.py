"""`BCL`: candidates weighed by how likely their rank makes them true negatives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional.contrast import Sums
from antipodes.negatives.policy import Needs, Policy
from antipodes.pairs import Pairs, Ranks, Rule

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
