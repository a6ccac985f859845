"""Terms of a loss with known gradients: their sum behaves as any other node of the graph."""

from __future__ import annotations

import pytest
import torch

from classgap.checks import InputError
from classgap.losses import CompactLogitsLoss, ELMLoss, MR2Loss
from classgap.losses.terms import Term, weighted_sum

K, N, D = 4, 20, 6


def squares(x):
    return Term(x.detach().square().sum(), x, lambda weight: 2 * weight * x.detach())


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits, features = (torch.randn(N, width, generator=generator, requires_grad=True) for width in (K, D))
    return logits, torch.randint(K, (N,), generator=generator), features


def test_sum_of_terms_matches_autograd():
    x, y = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    known = weighted_sum((0.5, squares(x)), (3.0, squares(y)))
    plain = 0.5 * x.square().sum() + 3 * y.square().sum()
    torch.testing.assert_close(known, plain)
    torch.testing.assert_close(torch.autograd.grad(7 * known, (x, y)), torch.autograd.grad(7 * plain, (x, y)))


def test_no_gradient_is_computed_where_none_is_needed():
    def gradient(weight):
        raise AssertionError("not needed")

    x = torch.ones(2)
    assert not weighted_sum((1.0, Term(x.sum(), x, gradient))).requires_grad
    x.requires_grad_()
    with torch.no_grad():
        weighted_sum((1.0, Term(x.detach().sum(), x, gradient)))


def test_the_value_can_be_changed_in_place():
    """As loops with gradient accumulation do: ``loss /= 4``."""
    x = torch.ones(2, requires_grad=True)
    loss = weighted_sum((1.0, squares(x)))
    loss /= 4
    loss.backward()
    torch.testing.assert_close(x.grad, torch.full((2,), 0.5))


@pytest.mark.parametrize("build", [MR2Loss, MR2Loss.released, CompactLogitsLoss, "elm"])
def test_a_second_backward_pass_gives_the_same_gradient(build):
    criterion = ELMLoss(K, class_counts=[9, 5, 3, 2]) if build == "elm" else build(K)
    logits, target, features = batch()
    loss = criterion(logits, target, features=features)
    first = torch.autograd.grad(loss, (logits, features), retain_graph=True, allow_unused=True)
    first = [None if part is None else part.clone() for part in first]
    again = torch.autograd.grad(loss, (logits, features), retain_graph=True, allow_unused=True)
    scaled = torch.autograd.grad(loss * 4, (logits, features), allow_unused=True)
    for one, two, four in zip(first, again, scaled, strict=True):
        if one is not None:
            assert torch.equal(one, two)
            torch.testing.assert_close(four, 4 * one)


def test_a_second_derivative_is_an_error_and_not_a_wrong_number():
    logits, target, features = batch()
    (slope,) = torch.autograd.grad(MR2Loss(K)(logits, target, features=features), logits, create_graph=True)
    with pytest.raises(InputError, match="no second derivatives"):
        slope.sum().backward()


@pytest.mark.parametrize(
    ("make", "of"),
    [
        (MR2Loss, "logits"),
        (MR2Loss, "features"),
        (CompactLogitsLoss, "logits"),
        (lambda k: ELMLoss(k, class_counts=[2, 1, 1]), "features"),
    ],
)
def test_second_derivatives_are_refused_instead_of_being_0(make, of):
    given = {"logits": torch.randn(4, 3), "features": torch.randn(4, 5)}
    variable, target = given[of].requires_grad_(), torch.tensor([0, 1, 2, 0])
    (slope,) = torch.autograd.grad(make(3).eval()(target=target, **given), variable, create_graph=True)
    with pytest.raises(InputError, match="no second derivatives"):
        torch.autograd.grad(slope.square().sum(), variable)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")  # of torch itself, in jacfwd
@pytest.mark.parametrize("make", [MR2Loss, CompactLogitsLoss])
def test_torch_func_has_first_derivatives_only(make):
    logits, target, features = batch()
    criterion = make(K).eval()

    def function(logits):
        return criterion(logits, target, features=features.detach())

    (expected,) = torch.autograd.grad(function(logits), logits)
    values = logits.detach()
    torch.testing.assert_close(torch.func.jacrev(function)(values), expected)
    torch.testing.assert_close(torch.func.vjp(function, values)[1](torch.tensor(3.0))[0], 3 * expected)
    with pytest.raises(InputError, match="no second derivatives"):
        torch.func.grad(lambda x: torch.func.grad(function)(x).square().sum())(values)
    with pytest.raises(InputError, match="backward mode only"):
        torch.func.jacfwd(function)(values)
