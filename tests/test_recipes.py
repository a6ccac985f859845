"""Recipes of the papers: every one is found by name, states what it should, and its quick form is trained end to end."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

import classgap
from classgap.checks import InputError
from classgap.suites import load_suite
from classgap.suites.jobs import complete
from classgap.suites.suite import paper_suites
from classgap.training import TrainConfig
from classgap.training.recipes import load_file, load_recipe, quickened, recipe_file, recipe_names
from classgap.training.run import open_data, start
from image_files import NEEDS_TORCHVISION

LARGE = [name for name in paper_suites() if name.endswith("_large")]


@pytest.fixture(autouse=True)
def _stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path / "data"))


# Model, optimiser, rate, weight decay, epochs, batch: methods.md, section F, and the papers.
STATED: dict[str, tuple[Any, ...]] = {
    "mr2_cifar100": ("resnet32", "sgd", 0.1, 5e-4, 300, 128),
    "mr2_imagenet": ("timm:resnet50", "sgd", 0.1, 1e-4, 300, 128),
    "mr2_clip": ("clip:RN50-quickgelu", "adamw", 3e-5, 0.1, 10, 512),
    "mr2_mae": ("mae:vit_base_patch16_224", "adamw", 4e-3, 0.05, 100, 1024),
    "mr2_moco": ("torchvision:resnet50", "sgd", 30, 0, 100, 256),
    "mr2_cifar100_lt": ("resnet32", "sgd", 0.1, 5e-4, 300, 128),
    "elm_cifar_lt": ("resnet32", "sgd", 0.4, 1e-4, 256, 128),
    "elm_imagenet_lt": ("timm:resnet50", "sgd", 0.4, 5e-4, 90, 512),
    "elm_inat18": ("timm:resnet50", "sgd", 0.4, 1e-4, 90, 1024),
    "elm_two_moons": ("mlp-16-8-2", "adamw", 0.01, 0, 500, 400),
    "dbm_cifar_lt": ("resnet32", "sgd", 0.1, 2e-4, 200, 64),
    "dbm_imagenet_lt": ("timm:resnet50", "sgd", 0.1, 5e-4, 90, 256),
    "dbm_inat18": ("timm:resnet50", "sgd", 0.2, 1e-4, 100, 256),
    "marc_cifar_lt": ("resnet32", "sgd", 0.05, 5e-4, 591, 512),
    "marc_imagenet_lt": ("timm:resnext50_32x4d", "sgd", 0.1, 5e-4, 90, 256),
    "marc_places_lt": ("torchvision:resnet152", "sgd", 0.1, 5e-4, 30, 128),
    "marc_inat18": ("timm:resnet50", "sgd", 0.1, 1e-4, 200, 256),
    "smaller_gap_images": ("resnet20", "sgd", 0.1, 5e-4, 100, 128),
    "smaller_gap_finetuning": ("timm:tf_efficientnet_lite0", "adamw", 5e-4, 0.01, 9, 64),
    "smaller_gap_features": ("mlp-512", "sgd", 0.05, 5e-4, 30, 128),
}
OWN = ("smaller_gap_images", "smaller_gap_finetuning", "smaller_gap_features")


def test_every_recipe_is_listed_here() -> None:
    assert set(recipe_names()) == set(STATED)


@pytest.mark.parametrize("name", STATED)
def test_a_recipe_states_its_setting_command_row_and_cost(name: str) -> None:
    config = load_recipe(name)
    optim = config.optim
    found = (config.model.name, optim.name, optim.lr, optim.weight_decay, config.epochs, config.batch)
    assert found == STATED[name]
    text = inspect.getdoc(load_file(recipe_file(name), "recipe")) or ""
    for part in (f"classgap train {name}", f"classgap train {name} --quick", "Cost: "):
        assert part in text
    assert ("Measured in points" if name in OWN else "Published: ") in text
    assert "Cost: estimate, assuming" in text or name in ("elm_two_moons", *OWN)


@pytest.mark.parametrize("name", STATED)
def test_the_quick_form_differs_in_size_only(name: str) -> None:
    whole, quick = load_recipe(name), load_recipe(name, quick=True)
    assert (quick.method, quick.stage.name, quick.model.name) == (whole.method, whole.stage.name, whole.model.name)
    assert quick.data.name == whole.data.name
    assert quick.data.augment == whole.data.augment
    assert quick.epochs == 2
    assert quick.data.partial or whole.data.name in ("two_moons", "digits")  # needs no stand-in


def test_the_quick_form_of_a_long_tail_can_be_tuned() -> None:
    """Its smallest class had one sample: `tune` needs validation data, and the data set had none to give."""
    config = load_recipe("elm_cifar_lt", quick=True).override(["data.val_fraction=0.1"])
    found = open_data(config.data)
    assert found.val is not None
    assert found.val.y.unique().tolist() == list(range(10))
    assert found.train.y.bincount().min() >= 2


def test_unknown_recipes_and_suites_name_the_near_ones() -> None:
    with pytest.raises(InputError, match="unknown recipe 'mr2_cifar10'; did you mean 'mr2_cifar100'"):
        load_recipe("mr2_cifar10")
    with pytest.raises(InputError, match="unknown suite 'mr2_larg'; did you mean 'mr2_large'"):
        load_suite("mr2_larg")


def test_a_recipe_in_the_current_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    lines = "from classgap.training import TrainConfig\ndef config(quick=False):\n    return TrainConfig(epochs=7)\n"
    (tmp_path / "recipes" / "mr2_cifar100.py").write_text(lines)
    assert load_recipe("mr2_cifar100") == TrainConfig(epochs=7)


@NEEDS_TORCHVISION
@pytest.mark.parametrize("name", ["mr2_clip", "mr2_cifar100_lt", "dbm_inat18"])
def test_the_published_form_is_built(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it but the weights to download; CLIP was stated without the activation of OpenAI's weights, which is refused."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config, quick = load_recipe(name), load_recipe(name, quick=True)
    data = dataclasses.replace(config.data, root=quick.data.root, partial=True)
    config = dataclasses.replace(config, data=data, precision="32-true")
    if name == "mr2_clip":
        open_clip = pytest.importorskip("open_clip")
        create = open_clip.create_model
        monkeypatch.setattr(open_clip, "create_model", lambda name, pretrained=None, **options: create(name, **options))
    start(config, tmp_path / "run", accelerator="cpu", workers=0).release()


@NEEDS_TORCHVISION
def test_an_image_recipe_is_trained_by_name(tmp_path: Path) -> None:
    """Files in the format of the published set, random crops, the method of the recipe, and predictions to audit."""
    config = load_recipe("elm_imagenet_lt", quick=True).override(["model=resnet20", "epochs=1"])
    result = classgap.train(config, tmp_path / "run", workers=0)
    assert len(result.test.y_true) == 60
    assert result.test.ids is not None
    assert result.test.ids[0].startswith("val/n01440764/")
    assert result.split_hash


@NEEDS_TORCHVISION
@pytest.mark.slow
@pytest.mark.parametrize("name", STATED)
def test_every_recipe_runs_end_to_end(name: str, tmp_path: Path) -> None:
    if name == "mr2_clip":
        pytest.importorskip("open_clip")
    result = classgap.train(load_recipe(name, quick=True), tmp_path / "run", workers=0)
    assert len(result.test.y_true) in (60, 1000, 2000)  # stand-ins, digits, two moons


# --- suites -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bench_of_a_recipe_runs(tmp_path: Path) -> None:
    report = classgap.bench("elm_two_moons", quick=True, out=tmp_path / "bench")
    assert not report.failed
    assert not report.missing
    assert "elm" in report.to_markdown()


@NEEDS_TORCHVISION
@pytest.mark.slow
def test_bench_of_a_recipe_with_image_files_runs(tmp_path: Path) -> None:
    """Its worker could not have processes of its own, which decode the images."""
    settings = ["model=mlp-8", "data.augment=none"]
    report = classgap.bench("elm_imagenet_lt", quick=True, settings=settings, only=["*/elm"], out=tmp_path / "bench")
    assert not report.failed
    assert [result.key for result in report.results.values()]


def test_bench_of_a_recipe_compares_it_with_cross_entropy() -> None:
    suite = load_suite("marc_places_lt")
    assert [v.name for v in suite.variants] == ["cross_entropy", "cross_entropy, re-run", "marc"]
    config = suite.variants[2].config(suite.tasks[0], 0)
    assert (config.stage.name, config.stage.params["gamma"], config.stage.params["passes"]) == ("marc", 1.2, 10)
    assert suite.published[1].accuracy["few-shot"] == 32.6


@pytest.mark.parametrize(
    ("name", "first", "all_of_them"),
    [
        ("smaller_gap_images", {"augment": ("crop", "flip", "autoaugment")}, {}),
        ("smaller_gap_finetuning", {}, {}),
        ("smaller_gap_features", {}, {"val_fraction": 0.1}),  # the others train on these samples from the start
    ],
)
def test_a_recipe_may_state_what_it_is_compared_with(
    name: str, first: dict[str, Any], all_of_them: dict[str, Any]
) -> None:
    """With the same training, with one remedy and with all of them."""
    suite = load_suite(name)
    plain, _, one, ours = (job.config for job in suite.jobs([0]))
    assert plain == complete(suite.tasks[0].config)
    assert plain.method.name == "cross_entropy"
    assert one.data == dataclasses.replace(plain.data, **first)
    assert ours.data == dataclasses.replace(one.data, **all_of_them)
    assert one == dataclasses.replace(ours, data=one.data, stage=one.stage, predict=one.predict)
    assert (one.stage.name, ours.stage.name) == ("none", "gap_dial")
    assert ours.slug == complete(load_recipe(name)).slug


def test_settings_of_a_suite_reach_every_run() -> None:
    suite = load_suite("dbm").with_settings(["epochs=9", "data.root=/data"])
    assert {job.config.epochs for job in suite.jobs(seeds=[0])} == {9}  # also of NCL, whose variant has 400
    assert {job.config.data.root for job in suite.jobs(seeds=[0])} == {"/data"}
    with pytest.raises(InputError, match=r"--set method\.lam=1: a suite compares methods over seeds"):
        load_suite("dbm").with_settings(["method.lam=1"])


@pytest.mark.parametrize("name", LARGE)
def test_large_suites_have_the_settings_of_the_recipes(name: str) -> None:
    suite = load_suite(name)
    assert suite.reference == "cross_entropy"
    assert len({job.key for job in suite.jobs(seeds=[0])}) == len(suite.jobs(seeds=[0]))
    known = {load_recipe(recipe).data.name for recipe in STATED} | {
        "stanford_cars",
        "oxford_pets",
        "flowers102",
        "food101",
        "fgvc_aircraft",
        "mnist",
    }
    assert {task.config.data.name for task in suite.tasks} <= known
    assert {row.variant for row in suite.published} >= {"cross_entropy"}
    quick = suite.quickened()
    assert {job.config.epochs for job in quick.jobs(seeds=[0])} == {2}
    assert quick.name == f"{name}-quick"


def test_quick_keeps_own_data_small() -> None:
    config = quickened(TrainConfig().override(["epochs=90", "schedule=step", "schedule.milestones=30,60"]))
    assert (config.data.per_class, config.epochs, config.schedule.milestones) == (16, 2, (1,))
