"""Configuration: strict overrides, JSON round trip, schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classgap.checks import InputError
from classgap.training import (
    DataConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    PartConfig,
    PredictConfig,
    ScheduleConfig,
    TrainConfig,
    train,
)
from classgap.training.schedule import rate_factor
from classgap.training.setting_limits import unused_settings


def test_json_round_trip() -> None:
    config = TrainConfig(
        data=DataConfig(per_class=5, augment=("crop", "flip")),
        method=MethodConfig("mr2", {"lam": 0.1, "p": 3}),
        schedule=ScheduleConfig("step", milestones=(10, 20)),
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("assignment", "read", "value"),
    [
        ("optim.lr=5e-2", lambda c: c.optim.lr, 0.05),
        ("data.augment=crop,flip", lambda c: c.data.augment, ("crop", "flip")),
        ("data.augment=none", lambda c: c.data.augment, ()),
        ("data.augment=default", lambda c: c.data.augment, None),
        ("data.per_class=none", lambda c: c.data.per_class, None),
        ("data=npz:/a/b.npz", lambda c: c.data.name, "npz:/a/b.npz"),
        ("model=wrn-28-10", lambda c: c.model.name, "wrn-28-10"),
        ("optim=adamw", lambda c: c.optim.name, "adamw"),
        ("optim.nesterov=true", lambda c: c.optim.nesterov, True),
        ("schedule.milestones=3,5", lambda c: c.schedule.milestones, (3, 5)),
        ("method.lam=0.1", lambda c: c.method.params, {"lam": 0.1}),
        ("method.form=paper", lambda c: c.method.params, {"form": "paper"}),
        ("method.flag=True", lambda c: c.method.params, {"flag": True}),
        ("model.head=causal", lambda c: c.model.head, "causal"),
        ("model.head.alpha=3", lambda c: c.model.head_params, {"alpha": 3}),
        ("epochs=7", lambda c: c.epochs, 7),
    ],
)
def test_override(assignment: str, read: object, value: object) -> None:
    assert read(TrainConfig().override([assignment])) == value  # type: ignore[operator]


def test_another_method_starts_from_its_defaults() -> None:
    config = TrainConfig().override(["method=mr2", "method.lam=0.1", "method=ldam", "method.max_margin=0.3"])
    assert config.method == MethodConfig("ldam", {"max_margin": 0.3})


def test_parameters_may_stand_before_their_name() -> None:
    config = TrainConfig().override(["stage.members=4", "method.lam=0.1", "method=mr2", "stage=ensemble"])
    assert (config.method, config.stage.params) == (MethodConfig("mr2", {"lam": 0.1}), {"members": 4})
    assert config.override(["method=ldam", "method=mr2"]).method == MethodConfig("mr2")
    swa = TrainConfig().override(["average.start=0.5", "average=swa"])
    assert swa.average.start == 0.5
    assert TrainConfig().override(["model.head.alpha=3", "model.head=causal"]).model.head_params == {"alpha": 3}


@pytest.mark.parametrize("setting", ["stage.members=4", "mix.alpha=3", "wrapper.rho=2", "sampler.power=2"])
def test_a_setting_of_a_part_that_is_not_there_is_refused(setting: str) -> None:
    with pytest.raises(InputError, match=rf"{setting.partition('=')[0]} is set, but the run has no"):
        TrainConfig().override([setting])


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        (["optim.betas=0.5,0.6"], "optim.betas"),
        (["optim=adamw", "optim.momentum=0.3"], "optim.momentum"),
        (["schedule.milestones=1,2"], "schedule.milestones"),
        (["schedule=constant", "schedule.floor=0.1"], "schedule.floor"),
        (["schedule.warmup_start=0.1"], "schedule.warmup_start"),
        (["data.crop_scale=0.5"], "data.crop_scale"),
        (["model.wise=0.5"], "model.wise"),
    ],
)
def test_a_setting_without_effect_is_pointed_out(settings: list[str], unused: str) -> None:
    (note,) = unused_settings(TrainConfig().override(settings))
    assert note.startswith(unused)


def test_settings_with_an_effect_are_not_pointed_out() -> None:
    config = TrainConfig().override(
        [
            *("optim=adamw", "optim.betas=0.5,0.6", "schedule=step", "schedule.milestones=1,2", "schedule.gamma=0.3"),
            *("schedule.warmup=1", "schedule.warmup_start=0.1", "data.augment=resized_crop", "data.crop_scale=0.5"),
            *("model.wise=0.5", "model.pretrained=true"),
        ]
    )
    assert unused_settings(config) == unused_settings(TrainConfig()) == ()


def test_parameters_of_a_head_belong_to_it() -> None:
    config = TrainConfig().override(["model.head=causal", "model.head.alpha=3"])
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert config.differences(TrainConfig()) == ["model.head: causal → auto", "model.head_params.alpha: 3 → None"]
    assert config.override(["model.head=linear"]).model.head_params == {}
    assert "head_params" not in TrainConfig().to_dict()["model"]  # folders of older runs keep their names


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.head_params=3", "unknown setting"),
        ("model.heads=causal", "did you mean 'model.head'"),
        ("optim.rl=0.1", "did you mean 'optim.lr'"),
        ("epoch=3", "did you mean 'epochs'"),
        ("optm.lr=1", "did you mean 'optim.lr'"),
        ("epochs=ten", "epochs must be a whole number, got 'ten'"),
        ("epochs=0", "epochs must be a finite number"),
        ("epochs.x=1", "epochs has no parts"),
        ("optim.lr=nan", "optim.lr must be a finite number"),
        ("optim.lr=0", "optim.lr"),
        ("optim.lr", "--set wants key=value"),
        ("optim.nesterov=yes", "must be true or false"),
        ("optim=sdg", "did you mean 'sgd'"),
        ("precision=bf16", "did you mean 'bf16-"),
        ("schedule=step", "schedule.milestones"),
        ("schedule.warmup=99", "less than epochs"),
        ("data.val_fraction=1.5", "data.val_fraction"),
        ("data.imbalance=0.5", "data.imbalance"),
        ("batch=1", "batch must be"),
    ],
)
def test_bad_settings(assignment: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        TrainConfig().override([assignment])


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(InputError, match="needs optim"):
        TrainConfig().override(["optim.nesterov=true", "optim.momentum=0"])


def test_unknown_key_in_a_stored_configuration() -> None:
    with pytest.raises(InputError, match=r"did you mean 'data\.per_class'"):
        TrainConfig.from_dict({"data": {"per_clas": 3}})


def test_slug_and_differences() -> None:
    one = TrainConfig()
    two = one.override(["optim.lr=0.05", "method.label_smoothing=0.1"])
    assert one.slug != two.slug
    assert one.slug.startswith("digits-mlp-cross_entropy-seed0-")
    assert "optim.lr: 0.1 → 0.05" in one.differences(two)
    assert one.differences(one) == []
    assert "/" not in one.override(["data=npz:a/b.npz", "model=timm:resnet18"]).slug


def test_schedules_end_where_they_should() -> None:
    cosine = ScheduleConfig("cosine", warmup=2, warmup_start=1 / 3, floor=0.01)
    assert rate_factor(cosine, 0, 10) == pytest.approx(1 / 3)
    assert rate_factor(cosine, 2, 10) == 1
    assert rate_factor(cosine, 10, 10) == pytest.approx(0.01)
    assert rate_factor(ScheduleConfig("constant"), 9, 10) == 1
    steps = ScheduleConfig("step", milestones=(160, 180), gamma=0.01)
    assert [rate_factor(steps, e, 200) for e in (159.9, 160, 180)] == pytest.approx([1, 0.01, 0.0001])


_SECTIONS = ("data", "model", "method", "optim", "schedule", "sampler", "mix", "wrapper", "average", "predict", "stage")


@pytest.mark.parametrize("section", _SECTIONS)
def test_a_text_in_the_place_of_a_section(section: str) -> None:
    with pytest.raises(
        InputError, match=rf"{section} must be of the class \w+, got 'x'; write {section}=\w+\(\w+=\(?'x'"
    ):
        TrainConfig(**{section: "x"})
    with pytest.raises(InputError, match=rf"{section} must be a dictionary of settings such as .*'x'"):
        TrainConfig.from_dict({section: "x"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"name": "digits"}}, r"write data=DataConfig\(\*\*…\)"),
        ({"data": None}, "or leave data out"),
        ({"data": ModelConfig()}, "data must be of the class DataConfig"),
        ({"data": DataConfig}, r"write data=DataConfig\(\)"),
        ({"teacher": 3}, "teacher must be a text, got 3"),
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"batch": 32.5}, "batch must be a whole number, got 32.5"),
        ({"channels_last": "no"}, "channels_last must be True or False, got 'no'"),
        ({"data": DataConfig(name=3)}, "data.name must be a text, got 3"),  # type: ignore[arg-type]
        ({"data": DataConfig(per_class=2.5)}, "data.per_class must be a whole number, got 2.5"),  # type: ignore[arg-type]
        ({"data": DataConfig(augment="flip")}, r"data.augment must be a tuple such as \('flip',\), got 'flip'"),  # type: ignore[arg-type]
        ({"predict": PredictConfig("flip")}, "predict.augment must be a tuple"),  # type: ignore[arg-type]
        ({"optim": OptimConfig(betas=0.9)}, r"optim.betas must be a tuple such as \(0.9, 0.999\), got 0.9"),  # type: ignore[arg-type]
        ({"optim": OptimConfig(lr=float("nan"))}, "optim.lr must be a finite number, got nan"),
        ({"schedule": ScheduleConfig("step", milestones="6,8")}, r"such as \(60, 80\), got '6,8'"),  # type: ignore[arg-type]
        ({"method": MethodConfig("mr2", "lam=3")}, "method.params must be a dictionary of parameters"),  # type: ignore[arg-type]
        ({"stage": PartConfig("crt", {"to": np.ones(3)})}, r"stage.params\['to'\] must be a number, a text, or a list"),
        ({"model": ModelConfig(pretrained=3)}, "model.pretrained must be a text or True or False, got 3"),  # type: ignore[arg-type]
        ({"model": ModelConfig(zero_shot=None)}, "model.zero_shot must be a text, got None"),  # type: ignore[arg-type]
        ({"model": ModelConfig(head_scale="x")}, "model.head_scale must be learned or a number, got 'x'"),  # type: ignore[arg-type]
    ],
)
def test_a_setting_of_another_type(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(**settings)  # type: ignore[arg-type]


def test_values_of_other_libraries_become_plain() -> None:
    config = TrainConfig(
        data=DataConfig(name=Path("photos"), root=Path("images"), augment=["flip"]),  # type: ignore[arg-type]
        optim=OptimConfig(lr=np.float64(0.5)),
        epochs=np.int64(3),  # type: ignore[arg-type]
    )
    plain = TrainConfig(
        DataConfig(name="photos", root="images", augment=("flip",)), optim=OptimConfig(lr=0.5), epochs=3
    )
    assert config == plain
    assert config.slug == plain.slug
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("settings", ["epochs=1", {"epochs": 1}, [3]])
def test_settings_are_a_list_of_texts(settings: object) -> None:
    with pytest.raises(InputError, match=r"settings must be a list of texts such as \['optim.lr=0.05'\], got"):
        TrainConfig().override(settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"epochs": 1}}, "config must be a TrainConfig, or the name or path of a recipe, got {'epochs': 1}"),
        ({"config": TrainConfig}, "config must be a TrainConfig"),
        ({"data": "digits"}, r"data must be a pair of torch data sets, got a text; write settings=\['data=digits'\]"),
        ({"data": ("only",)}, "data must be a name, a path, or a pair"),
        ({"strategy": "deepspeed"}, "unknown value for strategy 'deepspeed'"),
        ({"memory": -3}, "memory must be a finite number in .0, inf., got -3"),
    ],
)
def test_arguments_of_train_of_another_type(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train(folder=tmp_path, accelerator="cpu", **arguments)
