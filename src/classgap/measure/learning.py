"""``learning_curve``: what more training samples would give, from models trained with different numbers of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.arrays import Float64s, Ints, divide, group_sums
from classgap.checks import InputError
from classgap.measure.audit_report import AuditReport, Estimate
from classgap.measure.pairing import audited_sides, common_classes, read_run, same_samples
from classgap.measure.render.plain import json_ready, markdown_table, percent, points, records, structured
from classgap.measure.statistics import groups
from classgap.measure.statistics.curves import FEWEST_SIZES, Curve, Extrapolation, extrapolate
from classgap.measure.statistics.false_discovery import benjamini_hochberg
from classgap.measure.statistics.groups import THIRDS
from classgap.measure.statistics.intervals import z_value
from classgap.measure.statistics.metric_changes import many_small
from classgap.predictions import Columns, Predictions
from classgap.predictions.spelling import in_one_spelling

GROUPS = ("overall", *THIRDS)
_WORDS = {"overall": "overall accuracy", "easy": "easy third", "medium": "medium third", "hard": "hard third"}
_FEWEST_SMOOTH = 4  # sizes, for the variation around a smooth curve of three parameters
_UNEQUAL = 1.5  # largest ratio of the shares that different classes may keep in a smaller training set


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Accuracy by number of training samples, and what ``factor`` times as many would give.

    Attributes:
        sizes: ``(S,)`` training samples per class (mean over classes), ascending.
        runs: ``(S,)`` number of runs of each size.
        accuracy: Group (``overall``, ``easy``, ``medium``, ``hard``) → accuracy at each size, with intervals. The thirds are
            those of the models with the most training samples, cross-fitted.
        predicted: Group → :class:`~classgap.measure.statistics.curves.Extrapolation`.
        per_class: One record per class: ``name``, ``support``, ``accuracy`` at the largest size, and the measured
            ``gain_per_doubling`` with its interval ``low``, ``high``, ``p_value``, ``q_value``, ``significant``. Classes are
            not extrapolated: a single class has too few test samples.
    """

    sizes: Float64s
    runs: Ints
    factor: float
    confidence: float
    num_samples: int
    accuracy: Mapping[str, tuple[Estimate, ...]]
    predicted: Mapping[str, Extrapolation]
    per_class: NDArray[np.void]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The prediction in a few sentences."""
        target = (
            f"{_number(self.factor * self.sizes[-1])} instead of {_number(self.sizes[-1])} training samples per class"
        )
        known = [name for name in ("overall", "hard", "easy") if not np.isnan(self.predicted[name].gain.value)]
        parts = [f"{_WORDS[name]} {_change(self.predicted[name].gain)}" for name in known]
        sentence = f"With {target}, the curves predict: {', '.join(parts)}."
        hard = self.predicted["hard"]
        if hard.gain.low <= 0:
            sentence += " A gain of the hard third is not certain."
        return f"{sentence} {self._check()}"

    def _check(self) -> str:
        missed = [name for name in GROUPS if not self._held(name)]
        if self.predicted["overall"].checked is None:
            return "With three sizes, the curves could not be checked."
        checked = (
            f"Check: the accuracy at {_number(self.sizes[-1])} samples per class, predicted from the smaller sizes, "
        )
        if not missed:
            return f"{checked}agrees with the measured one in all groups."
        return f"{checked}misses the measured one ({', '.join(_WORDS[name] for name in missed)}), so the intervals are wider."

    def _held(self, name: str) -> bool:
        found = self.predicted[name].checked
        return found is None or found.low <= self.accuracy[name][-1].value <= found.high

    def to_dict(self) -> dict[str, Any]:
        """As plain data; ``docs/learning_curves.md`` describes every key."""
        found: dict[str, Any] = json_ready({
            "verdict": self.verdict, "factor": self.factor, "confidence": self.confidence, "num_samples": self.num_samples,
            "sizes": self.sizes.tolist(), "runs": self.runs.tolist(),
            "accuracy": {name: [asdict(e) for e in row] for name, row in self.accuracy.items()},
            "predicted": {name: asdict(found) for name, found in self.predicted.items()},
            "per_class": records(self.per_class), "notes": list(self.notes),
        })  # fmt: skip
        return found

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text per group, with the columns :meth:`columns`."""
        found = []
        for name in GROUPS:
            gain, checked = self.predicted[name].gain, self.predicted[name].checked
            accuracy = [percent(e.value) for e in self.accuracy[name]]
            check = (
                "–"
                if checked is None
                else f"{percent(checked.value)} [{percent(checked.low)}, {percent(checked.high)}]"
            )
            found.append((_WORDS[name], *accuracy, check, _change(gain)))
        return found

    def columns(self) -> list[str]:
        """Heads of :meth:`rows`."""
        sizes = [_number(size) for size in self.sizes]
        return ["", *sizes, f"{sizes[-1]}, predicted from fewer", f"gain with × {self.factor:g}"]

    def to_markdown(self) -> str:
        """The verdict, the table of the groups, and the classes that gain most."""
        classes = [
            (str(row["name"]), percent(row["accuracy"]), points(row["gain_per_doubling"]),
             f"[{points(row['low'])}, {points(row['high'])}]", "yes" if row["significant"] else "no")
            for row in self.per_class[:20]
        ]  # fmt: skip
        lines = [
            "# Learning curves", "", self.verdict, "", "Accuracy by number of training samples per class:", "",
            markdown_table(self.columns(), self.rows()), "", "Classes, largest measured gain first:", "",
            markdown_table(("class", "accuracy", "gain per doubling", "interval", "significant"), classes), "",
            *(f"- {note}" for note in self.notes),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return f"LearningCurve({self.verdict})"


def learning_curve(
    runs: Sequence[Any],
    samples: Sequence[float] | None = None,
    *,
    factor: float = 2.0,
    columns: Columns | None = None,
    class_names: Sequence[str] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> LearningCurve:
    """What more training samples would give, from predictions of models trained with different numbers of samples.

    Args:
        runs: Prediction files, predictions, audits or tables, all of the same test samples; several runs (seeds) per number of
            training samples are welcome. The smaller training sets must keep about the same share of every class.
        samples: Training samples per class of each run (mean over classes); by default from the ``train_counts`` in the files.
        factor: Predict for this many times the largest number. It may be at most the square root of the largest divided by the
            smallest number: four times as many samples must have been seen to predict for twice as many.
    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1], 500)
        >>> def run(error): return Predictions.from_arrays(y, np.where(rng.random(1000) < error, 1 - y, y))
        >>> curve = learning_curve([run(0.4), run(0.28), run(0.2), run(0.14)], [50, 100, 200, 400])
        >>> 0 < curve.predicted["overall"].gain.value < 0.1
        True
    """
    confidence, factor = (
        checks.fraction("confidence", confidence),
        checks.number("factor", factor, low=1.0, open_low=True),
    )
    if len(runs) < FEWEST_SIZES:
        raise InputError(f"runs must hold at least {FEWEST_SIZES} runs of different training size, got {len(runs)}")
    read = [read_run(run, columns or Columns(), class_names) for run in runs]
    size_of = _sizes(read, samples)
    reports = audited_sides(read[:1], read[1:], confidence, seed, False)
    reports_in_order = [*reports[0], *reports[1]]
    classes = common_classes(tuple(reports_in_order))
    y_true, predictions = same_samples(tuple(reports_in_order), classes)
    sizes, place = np.unique(size_of, return_inverse=True)
    _check_range(sizes, factor)
    right = np.stack([prediction == y_true for prediction in predictions], axis=1).astype(np.float64)
    rng = np.random.default_rng(checks.whole("seed", seed, low=0))
    curves = _curves(y_true, right, place.reshape(-1), sizes, len(classes), rng)
    z = z_value(confidence)
    spread = {name: np.sqrt(np.diag(curve.noise)) for name, curve in curves.items()}
    return LearningCurve(
        sizes=sizes,
        runs=np.bincount(place.reshape(-1)),
        factor=factor,
        confidence=confidence,
        num_samples=len(y_true),
        accuracy={
            name: tuple(_level(1 - e, z * s) for e, s in zip(curve.error, spread[name], strict=True))
            for name, curve in curves.items()
        },
        predicted={name: extrapolate(curve, factor, confidence, rng) for name, curve in curves.items()},
        per_class=_per_class(classes, y_true, right, size_of, confidence),
        notes=_notes(place.reshape(-1), np.bincount(y_true)),
    )


def _sizes(read: Sequence[AuditReport | Predictions], samples: Sequence[float] | None) -> Float64s:
    """Training samples per class of every run: the mean over the classes that all runs know, matched by name."""
    if samples is not None:
        if len(samples) != len(read):
            raise InputError(f"samples must have one number per run ({len(read)}), got {len(samples)}")
        return np.array([checks.number("samples", value, low=0, open_low=True) for value in samples])
    counts = [_train_counts(run) for run in read]
    if any(count is None for count in counts):
        raise InputError(
            "runs do not all hold train_counts, the training samples per class; pass samples=[50, 100, 200, …] "
            "(--samples 50,100,200), one number per run"
        )
    named = [
        dict(zip(names, np.asarray(count, dtype=np.float64).tolist(), strict=True))
        for names, count in zip(in_one_spelling([run.classes for run in read]), counts, strict=True)
    ]
    shared = [name for name in named[0] if all(name in one for one in named)]
    if not shared:
        raise InputError("runs must have classes in common, but no class name is in all of them")
    table = np.array([[one[name] for name in shared] for one in named])
    largest = table[table.sum(1).argmax()]
    share = divide(table, largest)[:, largest > 0]
    if (share.max(1) > _UNEQUAL * np.maximum(share.min(1), 1e-9) + divide(1.0, largest[largest > 0].min())).any():
        raise InputError(
            "runs must keep about the same share of the training samples of every class, but their train_counts do not; a curve "
            "of single classes that grow alone is not supported"
        )
    return np.asarray(table.mean(1))


def _train_counts(run: AuditReport | Predictions) -> Any:
    if isinstance(run, Predictions):
        return run.train_counts
    return run.per_class["train_count"] if "train_count" in (run.per_class.dtype.names or ()) else None


def _check_range(sizes: Float64s, factor: float) -> None:
    if len(sizes) < FEWEST_SIZES:
        raise InputError(
            f"a learning curve needs at least {FEWEST_SIZES} different numbers of training samples, got {len(sizes)} "
            f"({', '.join(_number(size) for size in sizes)} per class)"
        )
    most = float(np.sqrt(sizes[-1] / sizes[0]))
    if factor > most * (1 + 1e-6):
        raise InputError(
            f"factor must be at most {most:.2f}, got {factor:g}: with {_number(sizes[0])} to {_number(sizes[-1])} training "
            f"samples per class, a prediction further than that is a guess; add models with at most "
            f"{_number(sizes[-1] / factor**2)} samples per class, or choose a smaller factor"
        )


def _curves(
    y_true: Ints, right: Float64s, place: Ints, sizes: Float64s, num_classes: int, rng: np.random.Generator
) -> dict[str, Curve]:
    """Errors of every group at every size, with the covariance of their noise."""
    average = (place == np.arange(len(sizes))[:, None]) / np.bincount(place)[:, None]  # (S, runs)
    largest = right[:, place == len(sizes) - 1].mean(1)
    single = np.ones(len(y_true), dtype=np.int64)
    fit = groups.cross_fit(y_true, single, largest, right, num_classes, rng=rng, splits=20)
    support = np.bincount(y_true, minlength=num_classes)
    means = np.vstack([right.mean(0), fit.means])
    squared = np.vstack([(support / len(y_true)) ** 2, fit.squared])
    covariance = _within(y_true, right @ average.T, support)
    curves = {}
    for name, by_run, weight in zip(GROUPS, means, squared, strict=True):
        error = 1 - average @ by_run
        share = weight / np.maximum(support, 1)
        sampling = np.tensordot(share, covariance, axes=1)
        training = _training_noise(by_run, place, sizes) / np.bincount(place)
        curves[name] = Curve(sizes, error, sampling + np.diag(training + _unseen(error, float(share.sum()))))
    return curves


def _unseen(error: Float64s, per_sample: float) -> Float64s:
    """Variance added by one more error and one more hit: an accuracy of 100 % is not certain.

    Args:
        per_sample: Sum of the squared weights of the samples; 1 / n for n samples of equal weight.
    """
    smooth = (error + per_sample) / (1 + 2 * per_sample)
    return np.asarray(per_sample * np.maximum(smooth * (1 - smooth) - error * (1 - error), 0))


def _within(y_true: Ints, value: Float64s, support: Ints) -> Float64s:
    """``(K, S, S)`` covariance of the sizes within each class, with one pseudo-sample of that of all samples."""
    number, width = len(support), value.shape[1]
    overall = np.cov(value.T, ddof=min(1, len(value) - 1)).reshape(width, width)
    result = np.zeros((number, width, width))
    sums = np.stack([group_sums(value[:, i], y_true, number) for i in range(width)], axis=1)
    mean = np.nan_to_num(divide(sums, support[:, None]))
    for i in range(width):
        for j in range(i, width):
            products = group_sums(value[:, i] * value[:, j], y_true, number) - support * mean[:, i] * mean[:, j]
            result[:, i, j] = result[:, j, i] = (products + overall[i, j]) / np.maximum(support, 1)
    return result


def _training_noise(by_run: Float64s, place: Ints, sizes: Float64s) -> float:
    """Variance between training runs of the same size; with one run per size, that around a parabola in log n."""
    mean = np.bincount(place, weights=by_run) / np.bincount(place)
    freedom = len(by_run) - len(sizes)
    if freedom > 0:
        return float(((by_run - mean[place]) ** 2).sum() / freedom)
    if len(sizes) < _FEWEST_SMOOTH:
        return 0.0
    x = np.vander(np.log(sizes), 3)
    residual = mean - x @ np.linalg.lstsq(x, mean, rcond=None)[0]
    return float((residual**2).sum() / (len(sizes) - 3))


def _per_class(
    classes: Sequence[str], y_true: Ints, right: Float64s, size_of: Float64s, confidence: float
) -> NDArray[np.void]:
    """Measured gain of every class per doubling of the training samples: the slope on log n."""
    from scipy.special import ndtr

    number = len(classes)
    support = np.bincount(y_true, minlength=number)
    log_size = np.log2(size_of)
    centred = log_size - log_size.mean()
    slope = right @ (centred / (centred**2).sum())  # of every sample
    gain = divide(group_sums(slope, y_true, number), support)
    pseudo = max(float(slope.var()), 1 / (len(centred) * (centred**2).sum()))  # a sample that changes in one run
    variance = divide(
        group_sums(slope**2, y_true, number) - support * np.nan_to_num(gain) ** 2 + pseudo, support.astype(float) ** 2
    )
    residual = _residual(y_true, right, centred, support)
    error = np.sqrt(variance + residual / (centred**2).sum())
    p_value = np.where(support > 0, 2 * ndtr(-np.abs(divide(gain, error))), np.nan)
    q_value = benjamini_hochberg(p_value)
    z = z_value(confidence)
    most = right[:, size_of == size_of.max()].mean(1)
    table = structured({
        "name": np.array(classes), "support": support, "accuracy": divide(group_sums(most, y_true, number), support),
        "gain_per_doubling": gain, "low": gain - z * error, "high": gain + z * error, "p_value": p_value,
        "q_value": q_value, "significant": np.nan_to_num(q_value, nan=1.0) <= 1 - confidence,
    })  # fmt: skip
    return table[np.argsort(-np.nan_to_num(gain, nan=-np.inf), kind="stable")]


def _residual(y_true: Ints, right: Float64s, centred: Float64s, support: Ints) -> float:
    """Variance of a class accuracy between runs around its line, pooled over the classes: the noise of training."""
    number = len(support)
    accuracy = np.stack([divide(group_sums(column, y_true, number), support) for column in right.T], axis=1)
    accuracy = accuracy[support > 0]
    line = accuracy.mean(1, keepdims=True) + (accuracy @ centred / (centred**2).sum())[:, None] * centred
    return float(((accuracy - line) ** 2).sum() / (len(accuracy) * max(right.shape[1] - 2, 1)))


def _level(value: float, half: float) -> Estimate:
    return Estimate(float(value), float(np.maximum(0.0, value - half)), float(np.minimum(1.0, value + half)))


def _notes(place: Ints, support: Ints) -> tuple[str, ...]:
    notes = [
        "a prediction assumes more samples of the same kind and the same training; it does not say what other or better labelled "
        "samples would give",
        "intervals are for the gain that a new model would show on these test samples; they include the choice of test samples "
        "and, as far as it could be measured, of training samples and seeds, the error of the check, and a quarter of the gain",
    ]
    if np.bincount(place).max() == 1:
        how = (
            "is not known and not in the intervals"
            if place.max() < _FEWEST_SMOOTH - 1
            else "is estimated roughly, from "
        )
        how += "" if place.max() < _FEWEST_SMOOTH - 1 else "how far the sizes are from a smooth curve"
        notes.append(f"one run per size: the variation between training runs {how}; several seeds per size measure it")
    if many_small(support[support > 0]):
        notes.append(
            "the thirds are ranked by few test samples per class, so they differ from the true thirds; their accuracies are "
            "closer to the mean of all classes"
        )
    return tuple(notes)


def _change(found: Estimate) -> str:
    if np.isnan(found.value):
        return "–"
    return f"{points(found.value)} points [{points(found.low)}, {points(found.high)}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.3g}"
