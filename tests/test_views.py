"""Test-time augmentation: views, means over them, and everything that predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classgap
from classgap.checks import InputError
from classgap.data import image_views, load_data
from classgap.data.augment import crop, flip
from classgap.training import TrainConfig, train
from classgap.training.run import start
from classgap.training.stages.base import SharedRuns

SMALL = ["data.per_class=6", "epochs=1", "batch=24", "optim.lr=0.05", "model=mlp-16"]


def fit(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def test_views_are_some_of_those_in_training() -> None:
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    views = list(image_views(images, ["flip", "crop"]))
    assert len(views) == 10
    assert torch.equal(views[0], images)
    assert torch.equal(views[1], flip(images, torch.zeros(2, 2)))
    shifts = ((4, 4), (2, 2), (2, 6), (6, 2), (6, 6))  # training shifts by 0 to 8 of a border of 4
    for view, corner in zip(views[::2], shifts, strict=True):
        assert torch.equal(view, crop(images, (torch.tensor(corner) / 9 + 0.01).expand(2, 2)))
    assert [len(list(image_views(images, names))) for names in ([], ["flip"], ["crop"])] == [1, 2, 5]


def by_hand(folder: Path, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean scores and features of the digits' test images over the views."""
    run = classgap.load_run(folder)
    found = [run.outputs(np.ascontiguousarray(view), np.zeros(len(view), dtype=int), augment="none")
             for view in image_views(load_data("digits").test.x, names)]  # fmt: skip
    return np.mean([f.scores for f in found], 0), np.mean([f.features for f in found], 0)


@pytest.mark.parametrize("settings", [[], ["model.head=cosine"], ["method=lgm"], ["method=ncl"]])
def test_scores_and_features_are_means_over_views(tmp_path: Path, settings: list[str]) -> None:
    result = fit(tmp_path, *settings, "predict.augment=flip,crop")
    scores, features = by_hand(tmp_path, ["flip", "crop"])
    np.testing.assert_allclose(result.test.scores, scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.test.features, features, rtol=1e-4, atol=1e-4)
    if not settings or "cosine" in settings[0]:
        bias = 0 if result.test.bias is None else result.test.bias
        layer = result.test.features @ result.test.weight.T + bias
        np.testing.assert_allclose(layer, result.test.scores, rtol=1e-3, atol=1e-4)
    again = classgap.load_run(tmp_path)
    np.testing.assert_allclose(again.outputs("digits").scores, scores, rtol=1e-4, atol=1e-4)
    mirrored = again.scores("digits", augment="flip", part="test")
    np.testing.assert_allclose(mirrored, by_hand(tmp_path, ["flip"])[0], rtol=1e-4, atol=1e-4)


def test_views_of_an_ensemble(tmp_path: Path) -> None:
    result = fit(tmp_path, "stage=ensemble", "stage.members=2", "stage.combine=logits", "predict.augment=flip")
    np.testing.assert_allclose(result.test.scores, by_hand(tmp_path, ["flip"])[0], rtol=1e-4, atol=1e-4)
    assert not (tmp_path / "stage1").exists()


def test_first_stage_is_the_plain_run(tmp_path: Path) -> None:
    plain = fit(tmp_path / "plain", "average=ema", "average.horizon=0.5", "model.wise=0.9")
    views = fit(tmp_path / "views", "average=ema", "average.horizon=0.5", "model.wise=0.9", "predict.augment=flip")
    files = ("model.safetensors", "predictions_test.npz", "predictions_val.npz")
    for file in files:
        assert (tmp_path / "views" / "stage1" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
    assert (tmp_path / "views" / files[0]).read_bytes() == (tmp_path / "plain" / files[0]).read_bytes()
    assert not np.allclose(plain.test.scores, views.test.scores)
    (record,) = views.history
    assert record["train"] == plain.history[-1]["train"]
    correct = views.val.y_pred == views.val.y_true
    balanced = np.mean([correct[views.val.y_true == k].mean() for k in range(10)])
    assert record["val"]["balanced"] == pytest.approx(balanced)


def test_variants_share_the_training(tmp_path: Path) -> None:
    """As in a suite: one first stage for all, whatever comes after it."""
    for number, settings in enumerate((["predict.augment=flip"], ["predict.augment=flip,crop"], ["stage=gap_dial"])):
        config = TrainConfig().override([*SMALL, *settings, "data.val_fraction=0.3"])
        trainer = start(config, tmp_path / str(number), shared=SharedRuns(tmp_path / "shared"))
        trainer.run()
        trainer.release()
    assert len(list((tmp_path / "shared").glob("*/run.json"))) == 1


def test_correction_is_fitted_to_averaged_scores(tmp_path: Path) -> None:
    options = ["stage=gap_dial", "stage.strength=2", "stage.ridge=1", "data.val_fraction=0.3", "predict.augment=flip"]
    result = fit(tmp_path, *options)
    run = classgap.load_run(tmp_path)
    np.testing.assert_allclose(run.outputs("digits").scores, result.test.scores, rtol=1e-4, atol=1e-4)
    first = classgap.load_run(tmp_path / "stage1")
    held_out = load_data("digits", per_class=6, val_fraction=0.3).val
    scores = first.outputs(held_out.x.numpy(), held_out.y.numpy(), augment="flip").scores
    dial = classgap.posthoc.GapDial(strength=2, ridge=1).fit(scores, held_out.y.numpy(), class_counts=np.full(10, 6))
    np.testing.assert_allclose(run.correction.offset_, dial.offset_, rtol=1e-2, atol=1e-2)


def test_resumed_before_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(tmp_path / "whole", "predict.augment=flip")
    with monkeypatch.context() as patch:
        patch.setattr("classgap.training.run.write_results", lambda trainer: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(tmp_path / "cut", "predict.augment=flip")
    again = fit(tmp_path / "cut", "predict.augment=flip", resume=True)
    assert np.array_equal(whole.test.scores, again.test.scores)


def test_names_and_errors(tmp_path: Path) -> None:
    config = TrainConfig().override(["predict.augment=flip,crop"])
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert "tta_flip_crop" in config.slug
    assert config.override(["predict.augment=none"]).slug == TrainConfig().slug
    with pytest.raises(InputError, match="rotate"):
        TrainConfig().override(["predict.augment=rotate"])
    with pytest.raises(InputError, match="once"):
        TrainConfig().override(["predict.augment=flip,flip"])
    with pytest.raises(InputError, match="is for images"):
        train(TrainConfig().override(["data=two_moons", "predict.augment=flip"]), tmp_path / "moons")
    fit(tmp_path / "run")
    with pytest.raises(InputError, match="augment"):
        classgap.load_run(tmp_path / "run").predict("digits", augment="rotate")
