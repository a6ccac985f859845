"""Mixup and CutMix, and that every loss takes what they give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.data import cutmix, mixup
from classgap.losses import CenterLoss, MR2Loss


def images(samples: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(samples, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(samples) % 4


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_targets_are_probabilities_and_draws_repeat(mix):
    x, y = images()
    mixed, soft = mix(x, y, 4, np.random.default_rng(5), alpha=1.0)
    again, same = mix(x, y, 4, np.random.default_rng(5), alpha=1.0)
    assert torch.equal(mixed, again)
    assert torch.equal(soft, same)
    assert mixed.shape == x.shape
    assert soft.sum(1).tolist() == pytest.approx([1.0] * 6)
    assert not torch.equal(mixed, x)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_strength_zero_changes_nothing(mix):
    x, y = images()
    mixed, soft = mix(x, y, 4, np.random.default_rng(0), alpha=0.0)
    assert torch.equal(mixed, x)
    assert torch.equal(soft, F.one_hot(y, 4).float())


def test_mixup_mixes_inputs_and_targets_alike():
    y = torch.arange(5)
    mixed, soft = mixup(F.one_hot(y, 5).double(), y, 5, np.random.default_rng(1), alpha=0.7)
    assert torch.allclose(mixed, soft.double())


def test_cutmix_targets_follow_the_area_replaced():
    x = torch.arange(6.0)[:, None, None, None].expand(6, 3, 8, 8)
    for seed in range(20):
        mixed, soft = cutmix(x, torch.arange(6), 6, np.random.default_rng(seed))
        for i in range(6):
            area = torch.stack([(mixed[i, 0] == k).float().mean() for k in range(6)])
            assert soft[i].tolist() == pytest.approx(area.tolist(), abs=1e-6)


def test_mixed_targets_can_be_mixed_again():
    x, y = images()
    rng = np.random.default_rng(0)
    _, soft = cutmix(*mixup(x, y, 4, rng), 4, rng)
    assert soft.sum(1).tolist() == pytest.approx([1.0] * 6)


def test_losses_take_the_soft_targets():
    x, y = images()
    mixed, soft = mixup(x, y, 4, np.random.default_rng(0))
    features = mixed.flatten(1)
    for criterion in (CenterLoss(4, features.shape[1]), MR2Loss(4)):
        assert torch.isfinite(criterion(features[:, :4], soft, features=features))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: mixup(torch.zeros(2, 3, dtype=torch.uint8), torch.tensor([0, 1]), 2, np.random.default_rng()),
            "floating",
        ),
        (lambda: cutmix(torch.zeros(2, 3), torch.tensor([0, 1]), 2, np.random.default_rng()), "mixup for vectors"),
        (lambda: mixup(torch.zeros(2, 3), torch.tensor([0, 1]), 2, np.random.default_rng(), alpha=-1.0), "alpha"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_labels_of_any_whole_type():
    wanted = mixup(torch.eye(3), torch.arange(3), 3, np.random.default_rng(0))[1]
    assert torch.equal(mixup(torch.eye(3), torch.arange(3, dtype=torch.uint8), 3, np.random.default_rng(0))[1], wanted)
