"""A grid of heads trained at once gives what single runs give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import classgap
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.training.probing import Loop, probe

TOLERANCE = 1e-4  # of scores; sums are taken in another order


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Overlapping classes with a long tail."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), [80, 50, 30, 20, 12])
    centres = rng.normal(size=(5, 8))
    x = (centres[y] + rng.normal(size=(len(y), 8))).astype(np.float32)
    y_test = np.repeat(np.arange(5), 20)
    x_test = (centres[y_test] + rng.normal(size=(100, 8))).astype(np.float32)
    path = tmp_path_factory.mktemp("vectors") / "data.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


@pytest.mark.parametrize(
    ("method", "grid", "settings"),
    [
        ("cross_entropy", {"lr": [0.1, 0.5], "weight_decay": [0.0, 0.01], "seed": [0, 1]}, ["optim.nesterov=true"]),
        ("cross_entropy", {"lr": [0.01, 0.1]}, ["optim=adamw", "schedule.warmup_steps=3", "optim.decay_norms=false"]),
        ("logit_adjusted", {"tau": [0.5, 2.0], "lr": [0.1, 0.5]}, []),
        ("mr2", {"c_bar": [1.0, 3.0], "lam": [0.0, 0.1]}, []),
        ("logit_adjusted", {"seed": [0, 1, 2], "tau": [0.5, 2.0]}, []),
        ("mr2", {"c_bar": [1.0, 3.0], "seed": [0, 1]}, []),
        ("seesaw", {"lr": [0.1, 0.5], "seed": [0, 1]}, []),
        ("group_dro", {"lr": [0.1, 0.5], "seed": [0, 1]}, []),
        ("cross_entropy", {"lr": [0.1, 0.5], "seed": [3, 4]}, ["model.head=cosine"]),
        ("dbm", {"lr": [0.1, 0.5]}, []),
        ("cross_entropy", {"lr": [0.1]}, ["model.head=cosine"]),
        ("focal", {"gamma": [0.5, 2.0]}, []),
        ("drw", {"lr": [0.1, 0.5]}, []),
    ],
)
def test_equal_to_single_runs(
    method: str, grid: dict[str, list[float]], settings: list[str], vectors: Path, tmp_path: Path
) -> None:
    shared = [f"method={method}", "epochs=3", "batch=40", *settings]
    report = probe(str(vectors), grid, settings=shared)
    assert len(report.heads) == np.prod([len(values) for values in grid.values()])
    for place in (0, -1):
        head = report.heads[place]
        one = classgap.train(
            settings=[f"data={vectors}", "model=linear", *shared, *report.settings(head)], folder=tmp_path / str(place)
        )
        found = report.outputs(head)
        np.testing.assert_allclose(found.scores, one.test.scores, rtol=TOLERANCE, atol=TOLERANCE)
        assert head.accuracy["test"]["overall"] == pytest.approx((one.test.y_pred == one.test.y_true).mean())
        np.testing.assert_allclose(found.features, one.test.features, rtol=1e-5, atol=1e-6)
    differ = {tuple(np.round(head.weight.flatten().tolist(), 5)) for head in report.heads}
    assert len(differ) == len(report.heads) if method != "mr2" else 2  # lam does not reach a head on frozen features


@pytest.mark.parametrize(
    ("method", "grid", "groups"),
    [
        ("logit_adjusted", {"tau": [0.5, 1.0], "lr": [0.1, 0.2]}, 1),
        ("mr2", {"c_bar": [1.0, 2.0], "lr": [0.1, 0.2]}, 1),
        ("mr2", {"lam": [0.0, 0.1], "c_bar": [1.0, 2.0]}, 1),
        ("mr2", {"p": [2.0, 3.0], "lr": [0.1, 0.2]}, 2),  # the statistics depend on p
    ],
)
def test_heads_share_a_call_of_the_loss(
    method: str, grid: dict[str, list[float]], groups: int, vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(Loop, "train", lambda self, tick: found.append(len(self.groups)))
    probe(str(vectors), grid, settings=[f"method={method}", "epochs=1"])
    assert found == [groups]


@pytest.mark.parametrize(
    ("method", "loops"),
    [("logit_adjusted", 1), ("mr2", 3), ("seesaw", 3), ("group_dro", 3), ("cross_entropy", 1)],  # some keep statistics
)
def test_seeds_share_a_loop_where_nothing_but_the_batches_differs(
    method: str, loops: int, vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(Loop, "train", lambda self, tick: found.append(len(self.points)))
    probe(str(vectors), {"lr": [0.1, 0.2], "seed": [0, 1, 2]}, settings=[f"method={method}", "epochs=1"])
    assert found == [6 // loops] * loops
    found.clear()
    monkeypatch.setattr("classgap.training.probing._SMALL", 100)
    probe(str(vectors), {"lr": [0.1, 0.2], "seed": [0, 1, 2]}, settings=[f"method={method}", "epochs=1"])
    assert found == [2, 2, 2]


def test_best_is_chosen_on_validation_as_a_mean_over_seeds(vectors: Path) -> None:
    report = probe(str(vectors), {"lr": [1e-6, 0.3], "seed": [0, 1]}, settings=["epochs=5", "data.val_fraction=0.2"])
    assert report.best().point["lr"] == 0.3
    assert len(report.rows) == 4
    assert {"lr", "seed", "val_hard", "test_overall"} <= set(report.rows[0])
    without = probe(str(vectors), {"lr": [0.1]}, settings=["epochs=1", "data.val_fraction=0"])
    with pytest.raises(InputError, match="chosen on the validation set"):
        without.best()


@pytest.mark.parametrize(
    ("grid", "settings", "message"),
    [
        ({"tua": [1]}, ["method=logit_adjusted"], "did you mean 'tau'"),
        ({"lr": 0.1}, [], "must be a list of values"),
        ({"lr": [0.1, -1]}, [], r"optim\.lr"),
        ({"lr": [0.1]}, ["method=ncl"], "needs experts"),
        ({"lr": [0.1]}, ["sampler=class_balanced"], "sampler=class_balanced is for classgap train"),
        ({"lr": [0.1]}, ["predict.augment=flip"], "predict.augment=flip is for classgap train"),
        ({"lr": [0.1]}, ["teacher=runs/other"], "teacher=runs/other is for classgap train"),
        ({"lr": [0.1]}, ["model.wise=0.5"], "model.wise=0.5 is for classgap train"),
        ({"lr": [0.1]}, ["data=digits"], "probe needs features"),
        ({"lr": [0.1]}, ["method=lgm"], "learns parameters of its own"),
    ],
)
def test_errors(grid: dict[str, list[float]], settings: list[str], message: str, vectors: Path) -> None:
    data = "digits" if "data=digits" in settings else str(vectors)
    with pytest.raises(InputError, match=message):
        probe(data, grid, settings=[s for s in settings if s != "data=digits"])


def test_command_line(vectors: Path, tmp_path: Path) -> None:
    arguments = ["probe", str(vectors), "--grid", "lr=0.1,0.3", "--grid", "seed=0,1", "--set", "epochs=2"]
    arguments += ["--set", "optim=adamw", "--set", "optim.nesterov=true"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "probe")])
    assert result.exit_code == 0, result.output
    assert "4 heads in" in result.output
    assert "note: optim.nesterov has no effect" in result.output
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == [
        "grid.csv",
        "head.safetensors",
        "predictions_test.npz",
        "predictions_val.npz",
    ]
    assert classgap.audit(tmp_path / "probe" / "predictions_test.npz").overall.value > 0.4
    assert classgap.probe is probe
