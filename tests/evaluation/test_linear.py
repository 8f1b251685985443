import math
import warnings

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy

from antipodes.evaluation import linear
from antipodes.evaluation.linear import PATIENCE, STRENGTHS, Classifier, fit_logistic, linear_probe


def blobs(count: int, features: int, classes: int, *, spread: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes around random means, with correlated features of unequal scale and offset."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    means = torch.randn(classes, features, generator=generator)
    points = means[labels] + spread * torch.randn(count, features, generator=generator)
    mixing = torch.randn(features, features, generator=generator) * torch.logspace(-1, 1, features)
    return points @ mixing + 3, labels


def loss_fn(classifier: Classifier, features: Tensor, labels: Tensor, strength: float) -> float:
    penalty = strength / 2 * classifier.weight.square().sum()
    return float(cross_entropy(classifier.logits(features), labels) + penalty)


@pytest.mark.parametrize("strength", [1e-1, 1e-3])
@pytest.mark.parametrize("classes", [2, 4])
def test_agrees_with_scikit_learn(strength: float, classes: int) -> None:
    features, labels = blobs(200, 6, classes)
    found = fit_logistic(features, labels, strength, classes, tolerance=1e-8)
    standardised = ((features.double() - found.mean) / found.std).numpy()
    C = 1 / (strength * len(labels))
    if classes == 2:  # scikit-learn's binary model has one vector w: ours are w/2 and -w/2, with half its penalty
        reference = LogisticRegression(C=2 * C, tol=1e-10, max_iter=10_000).fit(standardised, labels)
        weight = torch.tensor(reference.coef_) * torch.tensor([[-0.5], [0.5]])
        bias = torch.tensor(reference.intercept_) * torch.tensor([-0.5, 0.5])
    else:
        reference = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(standardised, labels)
        weight, bias = torch.tensor(reference.coef_), torch.tensor(reference.intercept_)
    theirs = Classifier(weight, bias, found.mean, found.std)
    torch.testing.assert_close(found.weight, weight, rtol=1e-4, atol=1e-5)
    # Only differences of biases matter.
    torch.testing.assert_close(found.bias - found.bias.mean(), bias - bias.mean(), rtol=1e-4, atol=1e-5)
    ours = loss_fn(found, features, labels, strength)
    assert ours == pytest.approx(loss_fn(theirs, features, labels, strength), abs=1e-9)


def test_gradient_vanishes_at_the_solution() -> None:
    features, labels = blobs(100, 5, 3)
    found = fit_logistic(features, labels, 1e-2, 3, tolerance=1e-6)
    weight, bias = found.weight.clone().requires_grad_(), found.bias.clone().requires_grad_()
    moving = Classifier(weight, bias, found.mean, found.std)
    loss = cross_entropy(moving.logits(features), labels) + 1e-2 / 2 * weight.square().sum()
    assert all(slope.abs().max() <= 1e-6 + 1e-12 for slope in torch.autograd.grad(loss, [weight, bias]))


def test_solution_by_hand() -> None:
    """One feature at -1 and 1: with w = w1 - w0 the loss is log(1 + exp(-w)) + strength / 4 * w^2."""
    found = fit_logistic(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), 0.1, 2, tolerance=1e-9)
    margin = float(found.weight[1] - found.weight[0])
    assert 0.1 / 2 * margin == pytest.approx(1 / (1 + math.exp(margin)), abs=1e-8)


def test_starting_elsewhere_ends_at_the_same_place_and_keeps_the_start() -> None:
    features, labels = blobs(150, 5, 3)
    cold = fit_logistic(features, labels, 1e-3, 3, tolerance=1e-8)
    start = fit_logistic(features, labels, 1.0, 3)
    kept = start.weight.clone()
    warm = fit_logistic(features, labels, 1e-3, 3, start, tolerance=1e-8)
    torch.testing.assert_close(warm.weight, cold.weight, rtol=1e-4, atol=1e-5)
    assert torch.equal(start.weight, kept)


def test_scale_and_offset_of_features_do_not_matter() -> None:
    features, labels = blobs(120, 4, 3)
    one = fit_logistic(features, labels, 1e-2, 3, tolerance=1e-8)
    other = fit_logistic(features * torch.tensor([1e-3, 1.0, 50.0, 7.0]) - 100, labels, 1e-2, 3, tolerance=1e-8)
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-2, atol=1e-3)  # float32 input after the offset


def test_features_that_never_vary_get_no_weight() -> None:
    features, labels = blobs(60, 3, 3)
    found = fit_logistic(torch.cat([features, torch.full((60, 1), 0.1)], 1), labels, 1e-2, 3)
    assert torch.equal(found.weight[:, 3], torch.zeros(3, dtype=torch.float64))
    assert found.logits(torch.ones(1, 4)).isfinite().all()


def test_an_unfinished_fit_warns() -> None:
    features, labels = blobs(60, 5, 3)
    with pytest.warns(UserWarning, match="above the tolerance"):
        fit_logistic(features, labels, 1e-4, 3, max_iterations=2)


