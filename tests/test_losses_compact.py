"""Squeeze, center, range, spread-out and Gaussian-mixture losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import (
    CenterLoss,
    CrossEntropyLoss,
    GaussianMixtureLoss,
    RangeLoss,
    SpreadoutLoss,
    SqueezeLoss,
    spreadout_penalty,
)
from classgap.losses.range_loss import range_terms
from reference import compact

K, D = 5, 6


def batch(samples: int = 14, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, K, generator=generator, dtype=torch.float64)
    features = 2 + 3 * torch.randn(samples, D, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, K - 1, (samples,), generator=generator), features  # the last class is absent


@pytest.mark.parametrize("of", ["features", "logits"])
def test_squeeze_matches_reference(of):
    logits, target, features = batch()
    expected = compact.squeeze(logits.numpy(), features.numpy(), target.tolist(), 0.2, of)
    assert SqueezeLoss(K, weight=0.2, of=of)(logits, target, features).item() == pytest.approx(expected)


def test_center_loss_and_its_centres_match_reference():
    criterion = CenterLoss(K, D, lam=0.3, rate=0.4).double()
    centers, seen = np.zeros((K, D)), np.zeros(K, dtype=bool)
    for seed in range(3):
        logits, target, features = batch(seed=seed)
        labels = target.tolist()
        centers = compact.move_centers(features.numpy(), labels, centers, seen, 0.4)
        seen[labels] = True
        expected = F.cross_entropy(logits, target).item() + 0.3 * compact.center(features.numpy(), labels, centers)
        assert criterion(logits, target, features).item() == pytest.approx(expected)
        assert criterion.centers.mean.numpy() == pytest.approx(centers)


def test_center_of_a_large_class_follows_its_mean():
    criterion = CenterLoss(2, 1, rate=1.0)
    logits, target = torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.long)
    criterion(logits, target, torch.zeros(1000, 1))
    criterion(logits, target, torch.full((1000, 1), 5.0))
    assert criterion.centers.mean[0].item() == pytest.approx(5.0, rel=2e-3)


def test_features_at_their_centre_cost_nothing():
    criterion = CenterLoss(2, 3, lam=1.0)
    logits, target = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    features = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 4.0]])[target]
    assert criterion(logits, target, features).item() == pytest.approx(F.cross_entropy(logits, target).item())


def test_a_class_without_centre_is_not_pulled():
    criterion = CenterLoss(3, 2, lam=1.0).eval()
    logits, features = torch.randn(2, 3), torch.full((2, 2), 100.0)
    target = torch.tensor([0, 1])
    assert criterion(logits, target, features).item() == pytest.approx(F.cross_entropy(logits, target).item())


@pytest.mark.parametrize("k", [1, 2, 3, 50])
def test_range_terms_match_reference(k):
    _, target, features = batch()
    intra, inter = range_terms(features, target, k=k, margin=40.0)
    assert intra.item() == pytest.approx(compact.range_intra(features.numpy(), target.tolist(), k))
    assert inter.item() == pytest.approx(compact.range_inter(features.numpy(), target.tolist(), 40.0))


def test_widest_pair_of_one_class():
    features = torch.tensor([[0.0], [1.0], [4.0]])
    intra, inter = range_terms(features, torch.zeros(3, dtype=torch.long), k=1, margin=9.0)
    assert (intra.item(), inter.item()) == (16.0, 0.0)


def test_equal_distances_each_count_once():
    square = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    intra, _ = range_terms(square, torch.zeros(4, dtype=torch.long), k=3)
    assert intra.item() == pytest.approx(3 / (1 / 2 + 1 / 2 + 1 / 1))


def test_far_centres_leave_the_hinge_at_zero():
    _, inter = range_terms(torch.tensor([[0.0], [100.0]]), torch.tensor([0, 1]), margin=10.0)
    assert inter.item() == 0.0


@pytest.mark.parametrize("target", [[0], [0, 1, 2], [3, 3, 3]])
def test_range_loss_is_finite_without_pairs_and_for_equal_features(target):
    features = torch.ones(len(target), D, requires_grad=True)
    loss = RangeLoss(K, alpha=1.0, beta=1.0)(torch.zeros(len(target), K), torch.tensor(target), features)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(features.grad).all()


@pytest.mark.parametrize("pairs", ["different", "all"])
def test_spreadout_matches_reference(pairs):
    logits, target, features = batch()
    expected = compact.spreadout(features.numpy(), target.tolist(), pairs)
    assert spreadout_penalty(features, target, pairs=pairs).item() == pytest.approx(expected)
    loss = SpreadoutLoss(K, weight=0.5, pairs=pairs)(logits, target, features)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, target).item() + 0.5 * expected)


def test_spreadout_of_known_configurations():
    assert spreadout_penalty(torch.eye(4), torch.arange(4)).item() == 0.0
    identical = torch.ones(3, 4)
    assert spreadout_penalty(identical, torch.arange(3)).item() == pytest.approx(1 + 1 - 1 / 4)
    assert spreadout_penalty(identical, torch.zeros(3, dtype=torch.long)).item() == 0.0
    assert spreadout_penalty(identical[:1], torch.zeros(1, dtype=torch.long), pairs="all").item() == 0.0


@pytest.mark.parametrize(("alpha", "lam"), [(0.0, 0.0), (0.3, 0.1)])
def test_gaussian_mixture_matches_reference(alpha, lam):
    logits, target, features = batch()
    criterion = GaussianMixtureLoss(K, D, alpha=alpha, lam=lam).double()
    means = criterion.means.detach().numpy()
    expected = compact.gaussian_mixture(features.numpy(), target.tolist(), means, alpha, lam)
    assert criterion(logits, target, features).item() == pytest.approx(expected)


def test_gaussian_mixture_without_margin_is_a_linear_classifier():
    _, target, features = batch()
    criterion = GaussianMixtureLoss(K, D, alpha=0.0, lam=0.0).double()
    means = criterion.means.detach()
    logits = features @ means.T - means.square().sum(1) / 2
    expected = CrossEntropyLoss(K)(logits, target)
    assert criterion(logits, target, features).item() == pytest.approx(expected.item())
    assert torch.equal(criterion.scores(logits, features).argmax(1), logits.argmax(1))


def test_gaussian_mixture_learns_its_means_and_keeps_the_head_in_the_graph():
    logits, target, features = batch()
    logits.requires_grad_()
    criterion = GaussianMixtureLoss(K, D).double()
    criterion(logits, target, features).backward()
    assert criterion.means.grad.abs().sum() > 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: CenterLoss(K, 0), "num_features"),
        (lambda: GaussianMixtureLoss(K, 1.5), "num_features"),
        (lambda: CenterLoss(K, D, rate=2.0), "rate"),
        (lambda: RangeLoss(K, k=0), "k must be"),
        (lambda: SpreadoutLoss(K, pairs="some"), "pairs"),
        (lambda: CenterLoss(K, D)(torch.zeros(2, K), torch.zeros(2, dtype=torch.long)), "features"),
        (lambda: CenterLoss(K, D)(torch.zeros(1, K), torch.tensor([0]), torch.zeros(1, 3)), "num_features=3"),
        (lambda: GaussianMixtureLoss(K, D)(torch.zeros(1, K), torch.tensor([0]), torch.zeros(1, 3)), "num_features=3"),
        (lambda: GaussianMixtureLoss(K, D).scores(torch.zeros(2, K)), "features"),
    ],
)
def test_bad_input_is_named(build, words):
    with pytest.raises(InputError, match=words):
        build()
