"""Every registered loss, stage, sampler and optimiser trains a small network on real digits: finite, and better than chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classgap import registry
from classgap.training import TrainConfig, train

SMALL = [
    *("data.per_class=60", "data.profile=exponential", "data.imbalance=4", "data.val_fraction=0"),
    *("model=mlp-32", "batch=16", "epochs=2", "optim.lr=0.05"),
]
# Batches of 8 × 2 samples; the others need nothing.
SAMPLER_SETTINGS = {"p_by_q": ["sampler.classes=8", "sampler.samples=2"]}
STAGE_SETTINGS = {
    "add_samples": ["data.profile=balanced", "data.imbalance=1", "data.spare=5"],
    "ensemble_teacher": ["method=distillation", "stage.members=2"],
}


def accuracy(folder: Path, *settings: str) -> float:
    result = train(TrainConfig().override([*SMALL, *settings]), folder / "run", accelerator="cpu")
    assert np.isfinite(result.test.scores).all()
    assert all(np.isfinite(record["train"]["loss"]) for record in result.history)
    return float((result.test.y_pred == result.test.y_true).mean())


def names(kind: registry.Kind) -> list[str]:
    return [spec.name for spec in registry.methods(kind)]


@pytest.mark.parametrize("name", names("loss"))
def test_every_loss_learns(tmp_path: Path, name: str) -> None:
    # With the published weight MR² draws all features to one point (its card says so); a hundredth of it trains.
    weight = ["method.lam=0.005"] if name == "mr2_published" else []
    assert accuracy(tmp_path, f"method={name}", *weight) > 0.3  # chance is 0.1


@pytest.mark.parametrize("name", names("stage"))
def test_every_stage_learns(tmp_path: Path, name: str) -> None:
    settings = ["data.val_fraction=0.1", *STAGE_SETTINGS.get(name, [])]  # some are fitted to the validation set
    assert accuracy(tmp_path, f"stage={name}", *settings) > 0.3


@pytest.mark.parametrize("name", names("sampler"))
def test_every_sampler_feeds_training(tmp_path: Path, name: str) -> None:
    assert accuracy(tmp_path, f"sampler={name}", *SAMPLER_SETTINGS.get(name, [])) > 0.3


@pytest.mark.parametrize("name", names("optimizer"))
@pytest.mark.parametrize("loss", ["cross_entropy", "mr2", "gml", "lff"])
def test_every_wrapper_learns_also_with_stateful_losses(tmp_path: Path, name: str, loss: str) -> None:
    assert accuracy(tmp_path, f"wrapper={name}", f"method={loss}", "optim.accumulate=2") > 0.3


@pytest.mark.parametrize("mix", names("mix"))
@pytest.mark.parametrize("loss", ["cross_entropy", "mr2", "dbm", "bcl", "ncl", "gml"])
def test_soft_targets_of_mixed_samples_suit_losses_of_every_kind(tmp_path: Path, mix: str, loss: str) -> None:
    settings = ["data.val_fraction=0.1"] if mix == "confused_mixup" else []  # where it measures confusions
    assert accuracy(tmp_path, f"mix={mix}", f"method={loss}", "mix.alpha=0.2", *settings) > 0.2


def test_two_stage_contrast(tmp_path: Path) -> None:
    assert accuracy(tmp_path, "method=supcon", "method.ce_weight=0", "stage=linear_probe") > 0.3


def test_margins_inside_other_methods(tmp_path: Path) -> None:
    base = ("method.base=dbm", 'method.base_params={"variant": "bs"}')
    for name in ("bcl", "ncl", "gml", "drw"):
        longer = ["epochs=8"] if name == "ncl" else []  # margins in all its terms slow the start
        assert accuracy(tmp_path / name, f"method={name}", *base, *longer) > 0.3
