"""Settings of fine-tuning, each by an identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import classgap
from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.losses import CrossEntropyLoss
from classgap.models import build_model
from classgap.training import TrainConfig, train
from classgap.training.config import OptimConfig, ScheduleConfig
from classgap.training.groups import layer_depths, parameter_groups
from classgap.training.schedule import in_epochs, rate_factor

QUICK = ["epochs=2", "data.per_class=16", "model=mlp-16", "batch=40"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def groups(config: OptimConfig, model: nn.Module) -> list[dict[str, Any]]:
    return parameter_groups(config, FeatureTap(model), CrossEntropyLoss(5))


def test_groups_by_default_are_one() -> None:
    (only,) = groups(OptimConfig(), build_model("resnet20", 5, (3, 32, 32)))
    assert set(only) == {"params"}


def test_norms_and_biases_without_decay() -> None:
    model = build_model("resnet20", 5, (3, 32, 32))
    decayed, free = groups(OptimConfig(decay_norms=False), model)
    assert all(p.dim() > 1 for p in decayed["params"])
    assert {id(p) for p in free["params"]} == {id(p) for p in model.parameters() if p.dim() <= 1}
    assert free["weight_decay"] == 0.0
    assert "weight_decay" not in decayed


def test_network_lists_what_is_not_decayed() -> None:
    pytest.importorskip("timm")
    model = build_model("timm:test_vit", 5, (3, 32, 32))
    free = groups(OptimConfig(decay_norms=False), model)[-1]["params"]
    assert any(p is model.pos_embed for p in free)


def test_layer_decay() -> None:
    """As in the code of BEiT and MAE: decay ** (layers + 1 - depth), the embedding at depth 0, the head with the full rate."""
    pytest.importorskip("timm")
    model = build_model("timm:test_vit", 5, (3, 32, 32))
    factors = {
        id(p): group.get("lr_factor", 1.0)
        for group in groups(OptimConfig(layer_decay=0.5), model)
        for p in group["params"]
    }
    blocks = len(model.blocks)
    assert factors[id(model.patch_embed.proj.weight)] == 0.5 ** (blocks + 1)
    for depth, block in enumerate(model.blocks):
        assert factors[id(block.mlp.fc1.weight)] == 0.5 ** (blocks - depth)
    assert factors[id(model.head.weight)] == 1.0


@pytest.mark.parametrize("name", ["resnet20", "torchvision:resnet18", "mlp-8-8"])
def test_depths_of_other_networks(name: str) -> None:
    if ":" in name:
        pytest.importorskip("torchvision")
    model = build_model(name, 5, (3, 32, 32))
    depths = list(layer_depths(model).values())
    assert depths == sorted(depths)
    blocks = {"resnet20": 9, "torchvision:resnet18": 8, "mlp-8-8": 2}[name]
    assert len(set(depths)) == blocks + (1 if name.startswith("mlp") else 2)


def test_layer_decay_scales_the_first_step(tmp_path: Path) -> None:
    """SGD without momentum: after one step the change of a layer is proportional to its factor."""
    setup = [*QUICK, "epochs=1", "data.per_class=4", "optim.momentum=0", "optim.weight_decay=0", "schedule=constant"]
    changes = []
    start = build(setup)
    for decay in ("1", "0.5"):
        result = train(settings=[*setup, f"optim.layer_decay={decay}"], folder=tmp_path / decay)
        end = weights(result.folder)
        changes.append({k: end[k] - start[k] for k in end})
    torch.testing.assert_close(changes[1]["1.weight"], 0.5 * changes[0]["1.weight"])
    torch.testing.assert_close(changes[1]["3.weight"], changes[0]["3.weight"])


def build(settings: list[str]) -> dict[str, torch.Tensor]:
    """The weights that a run with these settings starts from."""
    config = TrainConfig().override(settings)
    torch.manual_seed(config.seed)
    return build_model(config.model.name, 10, (1, 8, 8)).state_dict()


def test_frozen_backbone(tmp_path: Path) -> None:
    result = train(settings=[*QUICK, "model.frozen=true"], folder=tmp_path)
    start, end = build(QUICK), weights(result.folder)
    assert torch.equal(start["1.weight"], end["1.weight"])
    assert not torch.equal(start["3.weight"], end["3.weight"])


def test_frozen_backbone_keeps_running_statistics(tmp_path: Path) -> None:
    setup = [*QUICK, "model=resnet20", "epochs=1", "model.frozen=true"]
    end = weights(train(settings=setup, folder=tmp_path).folder)
    start = build(setup)
    changed = [k for k in end if not torch.equal(start[k], end[k])]
    assert sorted(changed) == ["fc.bias", "fc.weight"]


def test_frozen_norms_are_trained_with_the_statistics_they_start_with(tmp_path: Path) -> None:
    setup = [*QUICK, "model=resnet20", "epochs=1", "optim.lr=0.001", "model.freeze_norms=true"]
    end = weights(train(settings=setup, folder=tmp_path).folder)
    start = build(setup)
    kept = [k for k in end if "running" in k or "num_batches" in k]
    assert kept
    assert all(torch.equal(start[k], end[k]) for k in kept)
    assert not torch.equal(start["stem.1.weight"], end["stem.1.weight"])


def test_frozen_backbone_and_a_stage_that_trains_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.frozen=true trains the head alone"):
        train(settings=[*QUICK, "model.frozen=true", "stage=three_stage"], folder=tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_wise(share: float, tmp_path: Path) -> None:
    """The final network is a mean of start and end; the head, which started at random, is the trained one."""
    end = weights(train(settings=QUICK, folder=tmp_path / "plain").folder)
    mixed = train(settings=[*QUICK, f"model.wise={share}"], folder=tmp_path / "wise")
    start, found = build(QUICK), weights(mixed.folder)
    torch.testing.assert_close(found["1.weight"], (1 - share) * start["1.weight"] + share * end["1.weight"])
    torch.testing.assert_close(found["3.weight"], end["3.weight"])
    again = classgap.load_run(mixed.folder).outputs("digits")
    np.testing.assert_allclose(again.scores, mixed.test.scores, rtol=1e-5, atol=1e-5)


def test_wise_with_a_head_from_a_file_and_resumed(tmp_path: Path) -> None:
    torch.manual_seed(9)
    start = build_model("mlp-16", 10, (1, 8, 8)).state_dict()
    save_file(start, tmp_path / "start.safetensors")
    setup = [*QUICK, f"model.pretrained={tmp_path / 'start.safetensors'}"]
    end = weights(train(settings=setup, folder=tmp_path / "plain").folder)
    wise = [*setup, "model.wise=0.5"]
    mixed = train(settings=wise, folder=tmp_path / "wise")
    found = weights(mixed.folder)
    for name in found:
        torch.testing.assert_close(found[name], (start[name] + end[name]) / 2)
    (tmp_path / "wise" / "model.safetensors").unlink()  # as after a kill between training and results
    again = train(settings=wise, folder=tmp_path / "wise", resume=True)
    assert all(torch.equal(v, weights(again.folder)[k]) for k, v in found.items())


def test_pretrained_weights_are_where_training_starts(tmp_path: Path) -> None:
    torch.manual_seed(9)
    save_file(build_model("mlp-16", 3, (1, 8, 8)).state_dict(), tmp_path / "start.safetensors")
    notes: list[str] = []
    setup = [*QUICK, f"model.pretrained={tmp_path / 'start.safetensors'}", "model.frozen=true"]
    result = train(settings=setup, folder=tmp_path / "run", watch=lambda p: notes.append(p.note))
    assert torch.equal(weights(result.folder)["1.weight"], load_file(tmp_path / "start.safetensors")["1.weight"])
    assert "start.safetensors has no head for 10 classes: the head starts at zero" in notes
    (tmp_path / "start.safetensors").unlink()  # the run does not need it any more
    found = classgap.load_run(result.folder).outputs("digits")
    np.testing.assert_allclose(found.scores, result.test.scores, rtol=1e-5, atol=1e-5)


def test_warm_up_in_steps_and_in_epochs_agree() -> None:
    steps = in_epochs(ScheduleConfig(warmup_steps=15), [0, 10, 20, 30])
    assert steps == ScheduleConfig(warmup=1.5)
    assert rate_factor(steps, 0.75, 3) == 0.5
    with pytest.raises(InputError, match="less than the 30 steps"):
        in_epochs(ScheduleConfig(warmup_steps=30), [0, 10, 20, 30])


def test_warm_up_in_steps_trains_as_in_epochs(tmp_path: Path) -> None:
    one = train(settings=[*QUICK, "schedule.warmup_steps=2"], folder=tmp_path / "steps")  # 4 steps in an epoch
    two = train(settings=[*QUICK, "schedule.warmup=0.5"], folder=tmp_path / "epochs")
    assert all(torch.equal(v, weights(two.folder)[k]) for k, v in weights(one.folder).items())


def test_betas_reach_the_optimiser(tmp_path: Path) -> None:
    adam = [*QUICK, "optim=adamw", "optim.lr=0.01"]
    usual = train(settings=[*adam, "optim.betas=0.9,0.999"], folder=tmp_path / "usual")
    plain = train(settings=adam, folder=tmp_path / "plain")
    other = train(settings=[*adam, "optim.betas=0.5,0.9"], folder=tmp_path / "other")
    assert torch.equal(weights(usual.folder)["3.weight"], weights(plain.folder)["3.weight"])
    assert not torch.equal(weights(other.folder)["3.weight"], weights(plain.folder)["3.weight"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optim.betas=0.9", "two numbers"),
        ("optim.betas=0.9,1", "two numbers"),
        ("optim.layer_decay=0", "optim.layer_decay"),
        ("model.wise=1.5", "model.wise"),
        ("model.zero_shot=a photo", "sentence with {}"),
        ("schedule.warmup_steps=-1", "warmup_steps"),
    ],
)
def test_bad_settings(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig().override([setting])


def test_new_settings_do_not_rename_runs() -> None:
    plain = TrainConfig().to_dict()
    assert not {"wise", "frozen", "tokens", "zero_shot"} & set(plain["model"])
    assert not {"betas", "layer_decay", "decay_norms"} & set(plain["optim"])
    changed = TrainConfig().override(["optim.betas=0.9,0.95", "model.wise=0.6", "model.pretrained=a1_in1k"])
    assert TrainConfig.from_dict(changed.to_dict()) == changed
    assert changed.model.pretrained == "a1_in1k"
    assert TrainConfig().override(["model.pretrained=true"]).model.pretrained is True
