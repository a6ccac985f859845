"""Learning curves: the fit recovers known curves, intervals hold the true gain, and nothing is predicted beyond the evidence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from classgap import Predictions, learning_curve
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.measure.statistics.curves import Curve, extrapolate, fit_power_law

NUM_CLASSES = 12
SIZES = (25, 50, 100, 200)
START = np.linspace(0.05, 0.6, NUM_CLASSES)


def error(size: float) -> np.ndarray:
    """True error of every class: a floor of three tenths and a power law."""
    return START * (0.3 + 0.7 * (size / 25) ** -0.5)


def predictions(size: float, rng: np.random.Generator, per_class: int = 60, **options) -> Predictions:
    y = np.repeat(np.arange(NUM_CLASSES), per_class)
    wrong = rng.random(len(y)) < error(size)[y]
    return Predictions.from_arrays(y, np.where(wrong, (y + 1) % NUM_CLASSES, y), **options)


@pytest.fixture(scope="module")
def curve():
    rng = np.random.default_rng(0)
    sizes = [size for size in SIZES for _ in range(2)]
    return learning_curve([predictions(size, rng, 400) for size in sizes], sizes)


@pytest.mark.parametrize(("floor", "exponent"), [(0.1, 0.5), (0.0, 0.3), (0.2, 1.0)])
def test_fit_recovers_an_exact_curve(floor, exponent):
    n = np.array([50.0, 100.0, 200.0, 400.0])
    true = floor + 3 * n**-exponent
    found = fit_power_law(n, true[None], np.ones(4), np.array([800.0]))
    assert found[0, 0] == pytest.approx(floor + 3 * 800.0**-exponent, abs=0.003)


def test_a_rising_error_gives_no_gain():
    curve = Curve(np.array([50.0, 100.0, 200.0]), np.array([0.2, 0.25, 0.3]), 1e-6 * np.eye(3))
    found = extrapolate(curve, 2.0, 0.95, np.random.default_rng(0))
    assert found.gain.value == 0
    assert found.gain.high < 0.01


def test_the_predicted_gain_is_that_of_the_true_curve(curve):
    gain = error(200) - error(400)
    for name, value in (("overall", gain.mean()), ("easy", gain[:4].mean()), ("hard", gain[-4:].mean())):
        found = curve.predicted[name].gain
        assert found.low <= value <= found.high, name
        assert abs(found.value - value) < 0.03, name
    assert curve.predicted["hard"].gain.value > curve.predicted["easy"].gain.value
    assert curve.per_class["gain_per_doubling"][:4].mean() > curve.per_class["gain_per_doubling"][-4:].mean()


def test_the_verdict_names_sizes_gains_and_the_check(curve):
    assert "With 400 instead of 200 training samples per class" in curve.verdict
    assert "hard third +" in curve.verdict
    assert "Check: " in curve.verdict
    data = json.loads(json.dumps(curve.to_dict()))
    assert data["sizes"] == list(SIZES)
    assert data["runs"] == [2] * 4
    assert "| hard third |" in curve.to_markdown()


def test_a_missed_check_widens_the_interval():
    size, noise = np.array([25.0, 50.0, 100.0, 200.0]), 1e-6 * np.eye(4)
    smooth = Curve(size, 0.1 + 1.5 * size**-0.5, noise)
    bent = Curve(
        size, smooth.error - np.array([0, 0, 0, 0.05]), noise
    )  # the last step is 5 points better than the curve
    widths = []
    for curve in (smooth, bent):
        found = extrapolate(curve, 2.0, 0.95, np.random.default_rng(0)).gain
        widths.append(found.high - found.low)
    assert widths[1] > widths[0] + 0.04


def test_no_prediction_beyond_the_evidence():
    rng = np.random.default_rng(0)
    runs = [predictions(size, rng) for size in (100, 150, 200)]
    with pytest.raises(InputError, match=r"factor must be at most 1\.41, got 2.*at most 50 samples"):
        learning_curve(runs, [100, 150, 200])
    with pytest.raises(InputError, match="at least 3 different numbers of training samples, got 2"):
        learning_curve(runs, [100, 100, 200])
    with pytest.raises(InputError, match="at least 3 runs"):
        learning_curve(runs[:2], [100, 200])


def test_sizes_come_from_the_files_or_are_asked_for():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="pass samples="):
        learning_curve([predictions(size, rng) for size in SIZES])
    runs = [predictions(size, rng, train_counts=[size] * NUM_CLASSES) for size in SIZES]
    assert learning_curve(runs).sizes.tolist() == list(SIZES)
    uneven = [*runs[:3], predictions(200, rng, train_counts=[200] * 11 + [25])]
    with pytest.raises(InputError, match="same share"):
        learning_curve(uneven)


def test_one_run_per_size_is_noted():
    rng = np.random.default_rng(0)
    few = learning_curve([predictions(size, rng) for size in SIZES[:3]], SIZES[:3])
    assert any("is not known" in note for note in few.notes)
    assert "could not be checked" in few.verdict
    four = learning_curve([predictions(size, rng) for size in SIZES], SIZES)
    assert any("estimated roughly" in note for note in four.notes)


def test_command_line(tmp_path):
    rng = np.random.default_rng(0)
    files = []
    for size in SIZES:
        run = predictions(size, rng)
        files.append(str(tmp_path / f"n{size}.csv"))
        rows = [f"{a},{b}" for a, b in zip(run.y_true, run.y_pred, strict=True)]
        (tmp_path / f"n{size}.csv").write_text("\n".join(["y_true,y_pred", *rows]) + "\n")
    result = CliRunner().invoke(
        app, ["learning-curve", *files, "--samples", "25,50,100,200", "--out", str(tmp_path / "o")]
    )
    assert result.exit_code == 0, result.output
    assert "training samples per class" in result.output
    assert json.loads((tmp_path / "o" / "learning_curve.json").read_text())["factor"] == 2
    assert (tmp_path / "o" / "learning_curve.md").read_text().startswith("# Learning curves")
    refused = CliRunner().invoke(app, ["learning-curve", *files, "--samples", "25,50,100,200", "--factor", "4"])
    assert refused.exit_code != 0


def test_heads_on_parts_of_the_training_samples(tmp_path):
    pytest.importorskip("torch")
    from classgap.training.probe_sizes import probe_sizes

    rng = np.random.default_rng(0)
    centre = rng.normal(size=(4, 6))
    y, y_test = np.repeat(np.arange(4), 40), np.repeat(np.arange(4), 25)
    x, x_test = (centre[t] + 1.5 * rng.normal(size=(len(t), 6)) for t in (y, y_test))
    np.savez(tmp_path / "f.npz", x_train=x.astype("f4"), y_train=y, x_test=x_test.astype("f4"), y_test=y_test)
    runs = probe_sizes(str(tmp_path / "f.npz"), (0.25, 0.5, 1.0), seeds=2, settings=["epochs=2", "data.val_fraction=0"])
    assert [(run.share, run.seed) for run in runs] == [(s, seed) for s in (0.25, 0.5, 1.0) for seed in (0, 1)]
    assert [run.predictions.train_counts.tolist() for run in runs[::2]] == [[10] * 4, [20] * 4, [40] * 4]
    found = learning_curve([run.predictions for run in runs], factor=1.5)
    assert found.sizes.tolist() == [10, 20, 40]


def run_of(y: np.ndarray, share: float, rng: np.random.Generator, **options) -> Predictions:
    names = [str(k) for k in range(max(2, y.max() + 1))]
    return Predictions.from_arrays(
        y, np.where(rng.random(len(y)) < share, (y + 1) % len(names), y), class_names=names, **options
    )


@pytest.mark.parametrize("number", [1, 2])
def test_a_third_without_classes_is_unknown_and_not_zero(number):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(number), 100)
    found = learning_curve([run_of(y, share, rng) for share in (0.4, 0.3, 0.2)], [50, 100, 200])
    for name in ("medium", "hard")[: 3 - number]:
        part = found.to_dict()["predicted"][name]
        assert part["gain"] == part["accuracy"] == {"value": None, "low": None, "high": None}
        assert found.to_dict()["accuracy"][name][0] == {"value": None, "low": None, "high": None}
    assert ("hard third" in found.verdict) == (number == 2)
    assert found.rows()[2][-1] == "–"


@pytest.mark.parametrize("per_class", [1, 20])
def test_models_without_an_error_are_not_certain(per_class):
    y = np.repeat(np.arange(3), per_class)[: 1 if per_class == 1 else None]
    found = learning_curve([run_of(y, 0.0, np.random.default_rng(0)) for _ in range(3)], [50, 100, 200])
    for name in ("overall", "easy"):
        level, gain = found.accuracy[name][-1], found.predicted[name].gain
        assert level.low < level.value == level.high == 1
        assert gain.low < gain.value == 0 < gain.high
    classes = found.per_class[found.per_class["support"] > 0]
    assert (classes["low"] < 0).all()
    assert (classes["p_value"] == 1).all()


def test_train_counts_are_matched_by_the_names_of_the_classes():
    rng = np.random.default_rng(0)
    y, names, counts = np.repeat(np.arange(3), 50), np.array(["a", "b", "c"]), np.array([400, 40, 80])
    runs = []
    for divisor, order in ((8, [0, 1, 2]), (4, [2, 1, 0]), (2, [1, 2, 0]), (1, [0, 1, 2])):
        place = np.argsort(order)
        wrong = rng.random(len(y)) < 0.1 * divisor
        known = [*names[order], "d"] if divisor == 1 else names[order]
        own = [*(counts // divisor)[order], 9][: len(known)]
        runs.append(
            Predictions.from_arrays(
                place[y], place[np.where(wrong, (y + 1) % 3, y)], class_names=known, train_counts=own
            )
        )
    assert learning_curve(runs).sizes.tolist() == [520 / 24, 520 / 12, 520 / 6, 520 / 3]


def test_few_test_samples_per_class_are_noted():
    rng = np.random.default_rng(0)
    few, many = ([predictions(size, rng, n) for size in SIZES[:3]] for n in (5, 60))
    noted = [
        any("ranked by few test samples" in note for note in learning_curve(r, SIZES[:3]).notes) for r in (few, many)
    ]
    assert noted == [True, False]