def test_strength_is_chosen_inside_the_path_on_noisy_features() -> None:
    features, labels = blobs(600, 40, 10, spread=3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = linear_probe(features[:400], labels[:400], features[400:], labels[400:])
    assert STRENGTHS[-1] < result.strength < STRENGTHS[0]
    assert result.validation[result.strength] == max(result.validation.values())
    assert set(result.validation) <= set(STRENGTHS)
    assert result.accuracy.top5 is not None
    assert 0.1 < result.accuracy.top1 < result.accuracy.top5 <= 1


def test_ties_go_to_the_strongest() -> None:
    features = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    labels = torch.tensor([0, 0, 1, 1])
    result = linear_probe(features, labels, features, labels)
    assert result.strength == max(STRENGTHS)
    assert len(result.validation) == 1  # nothing can be better


def test_path_crosses_a_plateau_of_the_most_frequent_class_and_ends_past_the_summit() -> None:
    """24 of 25 samples in one class: strong penalties all answer that class, with the same accuracy."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(1000) % 25 == 0).long()
    features = torch.randn(1000, 30, generator=generator)
    features[:, 0] += 3 * labels
    result = linear_probe(features, labels, features, labels)
    accuracies = list(result.validation.values())
    assert accuracies[: PATIENCE + 1] == [0.96] * (PATIENCE + 1)
    assert result.validation[result.strength] > 0.965
    assert len(accuracies) < len(STRENGTHS)


def test_test_labels_do_not_influence_the_choice() -> None:
    features, labels = blobs(300, 10, 4, spread=3.0)
    one = linear_probe(features[:200], labels[:200], features[200:], labels[200:])
    other = linear_probe(features[:200], labels[:200], features[200:], labels[200:].flip(0))
    assert (one.strength, one.validation) == (other.strength, other.validation)
    assert one.accuracy.top1 != other.accuracy.top1


def test_scores_by_hand() -> None:
    """Six far clusters on a circle; test points at the angle of a class but labelled as another are misses."""
    angles = torch.arange(6) * (2 * math.pi / 6)
    corners = torch.stack([angles.cos(), angles.sin()], 1)
    train, train_labels = corners.repeat_interleave(4, 0), torch.arange(6).repeat_interleave(4)
    # Class 0: three of four right; class 1: one of one; class 2: labelled 2 but opposite, so ranked last.
    test = corners[[0, 0, 0, 1, 1, 5]]
    test_labels = torch.tensor([0, 0, 0, 0, 1, 2])
    result = linear_probe(train, train_labels, test, test_labels)
    assert result.accuracy.top1 == pytest.approx(4 / 6)
    assert result.accuracy.top5 == pytest.approx(5 / 6)
    assert result.accuracy.mean_per_class == pytest.approx((3 / 4 + 1 + 0) / 3)


def test_five_classes_have_no_top5_and_gaps_in_labels_are_fine() -> None:
    features, labels = blobs(100, 8, 5, spread=0.1)
    result = linear_probe(features, labels * 7, features, labels * 7)
    assert result.accuracy.top5 is None
    assert result.accuracy.top1 == 1.0


def test_a_single_strength_needs_no_held_out_part() -> None:
    features, labels = blobs(3, 4, 3)
    result = linear_probe(features, labels, features, labels, strengths=(0.01,))
    assert (result.strength, result.validation, result.accuracy.top1) == (0.01, {}, 1.0)
    with pytest.raises(ValueError, match="needs two samples"):
        linear_probe(features, labels, features, labels)


def test_runs_with_and_without_a_gradient() -> None:
    features, labels = blobs(60, 4, 3)
    expected = linear_probe(features, labels, features, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attached = features.clone().requires_grad_() * 1
        assert linear_probe(attached, labels, attached, labels) == expected
    with torch.inference_mode():
        assert linear_probe(features * 1, labels, features, labels) == expected


def test_does_not_touch_the_global_generator() -> None:
    features, labels = blobs(60, 4, 3)
    state = torch.random.get_rng_state()
    linear_probe(features, labels, features, labels, seed=5)
    assert torch.equal(state, torch.random.get_rng_state())


def test_refusals() -> None:
    features, labels = blobs(60, 4, 3)
    broken = features.clone()
    broken[7, 2] = torch.nan
    with pytest.raises(ValueError, match=r"1 of 60 test features are NaN or infinite \(first in row 7\)"):
        linear_probe(features, labels, broken, labels)
    with pytest.raises(ValueError, match=r"got features \(60, 4\) and labels \(59,\)"):
        linear_probe(features, labels[1:], features, labels)
    with pytest.raises(ValueError, match="same number of features, got 4 and 3"):
        linear_probe(features, labels, features[:, :3], labels)
    with pytest.raises(ValueError, match=r"classes that train lacks \(2\)"):
        linear_probe(features[labels < 2], labels[labels < 2], features, labels)
    with pytest.raises(ValueError, match="empty"):
        linear_probe(features[:0], labels[:0], features, labels)
    with pytest.raises(ValueError, match="floats and labels integers"):
        linear_probe(features, labels.float(), features, labels)
    with pytest.raises(ValueError, match="strengths is empty"):
        linear_probe(features, labels, features, labels, strengths=())
    with pytest.raises(ValueError, match="at least two classes"):
        fit_logistic(features, torch.zeros_like(labels), 1.0, 1)
    with pytest.raises(ValueError, match="samples per class"):
        fit_logistic(features, labels, 1.0, 4)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1"):
        fit_logistic(features, labels, 1.0, 2)
    with pytest.raises(ValueError, match="strength must be above 0"):
        fit_logistic(features, labels, 0.0, 3)


def test_in_blocks_it_is_the_same_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    features, labels = torch.randn(101, 7, generator=generator), torch.arange(101) % 3
    features[:, 0] += labels
    features[:, 1] = 5.0  # never varies
    whole = linear.fit_logistic(features, labels, 0.05, 3)
    monkeypatch.setattr(linear, "BLOCK_ELEMENTS", 70)  # blocks of 10 rows
    blocks = linear.fit_logistic(features, labels, 0.05, 3)
    torch.testing.assert_close(blocks.weight, whole.weight, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(blocks.logits(features), whole.logits(features), rtol=1e-8, atol=1e-8)
