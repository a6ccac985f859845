"""Margins on angles: CosFace, ArcFace, SphereFace, LDAM, DBM, and deferred re-weighting around them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.heads import CosineHead
from classgap.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    DBMLoss,
    DRWLoss,
    LDAMLoss,
    LossBatch,
    SphereFaceLoss,
    effective_number_weights,
)
from classgap.losses.arcface import arcface_cosine, sphereface_cosine
from classgap.losses.dbm import dbm_cosine, dbm_margins
from classgap.losses.ldam import ldam_margins
from reference import cosine as reference
from reference import margin

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
COUNTS = [500, 200, 80, 20, 5]
ALL = {
    "cosface": lambda k: CosFaceLoss(k),
    "arcface": lambda k: ArcFaceLoss(k),
    "sphereface": lambda k: SphereFaceLoss(k, lam_start=5.0),
    "ldam": lambda k: LDAMLoss(k, class_counts=range(1, k + 1)),
    "dbm": lambda k: DBMLoss(k, k_m=0.3, class_counts=range(1, k + 1)),
    "dbm_all": lambda k: DBMLoss(k, k_m=0.3, instance="all", monotone=False, class_counts=range(1, k + 1)),
}


def batch(samples: int = 40, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines all over [-1, 1], so that many angles exceed π with the margin."""
    generator = torch.Generator().manual_seed(4)
    cosines = 2 * torch.rand(samples, classes, generator=generator, dtype=torch.float64) - 1
    return cosines, torch.randint(0, classes, (samples,), generator=generator)


def test_cosface_matches_reference():
    cosines, target = batch()
    expected = reference.cosface(cosines.numpy(), target.tolist(), 0.35, 30.0)
    assert CosFaceLoss(5)(cosines, target).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("m", [0.1, 0.5, 1.2])
def test_arcface_matches_reference(m):
    cosines, target = batch()
    expected = reference.arcface(cosines.numpy(), target.tolist(), m, 30.0)
    assert ArcFaceLoss(5, m=m)(cosines, target).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_sphereface_matches_reference(m):
    cosines, target = batch()
    expected = reference.sphereface(cosines.numpy(), target.tolist(), m, 30.0, 5.0)
    assert SphereFaceLoss(5, m=m, lam_start=5.0)(cosines, target).item() == pytest.approx(expected, rel=1e-9)


def test_sphereface_anneals_with_the_steps_of_training():
    cosines, target = batch()
    criterion = SphereFaceLoss(5)
    for step in (1, 2):
        expected = reference.sphereface(cosines.numpy(), target.tolist(), 4, 30.0, 1000 / (1 + 0.12 * step))
        assert criterion(cosines, target).item() == pytest.approx(expected, rel=1e-9)
    with criterion.frozen():
        criterion(cosines, target)
    assert criterion.steps.item() == 2
    criterion.steps.fill_(10_000)
    expected = reference.sphereface(cosines.numpy(), target.tolist(), 4, 30.0, 5.0)
    assert criterion.eval()(cosines, target).item() == pytest.approx(expected, rel=1e-9)


def test_ldam_matches_reference():
    cosines, target = batch()
    expected = reference.ldam(cosines.numpy(), target.tolist(), COUNTS, 0.5, 30.0)
    assert LDAMLoss(5, class_counts=COUNTS)(cosines, target).item() == pytest.approx(expected, rel=1e-6)


def test_ldam_delta_matches_reference_and_takes_linear_logits():
    logits, target = batch()
    logits = 5 * logits
    expected = margin.ldam_delta(logits.numpy(), target.tolist(), COUNTS, 0.5)
    criterion = LDAMLoss(5, form="delta", coefficient=0.5, class_counts=COUNTS)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)
    assert "cosine_head" not in criterion.needs


def test_golden_margins():
    ldam = [0.1581, 0.1797, 0.2042, 0.2321, 0.2638, 0.2998, 0.3407, 0.3872, 0.4405, 0.5]
    assert ldam_margins(torch.tensor(CIFAR10_LT)).tolist() == pytest.approx(ldam, abs=5e-5)
    dbm = [0.001, 0.0017, 0.0028, 0.0046, 0.0078, 0.0129, 0.0216, 0.0360, 0.0602, 0.1]
    assert dbm_margins(torch.tensor(CIFAR10_LT)).tolist() == pytest.approx(dbm, abs=6e-5)


@pytest.mark.parametrize("variant", ["ce", "cb", "bs"])
@pytest.mark.parametrize("instance", ["hard", "all", "none"])
@pytest.mark.parametrize("monotone", [True, False])
def test_dbm_matches_reference(variant, instance, monotone):
    cosines, target = batch()
    options = {"variant": variant, "instance": instance, "monotone": monotone}
    expected = reference.dbm(cosines.numpy(), target.tolist(), COUNTS, 0.3, 0.7, 32.0, **options)
    criterion = DBMLoss(5, k_m=0.3, tau=0.7, class_counts=COUNTS, **options)
    assert criterion(cosines, target).item() == pytest.approx(expected, rel=1e-6)


