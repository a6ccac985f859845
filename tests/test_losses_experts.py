"""NCL, LfF and the module that runs experts side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgap import registry
from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.losses import BalancedSoftmaxLoss, LearningFromFailureLoss, NCLLoss
from classgap.losses.ncl import mutual_distillation
from classgap.models import Experts
from reference import experts

K, COUNTS = 5, [6, 5, 4, 3, 2]


def batch(samples: int = 8, members: int = 3, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, members, K, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, K - 1, (samples,), generator=generator)  # the last class is absent


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_ncl_matches_reference(share):
    logits, target = batch()
    criterion = NCLLoss(K, hard_share=share, class_counts=COUNTS)
    expected = experts.ncl(logits.numpy(), target.tolist(), COUNTS, criterion.hard_size, 0.6)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_experts_that_agree_have_nothing_to_distil():
    row = torch.randn(4, 1, K).expand(-1, 3, -1)
    assert mutual_distillation(row).abs().max().item() == pytest.approx(0.0, abs=1e-5)
    assert mutual_distillation(torch.randn(4, 1, K)).tolist() == [0.0] * 4


def test_with_all_categories_hard_both_parts_are_equal():
    logits, target = batch()
    whole = NCLLoss(K, hard_share=1.0, class_counts=COUNTS)(logits, target)
    one_part = sum(F.cross_entropy(logits[:, m] + torch.tensor(COUNTS).log(), target) for m in range(3))
    prior = (torch.tensor(COUNTS) / sum(COUNTS)).log()
    one_part = one_part + 0.6 * mutual_distillation(logits + prior).mean()
    assert whole.item() == pytest.approx(2 * one_part.item(), rel=1e-6)


@pytest.mark.parametrize("spread", [1.0, 30.0])  # with the larger one probabilities fall below 1e-9
def test_released_form_matches_the_release(spread):
    logits, target = batch()
    logits = spread * logits
    criterion = NCLLoss(K, hard_share=0.4, hard_form="zero", class_counts=COUNTS)
    expected = experts.released_ncl(logits.numpy(), target.tolist(), COUNTS, 2, 0.6)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("hard_form", ["restrict", "zero"])
def test_dbm_ncl_has_the_margin_in_all_four_terms(hard_form):
    cosines, target = batch()
    cosines = torch.tanh(cosines)
    base_params = {"variant": "bs", "s": 10.0, "k_m": 0.3, "ref": "last", "monotone": False}
    criterion = NCLLoss(
        K, hard_share=0.4, hard_form=hard_form, base="dbm", base_params=base_params, class_counts=COUNTS
    )
    rows = zip(cosines.numpy(), target.tolist(), strict=True)
    logits = [[experts.dbm_scaled(row, y, COUNTS, 0.3, 10.0) for row in members] for members, y in rows]
    reference = experts.ncl if hard_form == "restrict" else experts.released_ncl
    # Categories are ranked by the first expert's cosines; the margin only moves the true class, which is always chosen.
    expected = reference(np.array(logits), target.tolist(), COUNTS, 2, 0.6)
    assert criterion(cosines, target).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("cosface", {}),
        ("arcface", {}),
        ("sphereface", {}),
        ("ldam", {}),
        ("ldam", {"form": "delta"}),
        ("dbm", {}),
        ("drw", {"base": "dbm"}),
    ],
)
def test_margin_logits_are_what_the_softmax_sees(name, params):
    logits, target = batch(members=1)
    cosines = torch.tanh(logits[:, 0])
    criterion = registry.get("loss", name).build(num_classes=K, class_counts=COUNTS, **params)
    expected = criterion.eval()(cosines, target, epoch=0)
    changed = criterion.margin_logits(cosines, target)
    assert F.cross_entropy(changed, target).item() == pytest.approx(expected.item(), rel=1e-6)
    assert not torch.equal(changed, cosines)


def test_losses_without_a_margin_have_their_logits():
    logits, target = batch(members=1)
    for criterion in (NCLLoss(K, experts=1, class_counts=COUNTS), BalancedSoftmaxLoss(K, class_counts=COUNTS)):
        assert torch.equal(criterion.margin_logits(logits[:, 0], target), logits[:, 0])


def test_scores_are_the_mean_and_the_second_expert():
    logits, _ = batch(members=2)
    assert torch.equal(NCLLoss(K, experts=2, class_counts=COUNTS).scores(logits), logits.mean(1))
    assert torch.equal(LearningFromFailureLoss(K, class_counts=COUNTS).scores(logits), logits[:, 1])


def test_lff_matches_reference_over_epochs():
    criterion = LearningFromFailureLoss(K, class_counts=COUNTS).double()
    reference = experts.LearningFromFailure(0.7, 0.7)
    _, target = batch(20)
    for epoch in range(3):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(7):
            logits, _ = batch(len(rows), members=2, seed=int(rows[0]))
            expected = reference(logits.numpy(), target[rows].tolist(), rows.tolist())
            assert criterion(logits, target[rows], index=rows).item() == pytest.approx(expected)


def test_equal_losses_weigh_one_half():
    row = torch.randn(6, 1, K).expand(-1, 2, -1)
    criterion = LearningFromFailureLoss(K, class_counts=COUNTS)
    criterion(row, torch.zeros(6, dtype=torch.long), index=torch.arange(6))
    assert criterion.last["weight"].item() == pytest.approx(0.5)


def test_sure_samples_weigh_q_in_the_biased_expert():
    sure = torch.zeros(1, 2, K)
    sure[0, 0, 0] = 30.0
    sure.requires_grad_()
    criterion = LearningFromFailureLoss(K, q=0.7, class_counts=COUNTS)
    loss = criterion(sure, torch.tensor([0]), index=torch.tensor([0]))
    biased = 0.7 * F.cross_entropy(sure[:, 0], torch.tensor([0]))
    final = criterion.last["weight"] * F.cross_entropy(sure[:, 1], torch.tensor([0]))
    assert loss.item() == pytest.approx((biased + final).item())


def test_lff_evaluation_of_unknown_samples_is_finite():
    logits, target = batch(members=2)
    criterion = LearningFromFailureLoss(K, class_counts=COUNTS).eval()
    assert torch.isfinite(criterion(logits, target, index=torch.arange(8)))
    assert not criterion.sample_loss.any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: NCLLoss(K, class_counts=COUNTS)(torch.zeros(2, K), torch.tensor([0, 1])), "Experts"),
        (lambda: NCLLoss(K, class_counts=COUNTS)(torch.zeros(2, 2, K), torch.tensor([0, 1])), "3 experts"),
        (lambda: NCLLoss(K, class_counts=COUNTS)(torch.zeros(2, 3, 4), torch.tensor([0, 1])), "columns"),
        (
            lambda: NCLLoss(K, class_counts=COUNTS)(torch.zeros(2, 3, K), torch.tensor([0, 1]), torch.zeros(2, 4)),
            "features",
        ),
        (lambda: NCLLoss(K), "class_counts"),
        (lambda: NCLLoss(K, hard_form="none", class_counts=COUNTS), "hard_form"),
        (lambda: LearningFromFailureLoss(K, class_counts=COUNTS)(torch.zeros(1, 2, K), torch.tensor([0])), "index"),
        (
            lambda: LearningFromFailureLoss(K, class_counts=COUNTS)(
                torch.zeros(1, 2, K), torch.tensor([0]), index=torch.tensor([20])
            ),
            r"\[0, 20\)",
        ),
        (lambda: Experts([]), "at least one"),
        (lambda: Experts([nn.Identity()] * 2), "different networks"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_experts_stack_logits_and_features():
    members = [nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, K)) for _ in range(3)]
    inputs = torch.randn(6, 4)
    logits = Experts(members)(inputs)
    assert logits.shape == (6, 3, K)
    tapped, features = Experts(FeatureTap(member) for member in members)(inputs)
    assert torch.equal(tapped, logits)
    assert features.shape == (6, 3, 7)
    NCLLoss(K, class_counts=COUNTS)(tapped, torch.arange(6) % K, features).backward()
    assert all(p.grad is not None for member in members for p in member.parameters())
