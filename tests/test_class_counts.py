"""When a loss that can do without is told the class counts: a choice that is said, stored and can be overridden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classgap import registry
from classgap.checks import InputError
from classgap.suites.jobs import job_key
from classgap.training import TrainConfig, train
from classgap.training.counts import LONG_TAIL
from classgap.training.run import start

SMALL = ["epochs=1", "batch=24", "optim.lr=0.05", "model=mlp-16", "data.val_fraction=0", "data.per_class=none"]


@pytest.fixture
def data(tmp_path: Path) -> Any:
    """Writes a data set with these class counts and returns its setting."""

    def write(*counts: int) -> str:
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(len(counts)), counts)
        x = rng.normal(size=(len(y), 6)) + 2 * np.eye(6)[y]
        path = tmp_path / f"{'_'.join(map(str, counts))}.npz"
        np.savez(path, x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
        return f"data=npz:{path}"

    return write


def criterion(folder: Path, *settings: str) -> Any:
    return start(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu").criterion


def stored(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())["chosen"]["class_counts"]
    return found


@pytest.mark.parametrize(
    ("counts", "given"), [((30, 31, 30), False), ((30, 60, 45), False), ((30, 61, 45), True), ((35, 187, 60), True)]
)
def test_the_ratio_of_the_training_set_decides(tmp_path: Path, data: Any, counts: Any, given: bool) -> None:
    notes: list[str] = []
    config = TrainConfig().override([*SMALL, data(*counts), "method=mr2"])
    train(config, tmp_path / "run", accelerator="cpu", watch=lambda p: notes.append(p.note))
    loss = criterion(tmp_path / "again", data(*counts), "method=mr2")
    assert (loss.class_counts is not None) == (loss.log_prior is not None) == given
    found = stored(tmp_path / "run")
    ratio = max(counts) / min(counts)
    assert found == {
        "source": "train" if given else "none",
        "largest_over_smallest": pytest.approx(ratio, abs=1e-4),
        "long_tail_above": LONG_TAIL,
    }
    (note,) = [n for n in notes if n.startswith("class counts")]
    assert f"have {min(counts)} to {max(counts)} samples, a ratio of {ratio:.3g}" in note
    assert ("method.class_counts=none" if given else "method.class_counts=train") in note


def test_almost_equal_classes_are_no_logit_adjustment(tmp_path: Path, data: Any) -> None:
    """One sample more or less must not change the method: the same loss as without counts, bit for bit."""
    torch.manual_seed(0)
    batch = torch.randn(12, 3), torch.arange(12) % 3
    for name, settings in (
        ("auto", []),
        ("none", ["method.class_counts=none"]),
        ("train", ["method.class_counts=train"]),
    ):
        loss = criterion(tmp_path / name, data(30, 31, 29), "method=mr2", *settings)
        value = loss(*batch, features=torch.ones(12, 16))
        plain = registry.get("loss", "mr2").build(num_classes=3)(*batch, features=torch.ones(12, 16))
        assert torch.equal(value, plain) == (name != "train")


def test_equal_classes_leave_nothing_to_say(tmp_path: Path, data: Any) -> None:
    notes: list[str] = []
    config = TrainConfig().override([*SMALL, data(30, 30, 30), "method=mr2"])
    train(config, tmp_path / "run", accelerator="cpu", watch=lambda p: notes.append(p.note))
    assert not any(notes)
    assert stored(tmp_path / "run")["source"] == "none"


def test_what_is_said_is_respected(tmp_path: Path, data: Any) -> None:
    tail, level = data(60, 20, 20), data(30, 30, 30)
    assert criterion(tmp_path / "a", tail, "method=mr2", "method.class_counts=none").class_counts is None
    assert stored(tmp_path / "a")["source"] == "none"
    assert criterion(tmp_path / "b", level, "method=mr2", "method.class_counts=train").class_counts.tolist() == [30] * 3
    assert stored(tmp_path / "b")["source"] == "train"
    assert criterion(tmp_path / "c", level, "method=mr2", "method.class_counts=[3,2,1]").class_counts.tolist() == [
        3,
        2,
        1,
    ]
    assert stored(tmp_path / "c")["source"] == "given"


def test_losses_that_need_counts_or_are_asked_to_use_them_have_them(tmp_path: Path, data: Any) -> None:
    level = data(30, 31, 30)
    settings: tuple[list[str], ...] = (
        ["method=ldam"],
        ["method=balanced_softmax"],
        ["method=dro_lt", "method.rule=count"],
        ["method=group_dro", "method.adjustment=1"],
        ["method=seesaw", "method.counts=training"],
        ["method=ncl"],
    )
    for number, wanted in enumerate(settings):
        assert criterion(tmp_path / str(number), level, *wanted).class_counts.tolist() == [30, 31, 30]
        assert stored(tmp_path / str(number))["source"] == "train"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method=ldam", "method.class_counts=none"], "ldam needs class counts; leave method.class_counts=none out"),
        (["method=mr2", "method.class_counts=yes"], "must be none, train or a list of 3 numbers, got 'yes'"),
        (["method=mr2", "method.class_counts=[1,2]"], "class_counts must have 3 entries"),
    ],
)
def test_bad_choices(tmp_path: Path, data: Any, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.").replace("[", r"\[")):
        criterion(tmp_path / "run", data(30, 31, 30), *settings)
    assert not (tmp_path / "run").exists()


def test_the_choice_is_part_of_the_configuration() -> None:
    plain = TrainConfig().override(["method=mr2"])
    none, train = (plain.override([f"method.class_counts={word}"]) for word in ("none", "train"))
    assert TrainConfig.from_dict(json.loads(json.dumps(none.to_dict()))) == none
    assert none.method.params == {"class_counts": None}
    assert len({job_key(plain), job_key(none), job_key(train)}) == 3


def test_losses_refuse_counts_by_name() -> None:
    import pandas as pd

    from classgap.losses import BalancedSoftmaxLoss

    labels = pd.Series([2] * 6 + [1] * 3 + [0])
    with pytest.raises(
        InputError, match="class_counts must be in the order of the classes, got a pandas Series with names"
    ):
        BalancedSoftmaxLoss(3, class_counts=labels.value_counts())
    assert BalancedSoftmaxLoss(3, class_counts=labels.value_counts().sort_index()).class_counts.tolist() == [1, 3, 6]