def test_dbm_reference_class():
    counts = [50, 5, 20]  # not sorted by frequency
    assert dbm_margins(torch.tensor(counts), 0.1).tolist() == pytest.approx([0.01, 0.1, 0.025])
    assert dbm_margins(torch.tensor(counts), 0.1, ref="last").tolist() == pytest.approx([0.04, 0.4, 0.1])
    cosines, target = batch(classes=3)
    expected = reference.dbm(cosines.numpy(), target.tolist(), counts, 0.1, 1.0, 32.0, ref="last")
    criterion = DBMLoss(3, ref="last", class_counts=counts)
    assert criterion(cosines, target).item() == pytest.approx(expected, rel=1e-6)


def test_dbm_of_correct_samples_is_arcface_with_the_class_margin():
    cosines, _ = batch()
    target = cosines.argmax(1)
    expected = [
        reference.arcface(cosines[i : i + 1].numpy(), [int(y)], 0.1 * COUNTS[-1] / COUNTS[y], 32.0)
        for i, y in enumerate(target)
    ]
    value = DBMLoss(5, class_counts=COUNTS)(cosines, target)
    assert value.item() == pytest.approx(sum(expected) / len(expected), rel=1e-6)


def test_dbm_difficulty_can_be_held_constant():
    cosines, target = batch()
    margins = torch.full((5,), 0.3)
    flowing, held = cosines.clone().requires_grad_(), cosines.clone().requires_grad_()
    dbm_cosine(flowing, target, margins, instance="all").sum().backward()
    dbm_cosine(held, target, margins, instance="all", detach_difficulty=True).sum().backward()
    values = [dbm_cosine(cosines, target, margins, instance="all", detach_difficulty=d) for d in (True, False)]
    assert torch.equal(*values)
    assert not torch.allclose(flowing.grad, held.grad)


@pytest.mark.parametrize("m", [0.3, 0.7])
def test_targets_never_rise_with_the_angle(m):
    cosine = torch.linspace(1, -1, 2001, dtype=torch.float64)  # angle from 0 to π
    margins = torch.full((2,), m, dtype=torch.float64)
    cosines = torch.stack((cosine, torch.full_like(cosine, 2.0)), 1)  # always misclassified
    target = torch.zeros(2001, dtype=torch.long)
    for value in (arcface_cosine(cosine, m), sphereface_cosine(cosine, 4), dbm_cosine(cosines, target, margins)):
        assert (value.diff() <= 0).all()
    code = dbm_cosine(cosines, target, margins, monotone=False)
    assert (code.diff() > 0).any()  # what the option is for


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_the_poles_and_beyond_pi(name, dtype):
    criterion = ALL[name](3)
    edges = [1.0, -1.0, 1 - 1e-7, -1 + 1e-7, 1 - 1e-9, -0.999, math.cos(math.pi - 0.3), 0.0, 1.0000001]
    cosines = torch.tensor([[c, 0.5, -0.5] for c in edges], dtype=dtype, requires_grad=True)
    loss = criterion(cosines, torch.zeros(len(edges), dtype=torch.long))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(cosines.grad).all()
    assert cosines.grad.abs().max() < 1e5


@pytest.mark.parametrize("name", ALL)
def test_features_at_the_class_centre_get_a_bounded_gradient(name):
    """The chain through the head is what training sees; aligned and opposed features are its worst points."""
    head = CosineHead(4, 3)
    features = torch.cat((head.weight.detach(), -head.weight.detach())).requires_grad_()
    loss = ALL[name](3)(head(features), torch.arange(3).repeat(2))
    loss.backward()
    assert torch.isfinite(features.grad).all()
    assert features.grad.abs().max() < 1e3


