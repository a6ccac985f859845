"""Conditional mutual information and confusional spectral regularisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import CMICLoss, ConfusionalSpectralLoss, LossBatch, confusion_direction
from classgap.losses.cmic import concentration, separation
from reference import information

K = 4


def batch(samples: int = 12, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, K, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, K - 1, (samples,), generator=generator)  # the last class is absent


def test_cmic_matches_reference_over_several_batches():
    criterion = CMICLoss(K, lam=0.6, beta=0.3, decay=0.8).double()
    means = None
    for seed in range(3):
        logits, target = batch(seed=seed)
        labels = target.tolist()
        fresh = information.class_means(logits.numpy(), labels, K)
        means = fresh if means is None else 0.8 * means + 0.2 * fresh
        expected = information.cmic(logits.numpy(), labels, means, 0.6, 0.3)
        assert set(labels) == {0, 1, 2}
        assert criterion(logits, target).item() == pytest.approx(expected)


def test_equal_predictions_within_a_class_carry_no_information():
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 2.0]])
    target = torch.tensor([0, 0, 1])
    means = torch.stack([logits[0].softmax(0), logits[2].softmax(0)])
    assert concentration(logits.log_softmax(1), target, means).abs().max().item() == pytest.approx(0, abs=1e-7)


def test_separation_is_bounded():
    sure = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    value = separation(sure.log_softmax(1), torch.tensor([0, 1]), ceiling=2 * math.log(2))
    assert value.item() == pytest.approx(2 * 2 * math.log(2) / 4)
    assert separation(sure.log_softmax(1), torch.tensor([0, 0]), ceiling=1.0).item() == 0.0


def test_direction_matches_singular_value_decomposition():
    confusion = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, v = np.linalg.svd(confusion.numpy())
    outer = np.outer(u[:, 0], v[0])
    expected = 2 * (outer - outer.min()) / (outer.max() - outer.min()) + 0.01
    assert confusion_direction(confusion).numpy() == pytest.approx(expected)


def test_the_leading_pair_is_found_between_close_singular_values():
    """After 100 steps of the iteration the second pair was still mixed in."""
    confusion = torch.zeros(4, 4, dtype=torch.float64)
    confusion[0, 1] = confusion[1, 0] = 0.300
    confusion[2, 3] = confusion[3, 2] = 0.299
    expected = torch.full((4, 4), 0.01, dtype=torch.float64)
    expected[:2, :2] = 2.01
    torch.testing.assert_close(confusion_direction(confusion), expected)


def test_no_errors_mean_no_weights():
    assert torch.equal(confusion_direction(torch.zeros(3, 3)), torch.ones(3, 3))


def training_pass(logits, target):
    def iterate():
        for rows in torch.arange(len(target)).split(5):
            yield LossBatch(logits[rows], target[rows], torch.zeros(len(rows), 1), rows)

    return iterate


def test_csr_matches_reference():
    logits, target = batch(60)
    criterion = ConfusionalSpectralLoss(K, weight=0.4, slack=0.2).double()
    criterion.start_epoch(0, training_pass(logits, target))
    weights = information.pair_weights(logits.numpy(), target.tolist(), 0.2)
    assert criterion.pair_weight.numpy() == pytest.approx(weights, abs=1e-6)
    new, labels = batch(20, seed=7)
    expected = information.csr(new.numpy(), labels.tolist(), weights, 0.4)
    assert criterion(new, labels).item() == pytest.approx(expected)


def test_csr_before_any_pass_and_during_warmup_is_cross_entropy():
    logits, target = batch(60)
    criterion = ConfusionalSpectralLoss(K, warmup=2)
    criterion.start_epoch(1, training_pass(logits, target))
    assert criterion(logits, target).item() == pytest.approx(F.cross_entropy(logits, target).item())
    criterion.start_epoch(2, training_pass(logits, target))
    assert criterion(logits, target).item() != pytest.approx(F.cross_entropy(logits, target).item())


def test_csr_of_a_perfect_model_is_cross_entropy():
    target = torch.arange(K).repeat(3)
    logits = 9.0 * F.one_hot(target, K)
    criterion = ConfusionalSpectralLoss(K)
    criterion.start_epoch(0, training_pass(logits, target))
    assert criterion(logits, target).item() == pytest.approx(F.cross_entropy(logits, target).item())


def test_a_negative_true_logit_is_lowered_not_raised():
    logits, target = torch.tensor([[-1.0, -1.05]]), torch.tensor([0])
    criterion = ConfusionalSpectralLoss(2, slack=0.1)
    criterion.start_epoch(0, training_pass(logits, target))
    assert criterion.pair_weight[1, 0] == pytest.approx(2.01)


def test_weights_survive_a_checkpoint():
    logits, target = batch(60)
    first = ConfusionalSpectralLoss(K)
    first.start_epoch(0, training_pass(logits, target))
    second = ConfusionalSpectralLoss(K)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(logits, target), second(logits, target))


@pytest.mark.parametrize(("name", "value"), [("lam", -1.0), ("beta", float("nan")), ("decay", 1.5)])
def test_bad_cmic_parameters_are_named(name, value):
    with pytest.raises(InputError, match=name):
        CMICLoss(K, **{name: value})
