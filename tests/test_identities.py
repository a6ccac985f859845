"""Methods that are the same loss under certain settings: value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import classgap.losses  # noqa: F401  (declares the methods)
from classgap.registry import get

CLASSES, SAMPLES, WIDTH, SCALE = 6, 14, 8, 30.0
COUNTS = [500, 200, 80, 20, 10, 5]
EQUAL = [40] * CLASSES
Setting = tuple[str, dict[str, Any]]

# On any logits.
CROSS_ENTROPY: list[Setting] = [
    ("cross_entropy", {}),
    ("focal", {"gamma": 0.0}),
    ("class_balanced", {"beta": 0.0}),
    ("class_balanced", {"beta": 0.0, "weight_norm": "weights"}),
    ("class_balanced", {"beta": 0.0, "kind": "focal_softmax", "gamma": 0.0}),
    ("logit_adjusted", {"tau": 0.0}),
    ("vs", {"gamma": 0.0, "tau": 0.0}),
    ("seesaw", {"p": 0.0, "q": 0.0}),
    ("eql", {"gamma": 0.0}),
    ("eql", {"threshold": 0.0}),
    ("eql", {"form": "delta", "coefficient": 0.0}),
    ("ldam", {"form": "delta", "coefficient": 0.0}),
    ("drw", {"start": 1.0}),
    ("drw", {"start": 0.0, "beta": 0.0}),
    ("mr2", {"margins": "uniform", "c_bar": 1.0, "lam": 0.0, "tau": 0.0}),
]
BALANCED_SOFTMAX: list[Setting] = [
    ("balanced_softmax", {}),
    ("logit_adjusted", {"tau": 1.0}),
    ("lade", {"alpha": 0.0}),
    ("vs", {"gamma": 0.0, "tau": 1.0}),
    ("elm", {"lam": 0.0}),
    ("drw", {"base": "logit_adjusted", "start": 1.0}),
]
# With equal class counts.
EQUAL_CLASSES: list[Setting] = [
    ("cross_entropy", {}),
    ("balanced_softmax", {}),
    ("logit_adjusted", {"tau": 2.0}),
    ("vs", {"gamma": 0.4, "tau": 1.3}),
    ("class_balanced", {}),
    ("drw", {"start": 0.0}),
    ("eql", {}),
    ("seesaw", {"q": 0.0, "counts": "training"}),
    ("elm", {"lam": 0.0}),
]
# On cosines.
NO_MARGIN: list[Setting] = [
    ("cosface", {"m": 0.0, "s": SCALE}),
    ("arcface", {"m": 0.0, "s": SCALE}),
    ("sphereface", {"m": 1, "s": SCALE}),
    ("ldam", {"max_m": 0.0, "s": SCALE}),
    ("dbm", {"k_m": 0.0, "s": SCALE}),
    ("dbm", {"k_m": 0.0, "s": SCALE, "instance": "all", "monotone": False}),
    ("drw", {"base": "dbm", "base_params": {"k_m": 0.0, "s": SCALE}, "start": 1.0}),
]
EQUAL_COSINE: list[Setting] = [
    ("cosface", {"m": 0.3, "s": SCALE}),
    ("ldam", {"max_m": 0.3, "s": SCALE}),
]
EQUAL_ANGLE: list[Setting] = [
    ("arcface", {"m": 0.2, "s": SCALE}),
    ("dbm", {"k_m": 0.2, "s": SCALE, "instance": "none"}),
    ("dbm", {"k_m": 0.2, "s": SCALE, "instance": "none", "variant": "bs"}),
    ("dbm", {"k_m": 0.2, "s": SCALE, "instance": "none", "variant": "cb"}),
    ("drw", {"base": "dbm", "base_params": {"k_m": 0.2, "s": SCALE, "instance": "none"}, "start": 0.0}),
]

GROUPS = {
    "cross_entropy": (CROSS_ENTROPY, COUNTS, "logits"),
    "balanced_softmax": (BALANCED_SOFTMAX, COUNTS, "logits"),
    "equal_classes": (EQUAL_CLASSES, EQUAL, "logits"),
    "no_margin": (NO_MARGIN, COUNTS, "cosines"),
    "equal_cosine_margin": (EQUAL_COSINE, EQUAL, "cosines"),
    "equal_angular_margin": (EQUAL_ANGLE, EQUAL, "cosines"),
}
PAIRS = [
    pytest.param(settings[0], other, counts, kind, id=f"{group}-{i}-{other[0]}")
    for group, (settings, counts, kind) in GROUPS.items()
    for i, other in enumerate(settings[1:])
]


def inputs(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    logits = 3 * torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    if kind == "cosines":  # away from -1, where ArcFace and DBM continue differently
        logits = 0.9 * torch.tanh(logits)
    target = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return logits, target, torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)


def value_and_gradient(setting: Setting, counts: list[int], kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    name, params = setting
    criterion = get("loss", name).build(num_classes=CLASSES, class_counts=counts, **params)
    logits, target, features = inputs(kind)
    logits.requires_grad_()
    loss = criterion(logits, target, features=features, epoch=0)
    loss.backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


@pytest.mark.parametrize(("first", "second", "counts", "kind"), PAIRS)
def test_same_loss(first, second, counts, kind):
    for one, other in zip(
        value_and_gradient(first, counts, kind), value_and_gradient(second, counts, kind), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_no_margin_is_cross_entropy_on_scaled_cosines():
    cosines, target, _ = inputs("cosines")
    cosines.requires_grad_()
    expected = F.cross_entropy(SCALE * cosines, target)
    expected.backward()
    value, gradient = value_and_gradient(NO_MARGIN[0], COUNTS, "cosines")
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, cosines.grad)


def test_dbm_with_balanced_softmax_and_no_margin_is_balanced_softmax_on_scaled_cosines():
    cosines, target, _ = inputs("cosines")
    expected = get("loss", "balanced_softmax").build(num_classes=CLASSES, class_counts=COUNTS)(SCALE * cosines, target)
    value, _ = value_and_gradient(("dbm", {"k_m": 0.0, "s": SCALE, "variant": "bs"}), COUNTS, "cosines")
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    ("name", "params"), [("logit_adjusted", {"tau": 1.0}), ("focal", {"gamma": 1.0}), ("vs", {}), ("seesaw", {})]
)
def test_settings_in_the_table_do_matter(name, params):
    """The identities would also hold between losses that ignore their parameters."""
    ordinary = value_and_gradient(("cross_entropy", {}), COUNTS, "logits")[0]
    assert abs(value_and_gradient((name, params), COUNTS, "logits")[0] - ordinary) > 1e-2
