"""Focal and class-balanced losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import ClassBalancedLoss, FocalLoss, effective_number_weights
from classgap.losses.class_balanced import sigmoid_cross_entropy
from classgap.losses.focal import focal_cross_entropy
from reference import reweight

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
COUNTS = [500, 200, 80, 20, 5]


def batch(samples: int = 9, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (samples,), generator=generator)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_matches_reference(gamma):
    logits, target = batch()
    expected = reweight.focal(logits.numpy(), target.tolist(), gamma)
    assert FocalLoss(5, gamma=gamma)(logits, target).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_focal_at_half_probability(gamma):
    value = focal_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), gamma=gamma)
    assert value.item() == pytest.approx(2**-gamma * math.log(2), rel=1e-6)


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0, 2.0])
def test_focal_gradient_is_finite_at_certainty(gamma):
    logits = torch.tensor([[1e4, 0.0], [0.0, 1e4]], requires_grad=True)
    value = focal_cross_entropy(logits, torch.tensor([0, 0]), gamma=gamma)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1].abs().sum() > 0  # the hopeless sample still learns


def test_effective_number_golden_values():
    golden = [0.0506, 0.0769, 0.1211, 0.1950, 0.3188, 0.5246, 0.8683, 1.4426, 2.4092, 3.9927]
    weights = effective_number_weights(torch.tensor(CIFAR10_LT), 0.9999)
    assert weights.tolist() == pytest.approx(golden, abs=5e-5)


def test_effective_number_limits():
    counts = torch.tensor(COUNTS)
    assert torch.equal(effective_number_weights(counts, 0.0), torch.ones(5, dtype=torch.float64))
    inverse = 1 / counts.double()
    for beta in (1.0, 1 - 1e-9):
        torch.testing.assert_close(effective_number_weights(counts, beta), inverse / inverse.mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "focal_softmax", "focal_sigmoid"])
@pytest.mark.parametrize("weight_norm", ["batch", "weights"])
def test_class_balanced_matches_reference(kind, weight_norm):
    logits, target = batch()
    criterion = ClassBalancedLoss(5, beta=0.99, kind=kind, gamma=1.5, weight_norm=weight_norm, class_counts=COUNTS)
    expected = reweight.class_balanced(logits.numpy(), target.tolist(), COUNTS, 0.99, kind, 1.5, weight_norm)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_weight_norm_weights_is_the_weighted_mean_of_torch():
    logits, target = batch()
    criterion = ClassBalancedLoss(5, weight_norm="weights", class_counts=COUNTS)
    expected = F.cross_entropy(logits, target, weight=effective_number_weights(torch.tensor(COUNTS), 0.9999))
    torch.testing.assert_close(criterion(logits, target), expected, rtol=1e-6, atol=0)


def test_soft_targets_mix_the_losses_of_both_labels():
    logits, first = batch()
    second = (first + 1) % 5
    soft = 0.7 * F.one_hot(first, 5) + 0.3 * F.one_hot(second, 5)
    criterion = ClassBalancedLoss(5, kind="focal_sigmoid", class_counts=COUNTS)
    expected = 0.7 * criterion(logits, first) + 0.3 * criterion(logits, second)
    torch.testing.assert_close(criterion(logits, soft.double()), expected)
    # Dividing by weights: numerator and denominator are mixed separately.
    weighted = ClassBalancedLoss(5, weight_norm="weights", class_counts=COUNTS)
    w = weighted.balanced_weights.double()
    losses = [w[y] * F.cross_entropy(logits, y, reduction="none") for y in (first, second)]
    expected = (0.7 * losses[0] + 0.3 * losses[1]).sum() / (0.7 * w[first] + 0.3 * w[second]).sum()
    torch.testing.assert_close(weighted(logits, soft.double()), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "focal_softmax", "focal_sigmoid"])
def test_extreme_logits(kind):
    logits = torch.tensor([[3e4, -3e4, 0.0], [-3e4, 3e4, 0.0]], requires_grad=True)
    loss = ClassBalancedLoss(3, kind=kind, class_counts=[9, 3, 1])(logits, torch.tensor([0, 0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_two_classes_and_a_batch_of_one():
    value = sigmoid_cross_entropy(torch.zeros(1, 2), torch.tensor([1]))
    assert value.item() == pytest.approx(2 * math.log(2))
    criterion = ClassBalancedLoss(2, weight_norm="weights", class_counts=[1000, 1])
    assert criterion(torch.zeros(1, 2), torch.tensor([1])).item() == pytest.approx(math.log(2))


def test_wrong_calls_get_a_sentence():
    with pytest.raises(InputError, match="class_balanced needs class_counts"):
        ClassBalancedLoss(5)
    with pytest.raises(InputError, match=r"class_counts must be positive, got 0\.0 for class 1"):
        ClassBalancedLoss(2, class_counts=[3, 0])
    with pytest.raises(InputError, match="unknown value for kind 'softmx'; did you mean 'softmax'"):
        ClassBalancedLoss(2, kind="softmx", class_counts=[3, 1])
    with pytest.raises(InputError, match="beta must be a finite number in"):
        ClassBalancedLoss(2, beta=1.5, class_counts=[3, 1])
    with pytest.raises(InputError, match="unknown value for weight_norm"):
        ClassBalancedLoss(2, weight_norm="sum", class_counts=[3, 1])
    with pytest.raises(InputError, match="gamma must be a finite number"):
        FocalLoss(2, gamma=-1.0)
