"""Logit adjustment, balanced softmax, VS and LADE."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import BalancedSoftmaxLoss, LADELoss, LogitAdjustedLoss, VSLoss, lade_regularizer
from reference import adjust

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
COUNTS = [500, 200, 80, 20, 5]


def batch(samples: int = 9, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes - 1, (samples,), generator=generator)  # the last class is absent


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.5])
def test_logit_adjusted_matches_reference(tau):
    logits, target = batch()
    expected = adjust.logit_adjusted(logits.numpy(), target.tolist(), COUNTS, tau)
    criterion = LogitAdjustedLoss(5, tau=tau, class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_balanced_softmax_matches_reference():
    logits, target = batch()
    expected = adjust.balanced_softmax(logits.numpy(), target.tolist(), COUNTS)
    assert BalancedSoftmaxLoss(5, class_counts=COUNTS)(logits, target).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("gamma", "tau"), [(0.0, 1.0), (0.3, 1.0), (0.2, 1.2), (0.4, 0.0)])
def test_vector_scaling_matches_reference(gamma, tau):
    logits, target = batch()
    expected = adjust.vector_scaling(logits.numpy(), target.tolist(), COUNTS, gamma, tau)
    criterion = VSLoss(5, gamma=gamma, tau=tau, class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_vector_scaling_golden_values():
    golden = [1, 1.166, 1.3596, 1.585, 1.8485, 2.1547, 2.5121, 2.9295, 3.4195, 3.9811]
    assert VSLoss(10, gamma=0.3, class_counts=CIFAR10_LT).scale.tolist() == pytest.approx(golden, abs=5e-5)


@pytest.mark.parametrize("importance", ["scored", "label"])
@pytest.mark.parametrize("mask_absent", [False, True])
def test_lade_matches_reference(importance, mask_absent):
    logits, target = batch()
    criterion = LADELoss(5, alpha=0.5, lam=0.2, importance=importance, mask_absent=mask_absent, class_counts=COUNTS)
    expected = adjust.lade(logits.numpy(), target.tolist(), COUNTS, 0.5, 0.2, importance, mask_absent)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("importance", ["scored", "label"])
def test_lade_of_constant_logits_is_the_square_alone(importance):
    prior = torch.full((4,), 0.25).log()
    value = lade_regularizer(torch.full((4, 4), 3.0), torch.arange(4), prior, lam=0.1, importance=importance)
    assert value.item() == pytest.approx(0.1 * 9, rel=1e-5)


def test_lade_takes_soft_targets():
    logits, target = batch()
    criterion = LADELoss(5, alpha=0.5, importance="label", class_counts=COUNTS)
    hard = F.one_hot(target, 5).double()
    torch.testing.assert_close(criterion(logits, hard), criterion(logits, target))
    assert torch.isfinite(criterion(logits, 0.9 * hard + 0.02))


def test_raw_logits_are_ranked_at_test_time():
    logits, _ = batch()
    assert torch.equal(LogitAdjustedLoss(5, class_counts=COUNTS).scores(logits), logits)


@pytest.mark.parametrize("loss", [LogitAdjustedLoss, BalancedSoftmaxLoss, VSLoss, LADELoss])
def test_extreme_logits_absent_classes_and_a_batch_of_one(loss):
    criterion = loss(3, class_counts=[9, 3, 1])
    for logits in (torch.tensor([[3e3, -3e3, 0.0], [-3e3, 3e3, 0.0]]), torch.zeros(1, 3)):
        logits.requires_grad_()
        value = criterion(logits, torch.zeros(logits.shape[0], dtype=torch.long))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("loss", [LogitAdjustedLoss, BalancedSoftmaxLoss, VSLoss, LADELoss])
def test_class_counts_are_needed_and_positive(loss):
    with pytest.raises(InputError, match="needs class_counts"):
        loss(3)
    with pytest.raises(InputError, match=r"class_counts must be positive, got 0\.0 for class 2"):
        loss(3, class_counts=[9, 3, 0])
    assert loss.from_counts([3, 1]).num_classes == 2


def test_wrong_parameters_get_a_sentence():
    with pytest.raises(InputError, match="unknown value for importance"):
        LADELoss(2, importance="scores", class_counts=[2, 1])
    with pytest.raises(InputError, match="gamma must be a finite number"):
        VSLoss(2, gamma=-0.1, class_counts=[2, 1])
    with pytest.raises(InputError, match="tau must be a finite number"):
        LogitAdjustedLoss(2, tau=float("nan"), class_counts=[2, 1])
