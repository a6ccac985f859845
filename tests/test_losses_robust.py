"""Group DRO and FairDRO with classes as groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import FairDROLoss, GroupDROLoss, LossBatch
from classgap.losses.fair_dro import chi_square_weights
from reference import robust

COUNTS = [500, 200, 80, 20, 5]


def batches(number: int = 3, samples: int = 8, classes: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64),
            torch.randint(0, classes - 1, (samples,), generator=generator),
        )
        for _ in range(number)
    ]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("adjustment", [0.0, 3.0])
def test_group_dro_matches_reference(strict, adjustment):
    criterion = GroupDROLoss(5, eta=0.3, strict=strict, adjustment=adjustment, class_counts=COUNTS).double()
    q = np.full(5, 0.2)
    shift = adjustment / np.sqrt(COUNTS) if adjustment else None
    for logits, target in batches():
        q, expected = robust.group_dro_step(q, logits.numpy(), target.tolist(), 0.3, strict, shift)
        assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(criterion.q.numpy(), q, rtol=1e-6)


def test_group_dro_absent_classes_keep_their_weight():
    published, default = GroupDROLoss(3, eta=0.5, strict=True), GroupDROLoss(3, eta=0.5)
    for criterion in (published, default):
        criterion(torch.tensor([[0.0, 5.0, 0.0], [0.0, 5.0, 0.0]]), torch.tensor([0, 1]))  # class 2 is absent
    assert default.q[2].item() == pytest.approx(1 / 3)
    assert published.q[2].item() < 0.2
    assert default.q[0] > default.q[1]


def test_group_dro_without_step_is_the_mean_over_classes():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(6))
    target = torch.tensor([0, 0, 1, 1, 2, 2])
    criterion = GroupDROLoss(3, eta=0.0)
    torch.testing.assert_close(criterion(logits, target), F.cross_entropy(logits, target))
    single = torch.zeros(6, dtype=torch.long)
    torch.testing.assert_close(criterion(logits, single), F.cross_entropy(logits, single))


def test_group_dro_state_is_frozen_outside_training_and_survives_many_steps():
    (logits, target), *_ = batches()
    criterion = GroupDROLoss(5, eta=1.0)
    with criterion.frozen():
        criterion(logits, target)
    criterion.eval()(logits, target)
    torch.testing.assert_close(criterion.q, torch.full((5,), 0.2))
    criterion.train()
    for _ in range(300):
        loss = criterion(100 * logits, target)
    assert torch.isfinite(loss)
    assert criterion.q.sum().item() == pytest.approx(1.0, abs=1e-5)
    rare = torch.full((8,), 4)  # a class whose weight has vanished still has a loss
    assert criterion.eval()(logits, rare).item() == pytest.approx(F.cross_entropy(logits, rare).item(), rel=1e-5)


@pytest.mark.parametrize("rho", [0.01, 0.125, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("project", [False, True])
def test_chi_square_weights_match_a_general_solver(rho, project):
    losses = torch.tensor([0.3, 2.0, 1.1, 0.9, 1.7, 0.2], dtype=torch.float64)
    weights = chi_square_weights(losses, rho, project=project)
    expected = robust.chi_square_weights(losses.numpy(), rho, project)
    assert weights.sum().item() == pytest.approx(1.0)
    assert (weights @ losses).item() == pytest.approx(float(expected @ losses.numpy()), rel=1e-5)
    np.testing.assert_allclose(weights.numpy(), expected, atol=2e-3)
    if project:
        assert weights.min() >= 0
        assert ((weights - 1 / 6).square().sum() <= 2 * rho / 6 + 1e-9).item()
    else:
        value = losses.mean() + math.sqrt(2 * rho) * losses.std(correction=0)
        assert (weights @ losses).item() == pytest.approx(value.item())


@pytest.mark.parametrize("project", [False, True])
def test_chi_square_weights_of_equal_losses_and_of_no_radius_are_uniform(project):
    uniform = torch.full((4,), 0.25)
    assert torch.equal(chi_square_weights(torch.full((4,), 2.0), 0.5, project=project), uniform)
    torch.testing.assert_close(chi_square_weights(torch.arange(4.0), 0.0, project=project), uniform)


def test_chi_square_weights_share_between_tied_worst_classes():
    weights = chi_square_weights(torch.tensor([1.0, 1.0, 0.0]), 50.0, project=True)
    assert weights.tolist() == [0.5, 0.5, 0.0]


def test_fair_dro_without_radius_is_the_mean_over_classes():
    (logits, target), *_ = batches()
    means = robust.class_means(logits.numpy(), target.tolist(), 5)
    loss = FairDROLoss(5, rho=0.0)(logits, target)
    assert loss.item() == pytest.approx(float(np.nanmean(means)), rel=1e-6)


@pytest.mark.parametrize(("rho", "project"), [(0.5, False), (0.05, True)])
def test_fair_dro_is_mean_plus_spread_of_class_losses(rho, project):
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    target = torch.arange(4).repeat(2)
    means = robust.class_means(logits.numpy(), target.tolist(), 4)
    criterion = FairDROLoss(4, rho=rho, project=project).double()
    loss = criterion(logits, target)
    assert loss.item() == pytest.approx(means.mean() + math.sqrt(2 * rho) * means.std(), rel=1e-6)
    assert criterion.q.min() > 0 or not project


@pytest.mark.parametrize("classes", [10, 100])
def test_weights_of_the_default_fair_dro_are_a_distribution(classes):
    """The published closed form has a tenth to a fifth of negative weights, for any number of classes."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(classes)
    default, published = FairDROLoss(classes), FairDROLoss(classes, project=False)
    negative = []
    for _ in range(20):
        logits = torch.randn(classes, classes, generator=generator)
        logits[target, target] += 2 + 2 * torch.randn(classes, generator=generator)
        for criterion in (default, published):
            criterion(logits, target)
        assert default.q.min() >= 0
        assert default.q.sum().item() == pytest.approx(1, abs=1e-5)
        negative.append((published.q < 0).double().mean().item())
    assert 0.1 < np.mean(negative) < 0.25


