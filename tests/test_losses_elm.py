"""ELM: logit adjustment with a pull inside classes."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.losses import BalancedSoftmaxLoss, ELMLoss, pull_slack, within_class_pull
from reference import elm as reference

COUNTS = [50, 20, 8, 4]


def batch(samples: int = 12, width: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 4, (samples,), generator=generator)
    return logits, target, 2 * torch.randn(samples, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("alpha", ["prior", "sqrt_prior", "sqrt_count", "count"])
def test_matches_reference(alpha):
    logits, target, features = batch()
    expected = reference.elm(logits.numpy(), features.numpy(), target.tolist(), COUNTS, 0.3, alpha, 1.5)
    criterion = ELMLoss(4, lam=0.3, alpha=alpha, alpha_scale=1.5, class_counts=COUNTS)
    assert criterion(logits, target, features=features).item() == pytest.approx(expected, rel=1e-6)
    assert pull_slack(torch.tensor(COUNTS), alpha, 1.5).tolist() == pytest.approx(
        reference.slack(COUNTS, alpha, 1.5).tolist()
    )


def test_without_pull_it_is_balanced_softmax():
    logits, target, features = batch()
    value = ELMLoss(4, lam=0.0, class_counts=COUNTS)(logits, target, features=features)
    assert torch.equal(value, BalancedSoftmaxLoss(4, class_counts=COUNTS)(logits, target))


def test_pull_bounds_the_spread_of_a_class():
    """Proposition 1, and its exact gap where all pairs are equally far apart."""
    samples, alpha = 6, 1.7
    features = batch(samples, width=4)[2]
    own = torch.zeros(samples, dtype=torch.long)
    pull = within_class_pull(features, own, torch.tensor(alpha, dtype=torch.float64)).mean()
    scatter = (features - features.mean(0)).square().sum()
    assert 2 * scatter / (samples - 1) - alpha + math.log(samples - 1) <= pull
    simplex = torch.eye(samples, dtype=torch.float64)  # all squared distances are 2
    pull = within_class_pull(simplex, own, torch.tensor(alpha, dtype=torch.float64)).mean()
    gap = pull - (2 - alpha + math.log(samples - 1))
    assert gap.item() == pytest.approx(math.log1p(math.exp(alpha - 2) / (samples - 1)))


def test_queue_gives_rare_classes_partners():
    generator = torch.Generator().manual_seed(10)
    criterion = ELMLoss(4, lam=1.0, queue=3, num_features=2, class_counts=COUNTS)
    logits, target = torch.zeros(1, 4), torch.tensor([3])
    pulls = []
    for step in range(3):
        features = torch.randn(1, 2, generator=generator)
        criterion(logits, target, features=features, index=torch.tensor([step]))
        pulls.append(criterion.last["pull"].item())
    assert pulls[0] == 0.0  # alone in its batch, nothing remembered yet
    assert min(pulls[1:]) > 0.0
    criterion(logits, target, features=features, index=torch.tensor([2]))
    with criterion.frozen():  # the same image again: its own copies are no partners, and nothing is stored
        written = criterion.queue.written.clone()
        criterion(logits, target, features=features, index=torch.tensor([2]))
    assert torch.equal(criterion.queue.written, written)


def test_soft_targets_count_for_the_likelier_class_in_pairs():
    logits, target, features = batch()
    criterion = ELMLoss(4, lam=0.3, class_counts=COUNTS)
    hard = F.one_hot(target, 4).double()
    value = criterion(logits, hard, features=features)
    torch.testing.assert_close(value, criterion(logits, target, features=features))
    pull = criterion.last["pull"]
    criterion(logits, 0.88 * hard + 0.03, features=features)
    torch.testing.assert_close(criterion.last["pull"], pull)


def test_far_apart_features_and_a_batch_of_one():
    criterion = ELMLoss(4, lam=1.0, class_counts=COUNTS)
    for features in (torch.tensor([[0.0], [1e4]]), torch.zeros(1, 1)):
        features.requires_grad_()
        samples = features.shape[0]
        loss = criterion(torch.zeros(samples, 4), torch.zeros(samples, dtype=torch.long), features=features)
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(features.grad).all()


def test_wrong_calls_get_a_sentence():
    with pytest.raises(InputError, match="elm needs features"):
        ELMLoss(4, class_counts=COUNTS)(torch.zeros(1, 4), torch.tensor([0]))
    with pytest.raises(InputError, match="elm needs class_counts"):
        ELMLoss(4)
    with pytest.raises(InputError, match="queue stores features of each class and needs num_features"):
        ELMLoss(4, queue=2, class_counts=COUNTS)
    for queue in (torch.ones(4), 2.5, -1):
        with pytest.raises(InputError, match="queue must be a whole number"):
            ELMLoss(4, queue=queue, num_features=3, class_counts=COUNTS)
    with pytest.raises(InputError, match="elm keeps the last 1000000000 features of each class"):
        ELMLoss(4, queue=10**9, num_features=3, class_counts=COUNTS)
    with pytest.raises(InputError, match="unknown value for alpha 'sqrt'"):
        ELMLoss(4, alpha="sqrt", class_counts=COUNTS)
    with pytest.raises(InputError, match="unknown value for pair"):
        ELMLoss(4, pair="max", class_counts=COUNTS)
