"""Models by name: sizes as published, one forward pass each, and the errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from classgap.checks import InputError
from classgap.heads import CosineHead, FeatureTap
from classgap.models import build_model


@pytest.mark.parametrize(
    ("name", "millions", "features"),
    [
        ("resnet20", 0.27, 64),
        ("resnet32", 0.46, 64),
        ("resnet44", 0.66, 64),
        ("resnet56", 0.85, 64),
        ("preact20", 0.27, 64),
        ("preact32", 0.47, 64),
        ("wrn-28-10", 36.5, 640),
        ("wrn-22-10", 26.8, 640),
    ],
)
def test_parameter_counts_as_published(name: str, millions: float, features: int) -> None:
    model = build_model(name, 10, (3, 32, 32))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1 if millions > 1 else 2) == millions
    assert FeatureTap(model).head.in_features == features


@pytest.mark.parametrize("name", ["resnet20", "preact20", "wrn-10-1", "mlp", "mlp-16-8", "linear", "timm:test_vit"])
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_forward_and_backward(name: str, head: str) -> None:
    if name.startswith("timm"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    tap = FeatureTap(build_model(name, 5, (1, 32, 32), head))
    logits, features = tap(torch.randn(3, 1, 32, 32))
    assert logits.shape == (3, 5)
    assert isinstance(tap.head, CosineHead if head == "cosine" else nn.Linear)
    assert features.shape == (3, tap.head.in_features)
    logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in tap.parameters() if p.grad is not None)


def test_vectors_and_small_images() -> None:
    assert build_model("linear", 4, (7,))(torch.randn(2, 7)).shape == (2, 4)
    assert build_model("resnet20", 10, (1, 8, 8))(torch.randn(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet23", (3, 32, 32), "did you mean 'resnet32'"),
        ("wrn-27-10", (3, 32, 32), r"6n \+ 4"),
        ("resnet20", (256,), "use mlp or linear"),
        ("tim:resnet18", (3, 32, 32), "did you mean 'timm'"),
        ("timm:resnet19", (3, 32, 32), "did you mean 'resnet"),
        ("torchvision:resnet19", (3, 32, 32), "did you mean 'resnet"),
        ("torchvision:resnet18", (1, 32, 32), "3 colour channels"),
    ],
)
def test_errors(name: str, shape: tuple[int, ...], message: str) -> None:
    if ":" in name:
        pytest.importorskip("timm")
    with pytest.raises(InputError, match=message):
        build_model(name, 10, shape)


def test_own_models_have_no_published_weights() -> None:
    with pytest.raises(InputError, match="no published weights"):
        build_model("resnet20", 10, (3, 32, 32), pretrained=True)
