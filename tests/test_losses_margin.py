"""The margin primitive, EQL and Seesaw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import EQLLoss, LossBatch, SeesawLoss
from classgap.losses.logit_margin import margin_ce
from classgap.losses.seesaw import seesaw_margins
from reference import margin

COUNTS = [500, 200, 80, 20, 5]


def batch(samples: int = 9, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (samples,), generator=generator)


def test_margin_ce_is_the_papers_formula():
    logits, target = batch()
    margins = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = margin.with_margins(logits.numpy(), target.tolist(), lambda y, j: float(margins[y, j] - margins[y, y]))
    assert margin_ce(logits, target, margins[target]).item() == pytest.approx(expected, rel=1e-12)


def test_margin_ce_does_not_overflow_and_takes_minus_infinity():
    logits = torch.tensor([[0.0, 1e4, 5.0]], requires_grad=True)
    value = margin_ce(logits, torch.tensor([0]), torch.tensor([0.0, 1e4, -torch.inf]))
    value.backward()
    assert value.item() == pytest.approx(2e4)
    assert logits.grad.tolist() == [[-1.0, 1.0, 0.0]]


def test_eql_delta_matches_reference():
    logits, target = batch()
    expected = margin.eql_delta(logits.numpy(), target.tolist(), COUNTS, 2.0)
    criterion = EQLLoss(5, form="delta", coefficient=2.0, class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_eql_softmax_matches_reference(gamma):
    logits, target = batch()
    drop = np.full((9, 5), gamma)
    expected = margin.eql_softmax(logits.numpy(), target.tolist(), COUNTS, 0.05, drop)
    criterion = EQLLoss(5, gamma=gamma, threshold=0.05, class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-9)


def test_eql_draws_while_training_and_averages_in_evaluation():
    logits, target = torch.zeros(20_000, 5), torch.zeros(20_000, dtype=torch.long)
    criterion = EQLLoss(5, gamma=0.9, threshold=0.05, class_counts=COUNTS)  # classes 3 and 4 are rare
    torch.manual_seed(0)
    kept = criterion.per_sample(LossBatch(logits, target)).exp() - 3  # rare classes still compared with
    assert set(kept.round().tolist()) == {0.0, 1.0, 2.0}
    assert kept.mean().item() == pytest.approx(0.2, abs=0.02)
    criterion.eval()
    assert criterion(logits, target).item() == pytest.approx(np.log(3.2), rel=1e-5)
    own = torch.full((1,), 4)
    assert criterion(torch.zeros(1, 5), own).item() == pytest.approx(np.log(4.1), rel=1e-5)  # never drops the truth


def test_eql_sigmoid_matches_reference():
    logits, target = batch()
    expected = margin.eql_sigmoid(logits.numpy(), target.tolist(), COUNTS, 0.05)
    criterion = EQLLoss(5, form="sigmoid", threshold=0.05, class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-9)


def test_eql_thresholds_follow_the_form():
    assert EQLLoss(2, class_counts=[996, 4]).rare.tolist() == [False, True]
    assert EQLLoss(2, form="sigmoid", class_counts=[996, 4]).rare.tolist() == [False, False]


@pytest.mark.parametrize(("p", "q"), [(0.8, 2.0), (0.0, 1.0), (1.5, 0.0)])
def test_seesaw_matches_reference(p, q):
    logits, target = batch()
    expected = margin.seesaw(logits.numpy(), target.tolist(), COUNTS, p, q)
    criterion = SeesawLoss(5, p=p, q=q, counts="training", class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_seesaw_gradient_treats_its_factors_as_constants():
    logits, target = batch()
    logits.requires_grad_()
    margins = seesaw_margins(logits, target, torch.tensor(COUNTS), p=0.8, q=2.0)
    assert not margins.requires_grad
    (gradient,) = torch.autograd.grad(SeesawLoss(5, counts="training", class_counts=COUNTS)(logits, target), logits)
    expected = ((logits + margins).softmax(1) - F.one_hot(target, 5)) / len(target)
    torch.testing.assert_close(gradient, expected.detach(), rtol=1e-5, atol=1e-7)


def test_seesaw_of_a_correct_prediction_among_equal_classes_is_cross_entropy():
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    criterion = SeesawLoss(3, counts="training", class_counts=[7, 7, 7])
    torch.testing.assert_close(criterion(logits, torch.tensor([0])), F.cross_entropy(logits, torch.tensor([0])))


def test_seesaw_counts_labels_while_training_only():
    logits, target = torch.zeros(3, 4), torch.tensor([0, 0, 2])
    criterion = SeesawLoss(4)
    criterion(logits, target)
    assert criterion.seen_counts.tolist() == [2, 0, 1, 0]
    with criterion.frozen():
        criterion(logits, target)
    criterion.eval()
    criterion(logits, target)
    assert criterion.seen_counts.tolist() == [2, 0, 1, 0]
    criterion.train()
    criterion(logits, torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 3))
    assert criterion.seen_counts.tolist() == [3.5, 1.5, 1, 0]


@pytest.mark.parametrize("form", ["softmax", "sigmoid", "delta"])
def test_eql_extreme_logits_and_a_batch_of_one(form):
    criterion = EQLLoss(3, form=form, gamma=1.0, threshold=0.5, class_counts=[90, 9, 1])
    logits = torch.tensor([[-3e4, 3e4, 0.0]], requires_grad=True)
    value = criterion(logits, torch.tensor([2]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


def test_seesaw_extreme_logits():
    logits = torch.tensor([[-3e4, 3e4, 0.0]], requires_grad=True)
    value = SeesawLoss(3)(logits, torch.tensor([0]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


def test_wrong_calls_get_a_sentence():
    with pytest.raises(InputError, match="counts='training' needs class_counts"):
        SeesawLoss(3, counts="training")
    with pytest.raises(InputError, match="unknown value for counts"):
        SeesawLoss(3, counts="static")
    with pytest.raises(InputError, match="eql needs class_counts"):
        EQLLoss(3)
    with pytest.raises(InputError, match="unknown value for form"):
        EQLLoss(3, form="Delta", class_counts=[1, 1, 1])
    with pytest.raises(InputError, match="threshold must be"):
        EQLLoss(3, threshold=2.0, class_counts=[1, 1, 1])
