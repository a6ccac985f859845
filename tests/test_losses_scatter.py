"""Compact logits, and the scatter within each class that it is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import CompactLogitsLoss, MR2Loss
from classgap.losses.class_scatter import within_class_scatter
from reference import mr2 as reference

K = 6


def batch(samples: int = 15, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, K, generator=generator, dtype=torch.float64)
    target = torch.randint(0, K - 1, (samples,), generator=generator)
    target[0] = K - 1  # alone in its class
    logits += 5 * F.one_hot(target, K)  # most are right, so that a pull that asks for it acts
    return logits.requires_grad_(), target


def test_scatter_is_the_mean_over_pairs():
    logits, target = batch()
    expected = reference.logit_scatter(logits.detach().numpy(), target.tolist())
    assert within_class_scatter(logits, target).item() == pytest.approx(expected)
    assert within_class_scatter(logits, target, across_ranks=True).item() == pytest.approx(expected)
    every_second = target.repeat_interleave(2)[::2]  # as the part of a rank may be
    assert within_class_scatter(logits, every_second, across_ranks=True).item() == pytest.approx(expected)


@pytest.mark.parametrize("of", ["class_weight", "column_weight"])
def test_compiled_is_the_same(of):
    logits, target = batch()
    compiled = torch.compile(within_class_scatter, fullgraph=True, backend="aot_eager")
    for weight in (None, torch.linspace(0.5, 2, K)):
        found = compiled(logits, target, **{of: weight})
        assert found.item() == pytest.approx(within_class_scatter(logits, target, **{of: weight}).item())


@pytest.mark.parametrize("across_ranks", [False, True])
def test_a_column_counts_by_its_weight(across_ranks):
    """As if it were stretched by the root of the weight."""
    logits, target = batch()
    weight = torch.linspace(0.0, 3.0, K, dtype=torch.float64)
    values = (
        within_class_scatter(logits, target, column_weight=weight, across_ranks=across_ranks),
        within_class_scatter(logits * weight.sqrt(), target),
    )
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in values))


def test_weights_are_those_of_the_class():
    """A class that counts twice adds twice its share."""
    logits, target = batch()
    alone = torch.stack([within_class_scatter(logits, target, class_weight=w) for w in torch.eye(K)])
    assert alone.sum().item() == pytest.approx(within_class_scatter(logits, target).item())
    weight = torch.arange(1.0, K + 1)
    for across_ranks in (False, True):
        found = within_class_scatter(logits, target, class_weight=weight, across_ranks=across_ranks)
        assert found.item() == pytest.approx((alone * weight).sum().item())


@pytest.mark.parametrize("soft", [False, True])
def test_the_pull_counts_by_the_fit_and_by_frequency(soft):
    """On long tails the fit is that of the adjusted scores training sees."""
    (logits, target), counts = batch(), [9, 50, 40, 1, 20, 600]
    scores = logits.detach().numpy()
    prior = np.log(np.array(counts) / sum(counts))
    share = reference.fit(scores + prior, target.tolist()) ** 0.25
    assert 0.3 < share != reference.fit(scores, target.tolist()) ** 0.25
    criterion = CompactLogitsLoss(K, class_counts=counts)
    criterion(logits, F.one_hot(target, K).double() if soft else target, torch.randn(15, 4, dtype=torch.float64))
    expected = share**4 * reference.logit_scatter(scores, target.tolist(), counts)
    assert criterion.last["pull"].item() == pytest.approx(expected)


def test_the_pull_needs_a_correct_batch():
    logits, target = batch()
    features = torch.randn(15, 4, dtype=torch.float64)
    right, wrong = logits + 50 * F.one_hot(target, K), logits - 50 * F.one_hot(target, K)
    default, constant = CompactLogitsLoss(K), CompactLogitsLoss(K, fit_power=0)
    torch.testing.assert_close(default(right, target, features), constant(right, target, features))
    default(wrong, target, features), constant(wrong, target, features)
    assert default.last["pull"] == 0
    assert constant.last["pull"] > 1


def test_equal_counts_weigh_nothing():
    equal = CompactLogitsLoss(K, class_counts=[7] * K)
    assert equal.pull_on_class is None
    assert equal.pull_on_column is None


@pytest.mark.parametrize("soft", [False, True])
def test_with_counts_and_without_a_pull_it_is_logit_adjustment(soft):
    """The loss was multiplied by the number of samples: weights of the pull were taken for class weights."""
    (logits, target), counts = batch(), [9, 50, 40, 1, 20, 600]
    prior = torch.tensor(counts).double().div(sum(counts)).log()
    criterion = CompactLogitsLoss(K, lam=0, margins="uniform", class_counts=counts).double()
    found = criterion(
        logits, F.one_hot(target, K).double() if soft else target, torch.randn(15, 4, dtype=torch.float64)
    )
    torch.testing.assert_close(found, F.cross_entropy(logits + prior, target), rtol=1e-6, atol=1e-6)


def test_gradient_is_that_of_the_pairs():
    logits, target = batch()
    together = (target[:, None] == target) & ~torch.eye(len(target), dtype=torch.bool)
    distances = (logits[:, None] - logits).square().sum(2)
    by_pairs = (distances * together).sum(1) / together.sum(1).clamp_min(1) / 2
    (expected,) = torch.autograd.grad(by_pairs.mean(), logits)
    for across_ranks in (False, True):
        (found,) = torch.autograd.grad(within_class_scatter(logits, target, across_ranks=across_ranks), logits)
        assert torch.allclose(found, expected)


def test_a_common_shift_of_a_class_costs_nothing():
    logits, target = batch()
    shift = torch.randn(K, K, dtype=torch.float64)[target]
    assert torch.allclose(within_class_scatter(logits + shift, target), within_class_scatter(logits, target))


def test_no_table_has_as_many_rows_as_there_are_classes():
    rows, far = torch.tensor([[0.0], [1.0], [2.0], [5.0]]), torch.tensor([10**15, 5, 10**15, 7])
    assert within_class_scatter(rows, far) == 1.0
    assert within_class_scatter(rows, torch.arange(4)) == 0.0


@pytest.mark.parametrize("options", [{}, {"c_bar": 2.0}, {"class_counts": [60, 50, 40, 30, 20, 10]}], ids=str)
@pytest.mark.parametrize("fit_power", [0, 4])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_both_terms_in_one_step_are_their_sum(monkeypatch, fit_power, options, as_tensors):
    """Value, parts and gradient of the single step are those of the two terms added up, as for soft targets."""
    monkeypatch.setattr("classgap.batchstats.backend.on_host", lambda tensor: not as_tensors)
    (logits, target), features = batch(), 2 * torch.randn(15, 4, dtype=torch.float64)
    single, apart = (CompactLogitsLoss(K, lam=0.3, fit_power=fit_power, **options).double() for _ in range(2))
    one = single(logits, target, features)
    two = apart(logits, F.one_hot(target, K).double(), features)
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(single.last, apart.last)
    gradients = [torch.autograd.grad(2.5 * value, logits)[0] for value in (one, two)]
    torch.testing.assert_close(*gradients)


def test_imbalanced_labels_without_counts_are_pointed_out_once():
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([32.0, 16, 8, 4, 2, 1])

    def train(criterion, shares, steps=30):
        for _ in range(steps):
            target = torch.multinomial(shares, 24, replacement=True, generator=generator)
            criterion(torch.randn(24, K, generator=generator), target, torch.randn(24, 4, generator=generator))

    criterion = CompactLogitsLoss(K)
    with pytest.warns(UserWarning, match="pass class_counts") as found:
        train(criterion, shares)
    assert len(found) == 1
    # warnings are errors: these are silent
    train(CompactLogitsLoss(K), torch.ones(K))
    train(CompactLogitsLoss(K, class_counts=shares), shares)
    train(CompactLogitsLoss(K).eval(), shares)


def test_margins_are_those_of_mr2():
    logits, target = batch()
    features = torch.randn(15, 4, dtype=torch.float64)
    ours, theirs = CompactLogitsLoss(K), MR2Loss(K, c_bar=1.0, lam=0.0)
    ours(logits, target, features), theirs(logits, target, features)
    torch.testing.assert_close(ours.gamma, theirs.gamma)
    torch.testing.assert_close(ours.last["logit"], theirs.last["logit"])


def test_the_loss_adds_the_scatter_of_the_logits():
    logits, target = batch()
    features = torch.ones(len(target), 4, dtype=torch.float64)
    for power in (4, 1.5):
        criterion = CompactLogitsLoss(K, lam=0.3, margins="uniform", fit_power=power).double()
        fit = reference.fit(logits.detach().numpy(), target.tolist(), power)
        expected = F.cross_entropy(logits, target) + 0.3 * fit * within_class_scatter(logits, target)
        assert criterion(logits, target, features).item() == pytest.approx(expected.item())


def test_bad_parameters():
    for options, message in [
        ({"fit_power": -1}, "fit_power must be"),
        ({"margins": "uniformly"}, "did you mean 'uniform'"),
    ]:
        with pytest.raises(InputError, match=message):
            CompactLogitsLoss(K, **options)