def test_arcface_at_the_class_centre():
    assert arcface_cosine(torch.ones(1), 0.5).item() == pytest.approx(math.cos(0.5), rel=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_linear_logits_are_refused(name):
    with pytest.raises(InputError, match=r"needs cosines in \[-1, 1\] as logits, got 7; use classgap.heads.CosineHead"):
        ALL[name](3)(torch.tensor([[7.0, 0.0, 0.0]]), torch.tensor([0]))


@pytest.mark.parametrize("name", ALL)
def test_two_classes_and_a_batch_of_one(name):
    assert torch.isfinite(ALL[name](2)(torch.tensor([[0.3, -0.2]]), torch.tensor([1])))


def test_drw_switches_from_the_base_loss_to_weights():
    cosines, target = batch()
    criterion = DRWLoss(5, base="ldam", base_params={"max_m": 0.4}, start=0.8, epochs=10, class_counts=COUNTS)
    base = LDAMLoss(5, max_m=0.4, class_counts=COUNTS)
    assert criterion.start_at == 8
    torch.testing.assert_close(criterion(cosines, target, epoch=7), base(cosines, target))
    weights = effective_number_weights(torch.tensor(COUNTS), 0.9999)[target]
    losses = base.per_sample(LossBatch(cosines, target))
    expected = (weights * losses).sum() / weights.sum()
    torch.testing.assert_close(criterion(cosines, target, epoch=8), expected, rtol=1e-6, atol=0)
    criterion.weight_norm = "batch"
    torch.testing.assert_close(criterion(cosines, target, epoch=8), (weights * losses).mean(), rtol=1e-6, atol=0)


def test_drw_start_is_a_share_or_an_epoch():
    assert DRWLoss(2, class_counts=[3, 1]).start_at == 160
    assert DRWLoss(2, epochs=40, class_counts=[3, 1]).start_at == 32
    assert DRWLoss(2, start=12, class_counts=[3, 1]).start_at == 12
    assert DRWLoss(2, start=1.0, epochs=40, class_counts=[3, 1]).start_at == 40


def test_drw_carries_the_state_of_its_base():
    criterion = DRWLoss(3, base="seesaw", class_counts=[3, 2, 1])
    criterion(torch.zeros(2, 3), torch.tensor([0, 0]), epoch=0)
    with criterion.frozen():
        criterion(torch.zeros(2, 3), torch.tensor([1, 1]), epoch=0)
    assert criterion.state_dict()["base.seen_counts"].tolist() == [2, 0, 0]


def test_drw_asks_for_what_its_base_needs():
    assert DRWLoss(2, base="dbm", class_counts=[3, 1]).needs == {"class_counts", "epoch", "cosine_head"}
    with pytest.raises(InputError, match="drw needs epoch"):
        DRWLoss(2, class_counts=[3, 1])(torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(InputError, match="needs cosines"):
        DRWLoss(2, base="dbm", class_counts=[3, 1])(torch.full((1, 2), 9.0), torch.tensor([0]), epoch=0)
    with pytest.raises(InputError, match="lade is a statistic of the whole batch"):
        DRWLoss(2, base="lade", class_counts=[3, 1])
    with pytest.raises(InputError, match="class_balanced has class weights of its own"):
        DRWLoss(2, base="class_balanced", class_counts=[3, 1])
    with pytest.raises(InputError, match="dbm has class weights of its own"):
        DRWLoss(2, base="dbm", base_params={"variant": "cb"}, class_counts=[3, 1])
    with pytest.raises(InputError, match="unknown loss 'lda'; did you mean"):
        DRWLoss(2, base="lda", class_counts=[3, 1])
    with pytest.raises(InputError, match="unknown parameter of ldam 'm_max'; did you mean 'max_m'"):
        DRWLoss(2, base="ldam", base_params={"m_max": 0.1}, class_counts=[3, 1])


def test_wrong_parameters_get_a_sentence():
    with pytest.raises(InputError, match=r"m must be a whole number of at least 1, got 1\.5"):
        SphereFaceLoss(3, m=1.5)
    with pytest.raises(InputError, match="lam_start must be a finite number in"):
        SphereFaceLoss(3, lam=5.0, lam_start=1.0)
    with pytest.raises(InputError, match="m must be a finite number in"):
        ArcFaceLoss(3, m=3.0)
    with pytest.raises(InputError, match="s must be a finite number in"):
        CosFaceLoss(3, s=0.0)
    with pytest.raises(InputError, match="ldam needs class_counts"):
        LDAMLoss(3)
    with pytest.raises(InputError, match="k_m and ref must keep all margins below π/2, got 40 radians for class 1"):
        DBMLoss(3, ref="last", class_counts=[50, 1, 400])
    with pytest.raises(InputError, match="unknown value for variant"):
        DBMLoss(3, variant="drw", class_counts=[1, 1, 1])
    with pytest.raises(InputError, match="start must be a finite number"):
        DRWLoss(2, start=-1, class_counts=[3, 1])


def test_soft_targets_mix_the_losses_of_both_labels():
    cosines, first = batch()
    second = (first + 1) % 5
    soft = (0.6 * F.one_hot(first, 5) + 0.4 * F.one_hot(second, 5)).double()
    criterion = DBMLoss(5, k_m=0.3, variant="bs", class_counts=COUNTS)
    expected = 0.6 * criterion(cosines, first) + 0.4 * criterion(cosines, second)
    torch.testing.assert_close(criterion(cosines, soft), expected)


@pytest.mark.parametrize("option", ["label_smoothing", "weight", "ignore_index", "reduction"])
def test_options_belong_to_the_wrapper_and_not_to_its_base(option):
    with pytest.raises(InputError, match=f"{option} cannot be in base_params; give it to drw itself"):
        DRWLoss(3, base="ldam", base_params={option: 1}, class_counts=[3, 2, 1])
