"""Stages that treat some classes differently: other augmentation, more samples; and the mix that follows confusions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import classgap
from classgap.checks import InputError
from classgap.data import Batches, ConfusedMix, Normalise, Split, confused_mixup, load_data, mixup, shuffled
from classgap.suites import Suite, Task, Variant
from classgap.suites.jobs import JobFolder
from classgap.suites.work import run_job
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.run import start

SMALL = ["data.per_class=13", "epochs=2", "batch=24", "optim.lr=0.05", "model=mlp-16"]
ADD = [*SMALL, "data.spare=6", "stage=add_samples"]
AUGMENT = [*SMALL, "data.augment=none", "stage=augment_classes", "stage.augment=crop"]


def run(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override(list(settings)), folder, accelerator="cpu", **options)


def opened(folder: Path, *settings: str) -> Any:
    return start(TrainConfig().override(list(settings)), folder, accelerator="cpu")


def hardest(folder: Path) -> np.ndarray:
    """The three classes of digits with the lowest validation accuracy, ties by the mean probability of the true class."""
    with np.load(folder / "predictions_val.npz") as val:
        y, scores = val["y_true"], torch.from_numpy(val["scores"])
        own = scores.softmax(1).numpy()[np.arange(len(y)), y]
        rows = [((val["y_pred"] == y)[y == k].mean(), own[y == k].mean()) for k in range(10)]
    return np.array(sorted(range(10), key=lambda k: rows[k])[:3])


# --- samples kept aside ---------------------------------------------------------------------------------------------


def test_spare_samples_are_in_no_other_set() -> None:
    data, more = load_data("digits", per_class=13, spare=6), load_data("digits", per_class=19)
    plain = load_data("digits", per_class=13)
    assert data.spare is not None
    assert torch.equal(torch.bincount(data.spare.y), torch.full((10,), 6))
    assert data.split_hash == plain.split_hash
    assert torch.equal(data.train.x, plain.train.x)
    rows = {tuple(x.flatten().tolist()) for x in torch.cat([data.train.x, data.spare.x])}
    assert rows == {tuple(x.flatten().tolist()) for x in more.train.x}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spare": 5}, "data.per_class must be set"),
        ({"spare": 5, "per_class": 20, "profile": "exponential", "imbalance": 2}, "must be balanced"),
        ({"spare": 500, "per_class": 20}, "ask for 520 samples per class"),
    ],
)
def test_spare_samples_must_exist(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_data("digits", **settings)


# --- more samples ---------------------------------------------------------------------------------------------------


def test_hard_classes_of_the_first_run_get_more_samples(tmp_path: Path) -> None:
    result = run(tmp_path / "hard", *ADD)
    run(tmp_path / "plain", *SMALL, "data.spare=6")
    first, plain = (load_file(tmp_path / f / "model.safetensors") for f in ("hard/stage1", "plain"))
    assert all(torch.equal(first[name], plain[name]) for name in plain)
    expected = np.full(10, 13)
    expected[hardest(tmp_path / "hard" / "stage1")] += 6
    assert result.test.train_counts.tolist() == expected.tolist()
    assert json.loads((tmp_path / "hard" / "run.json").read_text())["data"]["train_counts"] == expected.tolist()
    assert np.array_equal(classgap.load_run(tmp_path / "hard").train_counts, expected)


def test_controls_add_as_many_samples_in_total(tmp_path: Path) -> None:
    counts = {}
    for to in ("random", "all", "easy"):
        counts[to] = run(tmp_path / to, *ADD, "epochs=1", f"stage.to={to}", "stage.per_class=4").test.train_counts
        assert counts[to].sum() == 130 + 3 * 4
    assert sorted(counts["random"].tolist()) == [13] * 7 + [17] * 3
    assert sorted(counts["all"].tolist()) == [14] * 8 + [15] * 2
    assert not (tmp_path / "all" / "stage1").exists()
    other = opened(tmp_path / "other", *ADD, "stage.to=random", "stage.per_class=4", "seed=1")
    assert other.data.class_counts.tolist() != counts["random"].tolist()


def test_the_same_samples_of_a_class_are_added_whoever_asks(tmp_path: Path) -> None:
    sets = [opened(tmp_path / to, *ADD, f"stage.to={to}", "stage.per_class=4").data for to in ("random", "all")]
    for k in np.flatnonzero(sets[0].class_counts.numpy() == 17):
        few, many = ({tuple(x.flatten().tolist()) for x in data.train.x[data.train.y == int(k)]} for data in sets[::-1])
        assert few < many


# --- augmentation by class ------------------------------------------------------------------------------------------


def test_only_chosen_classes_are_augmented() -> None:
    images = torch.randint(1, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split(images, torch.arange(40) % 4)
    normalise = Normalise((0.0,), (1.0,))
    batches = Batches(split, batch=10, order=shuffled(40, 0), normalise=normalise)
    assert not batches.augmented
    batches.augment_classes(torch.tensor([False, True, False, True]), (lambda x, uniform: 0 * x,))
    assert batches.augmented
    for batch in batches.epoch(0):
        gone = batch.x.flatten(1).sum(1) == 0
        assert torch.equal(gone, batch.y % 2 == 1)
        assert torch.equal(batch.x[~gone], normalise(images[batch.index][~gone]))


def test_hard_classes_of_the_first_run_are_augmented(tmp_path: Path) -> None:
    trainer = opened(tmp_path / "hard", *AUGMENT)
    trainer.run()
    mask = trainer.batches.others[0]
    expected = hardest(tmp_path / "hard" / "stage1")
    assert torch.equal(mask, torch.isin(trainer.data.train.y, torch.from_numpy(expected)))
    trainer.release()
    named = opened(tmp_path / "named", *AUGMENT, 'stage.classes=["3", "7"]')
    assert torch.equal(named.batches.others[0], torch.isin(named.data.train.y, torch.tensor([3, 7])))
    weak = opened(tmp_path / "weak", *AUGMENT, "data.augment=crop", "stage.to=random", "stage.augment=none")
    assert weak.batches.others[1] == ()
    assert weak.batches.others[0].sum() == 3 * 13


# --- mixing of confused classes -------------------------------------------------------------------------------------


def test_partners_are_drawn_by_confusions() -> None:
    rng = np.random.default_rng(0)
    target = torch.arange(4).repeat(50)
    confusion = torch.tensor([[0.7, 0.2, 0.1, 0.0], [0.0, 1.0, 0.0, 0.0], [0.1, 0.1, 0.7, 0.1], [0.0, 0.0, 0.5, 0.5]])
    pairs = torch.zeros(4, 4)
    for _ in range(20):
        _, soft = confused_mixup(torch.randn(200, 3), target, 4, rng, alpha=1.0, confusion=confusion)
        for k in range(4):
            others = soft[target == k].clone()
            others[:, k] = 0
            pairs[k] += (others > 0).sum(0)
    share = pairs / 1000
    expected = torch.tensor([[0, 2 / 3, 1 / 3, 0], [0, 0, 0, 0], [1 / 3, 1 / 3, 0, 1 / 3], [0, 0, 1, 0]])
    torch.testing.assert_close(share, expected, atol=0.05, rtol=0)


def test_powers_and_no_confusions() -> None:
    inputs, target = torch.randn(30, 2), torch.arange(30) % 3
    plain, same = (mix(inputs, target, 3, np.random.default_rng(1), alpha=0.5)[0] for mix in (mixup, confused_mixup))
    assert torch.equal(plain, same)
    confusion = torch.tensor([[0.5, 0.3, 0.2]] * 3)
    options = {"alpha": 0.5, "confusion": confusion, "power": 0.0}
    _, soft = confused_mixup(inputs, target, 3, np.random.default_rng(1), **options)
    assert ((soft > 0).sum(1) == 2).all()


def test_confusions_are_mean_probabilities() -> None:
    mix = ConfusedMix(confused_mixup, 3, {})
    scores, target = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 1, 0])
    mix.measure(scores, target)
    assert mix.confusion is not None
    torch.testing.assert_close(mix.confusion[1], scores[2:5].double().softmax(1).mean(0))
    torch.testing.assert_close(mix.confusion[2], torch.full((3,), 1 / 3, dtype=torch.float64))


def test_confusions_are_measured_after_every_epoch(tmp_path: Path) -> None:
    trainer = opened(tmp_path, *SMALL, "mix=confused_mixup", "mix.alpha=0.5")
    trainer.run()
    scores, _ = trainer.predict(trainer.data.val)
    found = trainer.batches.mix.confusion
    y = trainer.data.val.y
    expected = torch.stack([scores[y == k].double().softmax(1).mean(0) for k in range(10)])
    torch.testing.assert_close(found, expected)


# --- all of them ----------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("settings", "cuts"),
    [
        (["mix=confused_mixup", "mix.alpha=0.5"], [("", 2), ("", 4)]),
        (["stage=add_samples", "data.spare=2"], [("stage1", 2), ("", 2), ("", 5)]),
        (["stage=augment_classes", "stage.augment=crop"], [("stage1", 4), ("", 2), ("", 4)]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_a_run_killed_anywhere_continues_bit_for_bit(
    tmp_path: Path, settings: list[str], cuts: list[tuple[str, int]]
) -> None:
    settings = [*SMALL, "model=resnet20", "data.per_class=3", "batch=10", "checkpoint_steps=1", *settings]
    for stage, step in cuts:

        def watch(position: TrainProgress, stage: str = stage, step: int = step) -> None:
            if position.stage == stage and position.step == step and not position.note:
                raise Killed

        with pytest.raises(Killed):
            run(tmp_path / "cut", *settings, watch=watch, resume=True)
    resumed, whole = (run(tmp_path / name, *settings, resume=True) for name in ("cut", "whole"))
    assert np.array_equal(resumed.test.scores, whole.test.scores)
    assert np.array_equal(resumed.test.train_counts, whole.test.train_counts)
    again = run(tmp_path / "cut", *settings, resume=True)
    assert np.array_equal(again.test.scores, whole.test.scores)


def test_in_a_suite_the_first_look_is_the_plain_run(tmp_path: Path) -> None:
    task = Task("digits", TrainConfig().override([*SMALL, "data.spare=6", "epochs=1"]))
    stages = ("add_samples", "augment_classes")
    variants = (Variant("plain"), *(Variant(stage, settings=(f"stage={stage}",)) for stage in stages))
    results = {}
    for job in Suite("looks", (task,), variants, seeds=(0,)).jobs():
        results[job.variant] = run_job(job, JobFolder(tmp_path, job))
    assert not (tmp_path / "shared").exists()
    assert sum(results["add_samples"].train_counts) == sum(results["plain"].train_counts) + 3 * 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["stage=add_samples"], "set data.per_class and data.spare"),
        ([*ADD, "stage.per_class=7"], "more than the data.spare=6"),
        ([*ADD, "stage.to=hardest"], "did you mean 'hard'"),
        ([*ADD, "data.val_fraction=0"], r"set data\.val_fraction above 0"),
        ([*AUGMENT, "data.val_fraction=0"], r"set data\.val_fraction above 0"),
        ([*AUGMENT, "stage.augment=corp"], "did you mean 'crop'"),
        ([*AUGMENT, 'stage.classes=["eleven"]'], "names 'eleven'"),
        ([*AUGMENT, "stage.classes=3"], "must be a list of class names"),
        (["mix=confused_mixup", "data.val_fraction=0"], r"set data\.val_fraction above 0"),
        (["mix=confused_mixup", "mix.power=-1"], "power must be"),
        (["mix=confused_mixup", "mix.confusion=1"], "cannot be set"),
    ],
)
def test_settings_that_cannot_work_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", *SMALL, *settings)
    assert not (tmp_path / "run").exists()