def test_fair_dro_follows_running_class_losses():
    criterion = FairDROLoss(3, decay=0.75).double()
    first, second = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    criterion(first, torch.tensor([0]))
    assert criterion.seen.tolist() == [True, False, False]
    torch.testing.assert_close(criterion.q, torch.full((3,), 1 / 3).double(), rtol=1e-6, atol=0)  # one class: no spread
    criterion(second, torch.tensor([0]))
    expected = 0.75 * math.log(3) + 0.25 * F.cross_entropy(second, torch.tensor([0])).item()
    assert criterion.class_loss[0].item() == pytest.approx(expected)


def test_fair_dro_by_epoch_measures_the_training_set():
    data = [LossBatch(z, y) for z, y in batches()]
    criterion = FairDROLoss(5, rho=0.05, project=False, update="epoch", epochs=4)
    (logits, target), *_ = batches()
    with pytest.raises(InputError, match=r"needs criterion\.start_epoch"):
        criterion(logits, target)
    criterion.start_epoch(0, lambda: iter(data))
    torch.testing.assert_close(criterion.q, torch.full((5,), 0.2))
    all_logits, all_targets = torch.cat([b.logits for b in data]), torch.cat([b.target for b in data])
    means = robust.class_means(all_logits.numpy(), all_targets.tolist(), 5)
    means = np.where(np.isnan(means), np.nanmean(means), means)  # an absent class counts as average
    worst = robust.chi_square_weights(means, 0.05, project=False)
    criterion.start_epoch(1, lambda: iter(data))
    np.testing.assert_allclose(criterion.q.numpy(), worst, atol=1e-3)
    before = criterion.q.clone()
    criterion.start_epoch(3, lambda: iter(data[:1]))
    assert (criterion.q - before).abs().max() > 0
    assert torch.isfinite(criterion(logits, target))


@pytest.mark.parametrize("loss", [GroupDROLoss, FairDROLoss])
def test_soft_targets_split_a_sample_between_classes(loss):
    (logits, first), *_ = batches()
    second = (first + 1) % 5
    soft = (0.5 * F.one_hot(first, 5) + 0.5 * F.one_hot(second, 5)).double()
    doubled = loss(5)(logits.repeat(2, 1), torch.cat((first, second)))
    torch.testing.assert_close(loss(5)(logits, soft), doubled)


@pytest.mark.parametrize("loss", [GroupDROLoss, FairDROLoss])
def test_extreme_logits_and_a_batch_of_one(loss):
    criterion = loss(3)
    for _ in range(3):
        logits = torch.tensor([[-3e4, 3e4, 0.0]], requires_grad=True)
        value = criterion(logits, torch.tensor([0]))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logits.grad).all()


def test_wrong_parameters_get_a_sentence():
    with pytest.raises(InputError, match="adjustment needs class_counts"):
        GroupDROLoss(3, adjustment=1.0)
    with pytest.raises(InputError, match="rho must be a finite number"):
        FairDROLoss(3, rho=-1.0)
    with pytest.raises(InputError, match="unknown value for update"):
        FairDROLoss(3, update="batch")


def test_class_weights_of_group_dro_survive_an_overflow():
    criterion = GroupDROLoss(3, eta=1e38)
    for _ in range(2):
        criterion(torch.tensor([[5.0, 0.0, 0.0], [900.0, 0.0, 1.0]]), torch.tensor([1, 2]))
        assert torch.isfinite(criterion.log_q).all()


def test_weights_of_fair_dro_are_never_above_those_of_a_mean():
    """In the first steps all weight lies on the classes seen so far, which was multiplied by the classes missing."""
    torch.manual_seed(0)
    criterion = FairDROLoss(1000)
    for _ in range(3):
        logits, target = torch.randn(64, 1000), torch.randint(1000, (64,))
        losses = F.cross_entropy(logits, target, reduction="none")
        assert criterion(logits, target) <= losses.max() + 1e-4
