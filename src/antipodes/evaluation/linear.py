"""The linear probe: L2-regularised multinomial logistic regression on frozen features.

1. Hold out a fifth of every class of the training set.
2. Fit along a path of strengths, from strong to weak, each fit starting at the last one's solution;
   keep the strength with the highest accuracy on the held-out fifth. The test set has no influence.
3. Fit again on all of the training set with that strength, and score on the test set.

Features stay in the precision in which they are given. Sums over samples are made in float64, block by block, so that
a million images with 2,048 features need no copy in float64.

The objective is mean cross-entropy + strength / 2 * ||weight||^2 on features standardised by the training set's
mean and deviation, without a penalty on the bias. It is convex, so all optimisers reach the same minimum.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from antipodes.evaluation.accuracy import Accuracy, accuracy
from antipodes.evaluation.features import stratified_split
from antipodes.functional.feature_quality import check_features, check_pair, number_classes

# Half decades from 10 to 10^-6, wide on both sides of the optima of features tried so far (0.01 to 0.3).
STRENGTHS = tuple(10 ** (1 - step / 2) for step in range(15))
# The path ends after this many strengths in a row that improve neither accuracy nor loss: weak ones are slow to fit.
# The loss counts too, because strong penalties may all predict the most frequent class, with equal accuracy.
PATIENCE = 3
BLOCK_ELEMENTS = 2**26
"""Numbers of features that are in memory as float64 at once, half a gigabyte."""


@dataclass(frozen=True)
class Classifier:
    """A linear classifier (weight (K, F), bias (K,)) of features standardised by mean (F,) and std (F,), float64."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Score features (n, F) for every class: (n, K)."""
        blocks = features.split(max(1, BLOCK_ELEMENTS // features.shape[1]))
        return torch.cat(
            [torch.addmm(self.bias, (block.double() - self.mean) / self.std, self.weight.T) for block in blocks]
        )


@dataclass(frozen=True)
class LinearResult:
    """Accuracies on test, the chosen strength, and the accuracy of each strength on the held-out part of train."""

    accuracy: Accuracy
    strength: float
    validation: dict[float, float]


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    strength: float,
    classes: int,
    initial: Classifier | None = None,
    *,
    tolerance: float = 1e-5,
    max_iterations: int = 2000,
) -> Classifier:
    """Fit a logistic regression by L-BFGS in float64, until no entry of the gradient exceeds the tolerance.

    scikit-learn's ``LogisticRegression(C=1 / (strength * n))`` has the same minimum on the standardised features.

    Args:
        features: (n, F) float.
        labels: (n,) int in 0..classes-1, every class at least once.
        strength: of the L2 penalty, above 0.
        classes: number of classes K, at least 2.
        initial: where to start; at zero by default.
        tolerance: largest absolute entry of the gradient to stop at.
        max_iterations: of L-BFGS; a warning says when it ends the fit.

    Raises:
        ValueError: if an argument is out of its range, a class has no sample, or a feature is not finite.
    """
    _check_fit(features, labels, strength, classes)
    objective = _Objective(features.detach(), labels, strength, classes, initial)
    optimiser = torch.optim.LBFGS(
        [objective.weight, objective.bias],
        max_iter=max_iterations,
        tolerance_grad=tolerance,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    optimiser.step(objective)
    objective()
    slope = objective.slope()
    if slope > tolerance:
        warnings.warn(
            f"the logistic regression of strength {strength:g} stopped at a gradient of {slope:.1e}, above the "
            f"tolerance {tolerance:.1e}, after {max_iterations} iterations at most: raise the strength or either limit",
            stacklevel=2,
        )
    return Classifier(objective.weight.detach(), objective.bias.detach(), objective.mean, objective.std)


def _check_fit(features: Tensor, labels: Tensor, strength: float, classes: int) -> None:
    """Refuse what no logistic regression can be fitted to."""
    check_features(features, labels, "train")
    if not (strength > 0 and math.isfinite(strength)):
        raise ValueError(f"strength must be above 0, got {strength}: without a penalty the weights need not be finite")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ValueError(f"labels must be in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}")
    counts = torch.bincount(labels, minlength=classes)
    if classes < 2 or not counts.all():
        raise ValueError(
            f"a linear classifier needs at least two classes with samples of each, got samples per class "
            f"{counts[:10].tolist()}: add labelled samples or re-number the labels"
        )


class _Objective:
    """Mean cross-entropy + strength / 2 * ||weight||^2 of a linear classifier, and its gradient, block by block.

    Args:
        features: (n, F) float.
        labels: (n,) int in 0..classes-1.
        strength: of the L2 penalty.
        classes: number of classes K.
        initial: where to start; at zero by default.
    """

    def __init__(
        self, features: Tensor, labels: Tensor, strength: float, classes: int, initial: Classifier | None
    ) -> None:
        self.features, self.labels, self.strength = features, labels, strength
        self.mean, std = _mean_and_std(features)
        self.std = torch.where(
            std > 1e-7 * self.mean.abs(), std, 1.0
        )  # a feature that never varies becomes 0, not noise
        self.rows = max(1, BLOCK_ELEMENTS // features.shape[1])
        zeros = self.mean.new_zeros(classes, features.shape[1])
        self.weight = zeros if initial is None else initial.weight.clone()
        self.bias = torch.zeros_like(zeros[:, 0]) if initial is None else initial.bias.clone()
        self._whole = self._block(slice(None)) if len(features) <= self.rows else None  # one block stays in memory

    def _block(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return standardised features (b, F) and one-hot labels (K, b) of some rows.

        Classes come first: softmax over the leading dimension is vectorised, over a short last one it is not.
        """
        targets = one_hot(self.labels[part].long(), len(self.bias)).T
        inputs = (self.features[part].double() - self.mean) / self.std
        return inputs, targets.to(self.mean.dtype, memory_format=torch.contiguous_format)

    def __call__(self) -> float:
        """Return the value at the current weights, with the gradient in their `grad`."""
        count = len(self.features)
        self.weight.grad, self.bias.grad = self.strength * self.weight, torch.zeros_like(self.bias)
        fit = 0.0
        for start in range(0, count, self.rows):
            inputs, targets = self._whole or self._block(slice(start, start + self.rows))
            log_probabilities = torch.addmm(self.bias[:, None], self.weight, inputs.T).log_softmax(0)
            residuals = (log_probabilities.exp() - targets) / count
            self.weight.grad.addmm_(residuals, inputs)
            self.bias.grad += residuals.sum(1)
            fit -= float((log_probabilities * targets).sum()) / count
        return fit + float(self.strength / 2 * self.weight.square().sum())

    def slope(self) -> float:
        """Return the largest absolute entry of the gradient."""
        assert self.weight.grad is not None
        assert self.bias.grad is not None
        return max(float(self.weight.grad.abs().max()), float(self.bias.grad.abs().max()))


def _mean_and_std(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation (F,) of features (n, F) in float64, block by block."""
    blocks = features.split(max(1, BLOCK_ELEMENTS // features.shape[1]))
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(features)
    squared = torch.stack([(block.double() - mean).square().sum(0) for block in blocks]).sum(0)
    return mean, (squared / len(features)).sqrt()


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    strengths: Sequence[float] = STRENGTHS,
    seed: int = 0,
) -> LinearResult:
    """Measure how well a linear classifier on frozen features does on test.

    Args:
        train_features: (n, F) float.
        train_labels: (n,) int; the numbers need not be without gaps.
        test_features: (m, F) float.
        test_labels: (m,) int, of classes that train has.
        strengths: to choose from on a held-out fifth of train; a single one is used as it is.
        seed: of the choice of that fifth.

    Raises:
        ValueError: if shapes do not fit, a feature is not finite, train has fewer than two classes or lacks
            one that test has, or there is a strength to choose but no class with two samples to hold one out.

    Example:
        >>> features, labels = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
        >>> linear_probe(features, labels, features, labels).accuracy.top1
        1.0
    """
    check_pair(train_features, train_labels, test_features, test_labels)
    if not strengths:
        raise ValueError("strengths is empty: give at least one")
    train_features, test_features = train_features.detach(), test_features.detach()
    train_labels, test_labels, classes = number_classes(train_labels, test_labels)
    validation: dict[float, float] = {}
    best, start = strengths[0], None
    if len(strengths) > 1:
        kept, held = stratified_split(train_labels, 0.2, seed)
        classifier, lowest_loss, idle = None, math.inf, 0
        for strength in sorted(strengths, reverse=True):
            classifier = fit_logistic(train_features[kept], train_labels[kept], strength, classes, classifier)
            logits = classifier.logits(train_features[held])
            loss = float(cross_entropy(logits, train_labels[held]))
            validation[strength] = float((logits.argmax(1) == train_labels[held]).double().mean())
            better = start is None or validation[strength] > validation[best]
            if better:
                best, start = strength, classifier
            idle = 0 if better or loss < lowest_loss else idle + 1
            lowest_loss = min(lowest_loss, loss)
            if idle == PATIENCE or validation[best] == 1:
                break
    classifier = fit_logistic(train_features, train_labels, best, classes, start)
    return LinearResult(accuracy(classifier.logits(test_features), test_labels), best, validation)
