"""The last layer in training: prototypes of BCL come from it, and the causal head takes its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel

import classgap
from classgap.checks import InputError
from classgap.data import load_data
from classgap.heads import CosineHead, FeatureTap
from classgap.losses import BCLLoss
from classgap.models import CausalNormHead, build_model
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.run import start
from test_causal import reference

SMALL = ["data.per_class=13", "epochs=2", "batch=24", "optim.lr=0.05", "model=mlp-16"]
DBM_BCL = ["method=bcl", "method.base=dbm", 'method.base_params={"variant": "bs"}']


def run(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def begun(folder: Path, *settings: str) -> Any:
    """A trainer before its first step."""
    return start(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu")


class Killed(Exception):
    pass


def check_resumed(folder: Path, *settings: str) -> None:
    def cut(position: TrainProgress) -> None:
        if position.step == 5:
            raise Killed

    settings = (*settings, "checkpoint_steps=2")
    with pytest.raises(Killed):
        run(folder / "cut", *settings, watch=cut)
    resumed, whole = run(folder / "cut", *settings, resume=True), run(folder / "whole", *settings)
    assert np.array_equal(resumed.test.scores, whole.test.scores)
    one, two = (torch.load(folder / name / "checkpoint.pt", weights_only=True) for name in ("cut", "whole"))
    for part in ("model", "criterion"):
        assert all(torch.equal(one[part][key], two[part][key]) for key in one[part])


# --- BCL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [["method=bcl"], DBM_BCL], ids=["linear", "cosine"])
def test_the_contrast_of_bcl_trains_the_classifier(tmp_path: Path, settings: list[str]) -> None:
    settings = [*settings, "method.alpha=0", "optim.weight_decay=0", "data.val_fraction=0"]
    trainer = begun(tmp_path / "begun", *settings)
    assert isinstance(trainer.model.head, CosineHead) == (settings[0:3] == DBM_BCL)
    assert not any(tuple(p.shape) == (10, 16) for p in trainer.criterion.parameters())  # free prototypes
    before = trainer.model.head.weight.detach().clone()
    run(tmp_path / "run", *settings)
    after = load_file(tmp_path / "run" / "model.safetensors")[f"{trainer.model.layer}.weight"]
    assert (after - before).abs().max() > 1e-3


def test_training_with_bcl_equals_the_plain_loop_of_its_docstring(tmp_path: Path) -> None:
    run(tmp_path, "method=bcl", "batch=200", "optim.weight_decay=0", "data.augment=none", "data.val_fraction=0")
    data = load_data("digits", per_class=13, val_fraction=0)
    images, target = (data.train.x / 255 - data.mean[0]) / data.std[0], data.train.y
    torch.manual_seed(0)
    model = FeatureTap(build_model("mlp-16", 10, (1, 8, 8)))
    criterion = BCLLoss(10, 16, class_counts=data.class_counts)
    criterion.bind_head(model.head)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.05, momentum=0.9)
    averaged = AveragedModel(model)  # a running mean of the weights has no part in the prototypes
    for rate in (0.05, 0.025):
        optimizer.param_groups[0]["lr"] = rate
        logits, features = model(torch.cat([images] * 3))
        optimizer.zero_grad()
        criterion(logits, target.repeat(3), features).backward()
        optimizer.step()
        averaged.update_parameters(model)
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [["method=bcl"], DBM_BCL], ids=["linear", "cosine"])
def test_bcl_resumes_bit_for_bit(tmp_path: Path, settings: list[str]) -> None:
    check_resumed(tmp_path, *settings, "wrapper=sam")


# --- causal head ----------------------------------------------------------------------------------------------------


def test_predictions_of_a_causal_head_have_the_common_direction_removed(tmp_path: Path) -> None:
    result = run(tmp_path, "model.head=causal", "model.head.alpha=1", "model.head.heads=4", "epochs=10")
    weights = load_file(tmp_path / "model.safetensors")
    weight, direction = weights["3.weight"].numpy(), weights["3.direction"].numpy()
    given = {"heads": 4, "scale": 16.0, "gamma": 1 / 32}
    test = result.test
    expected = reference(test.features, weight, direction, **given, alpha=1.0)
    np.testing.assert_allclose(test.scores, expected, rtol=1e-3, atol=1e-3)
    plain = reference(test.features, weight, direction, **given, alpha=0.0)
    assert np.abs(test.scores - plain).max() > 0.1
    assert test.weight is None  # the scores are no linear function of the features
    assert (test.y_pred == test.y_true).mean() > 0.5
    with np.load(tmp_path / "predictions_val.npz") as saved:
        assert (saved["scores"].argmax(1) == saved["y_pred"]).all()
    about = json.loads((tmp_path / "run.json").read_text())["config"]["model"]
    assert about["head_params"] == {"alpha": 1, "heads": 4}


def test_a_run_with_a_causal_head_resumes_bit_for_bit(tmp_path: Path) -> None:
    check_resumed(tmp_path, "model.head=causal", "wrapper=sam", "method=logit_adjusted")


def test_the_second_pass_of_sam_does_not_move_the_direction(tmp_path: Path) -> None:
    settings = ["model.head=causal", "epochs=1", "batch=200", "data.val_fraction=0"]
    directions = []
    for name in ("none", "sam"):
        run(tmp_path / name, *settings, f"wrapper={name}")
        directions.append(load_file(tmp_path / name / "model.safetensors")["3.direction"])
    assert torch.equal(*directions)


def test_several_networks_have_a_causal_head_each(tmp_path: Path) -> None:
    trainer = begun(tmp_path, "model.head=causal", "method=ncl")
    assert [type(member.head) for member in trainer.model.members] == [CausalNormHead] * 3


def test_a_causal_head_is_left_behind_by_a_linear_probe(tmp_path: Path) -> None:
    result = run(tmp_path, "model.head=causal", "stage=linear_probe", "stage.epochs=1")
    assert result.test.bias is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.head=causal", "model.head.alpa=3"], "did you mean 'alpha'"),
        (["model.head=causal", "model.head.heads=3"], "multiple of heads=3"),
        (["model.head.alpha=3"], "a linear head has no parameter 'alpha'"),
        (["model.head=causal", "method=dbm"], "works on cosines"),
        (["model.head=causal", "stage=marc"], "model.head=causal is none"),
        (["model.head=causal", "stage=three_stage", "method=dro_lt"], "model.head=causal is none"),
    ],
)
def test_heads_that_cannot_work_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stage", ["gap_dial", "crt", "marc"])
def test_corrections_of_the_last_layer_are_refused_where_it_does_not_rank(tmp_path: Path, stage: str) -> None:
    """They ended in a traceback after the first stage had been trained."""
    with pytest.raises(InputError, match="method lgm ranks classes by something else"):
        classgap.train(folder=tmp_path / "run", settings=[*SMALL, "method=lgm", f"stage={stage}"])
    assert not (tmp_path / "run" / "stage1").exists()


def test_predictions_by_class_means_have_no_last_layer(tmp_path: Path) -> None:
    """The last layer, which L-GM does not train, was stored as the one behind its scores."""
    found = classgap.train(folder=tmp_path / "run", settings=[*SMALL, "method=lgm"]).test
    assert found.weight is None
    assert found.bias is None
    assert classgap.load_run(tmp_path / "run").last_layer() == (None, None)
