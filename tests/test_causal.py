"""The causal-norm head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from classgap.checks import InputError
from classgap.models import CausalNormHead


def reference(features, weight, direction, *, heads, scale, gamma, alpha):
    """Loops over samples, classes and heads."""
    logits = np.zeros((len(features), len(weight)))
    for i, x in enumerate(features):
        for k, w in enumerate(weight):
            for part, row, c in zip(*(np.split(v, heads) for v in (x, w, direction)), strict=True):
                unit = part / np.linalg.norm(part)
                if alpha:
                    c = c / np.linalg.norm(c)
                    unit = unit - alpha * (unit @ c) * c
                logits[i, k] += scale / heads * unit @ row / (np.linalg.norm(row) + gamma)
    return logits


@pytest.fixture
def trained() -> tuple[CausalNormHead, torch.Tensor]:
    torch.manual_seed(0)
    head = CausalNormHead(6, 4, alpha=1.5)
    for _ in range(3):
        head(torch.randn(8, 6) + 1)
    return head, torch.randn(5, 6)


def test_matches_reference(trained):
    head, features = trained
    given = {"heads": 2, "scale": 16.0, "gamma": 1 / 32}
    arrays = features.numpy(), head.weight.detach().numpy(), head.direction.numpy()
    assert head.eval()(features).detach().numpy() == pytest.approx(reference(*arrays, **given, alpha=1.5), abs=1e-4)
    assert head.train()(features).detach().numpy() == pytest.approx(reference(*arrays, **given, alpha=0.0), abs=1e-4)


def test_without_correction_test_logits_are_training_logits(trained):
    head, features = trained
    head.alpha = 0.0
    assert torch.allclose(head.eval()(features), head.train()(features))


def test_direction_follows_the_mean_and_only_while_training(trained):
    head, features = trained
    before = head.direction.clone()
    head.eval()(features)
    assert torch.equal(head.direction, before)
    head.train()(features)
    assert torch.allclose(head.direction, 0.9 * before + features.mean(0))
    assert "direction" in head.state_dict()


def test_double_and_half_precision():
    head = CausalNormHead(6, 4).double()
    assert head(torch.randn(3, 6).double()).dtype == torch.float64
    half = CausalNormHead(6, 4).bfloat16()
    assert half(torch.randn(3, 6).bfloat16()).dtype == torch.float32


def test_untrained_head_predicts_finite_values():
    assert torch.isfinite(CausalNormHead(4, 3).eval()(torch.randn(2, 4))).all()
    assert torch.isfinite(CausalNormHead(4, 3)(torch.zeros(2, 4))).all()


def test_features_must_split_evenly():
    with pytest.raises(InputError, match="multiple of heads"):
        CausalNormHead(5, 3)


def test_learns_as_a_last_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), CausalNormHead(8, 2))
    inputs = torch.randn(64, 2)
    target = (inputs[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    assert (model.eval()(inputs).argmax(1) == target).float().mean() > 0.9
