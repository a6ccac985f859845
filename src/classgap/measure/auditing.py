"""``audit``: from predictions to an :class:`AuditReport`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap import checks
from classgap.arrays import Float64s, Ints
from classgap.measure import diagnosing
from classgap.measure.audit_report import AuditReport, Estimate, Homogeneity, looks_like_a_regression
from classgap.measure.render.plain import confidence_level, p_value, percent, structured
from classgap.measure.statistics import groups
from classgap.measure.statistics.estimating import Estimates, estimate_metrics, estimates
from classgap.measure.statistics.groups import FREQUENCIES, THIRDS, Remainder
from classgap.measure.statistics.intervals import mean_interval, wilson
from classgap.measure.statistics.metric_changes import SMALL
from classgap.measure.statistics.noise import homogeneity
from classgap.measure.statistics.slices import Slices
from classgap.measure.statistics.slices import describe as describe_slices
from classgap.measure.statistics.weighted import Weighted, weigh, with_values
from classgap.measure.streaming import Streamed, stream
from classgap.named import in_class_order
from classgap.predictions import Columns, Confusion, Predictions
from classgap.predictions.binary import decide
from classgap.predictions.predictions import as_predictions

_WEIGHTED_NOTE = (
    "accuracies, precision, F1, groups, the gap and their intervals use the sample weights, at the effective number of samples "
    "of each class; confusions, causes, margins, calibration, curves and features do not use the weights"
)
NOTHING_CORRECT = (
    "No sample is predicted correctly: check that true and predicted labels use the same classes and that their rows belong "
    "together."
)
Reference = AuditReport | Sequence[float] | NDArray[Any]


@dataclass(frozen=True)
class _Options:
    """Checked settings of an audit."""

    confidence: float
    seed: int
    n_boot: int
    remainder: Remainder
    few: int
    many: int

    def __post_init__(self) -> None:
        checks.fraction("confidence", self.confidence)
        checks.whole("n_boot", self.n_boot, low=100, high=checks.MOST_DRAWS)
        checks.whole("seed", self.seed, low=0)
        checks.one_of("remainder", self.remainder, ("first", "last"))
        for name in ("few", "many"):
            checks.number(name, getattr(self, name), low=0)
        if self.few > self.many:
            raise checks.InputError(f"few must not exceed many, got few={self.few} and many={self.many}")


def audit(
    y_true: Any,
    y_pred: ArrayLike | None = None,
    *,
    scores: ArrayLike | None = None,
    features: ArrayLike | None = None,
    head: Any = None,
    margin_norms: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    train_counts: ArrayLike | Mapping[str, int] | None = None,
    ids: ArrayLike | None = None,
    paths: ArrayLike | None = None,
    texts: ArrayLike | None = None,
    columns: Columns | None = None,
    by: Mapping[str, ArrayLike] | Sequence[str] | str | None = None,
    sample_weight: ArrayLike | str | None = None,
    threshold: float | None = None,
    positive: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
    reference: Reference | None = None,
    n_boot: int = 1000,
    remainder: Remainder = "first",
    few: int = 20,
    many: int = 100,
    sample: int | None = None,
) -> AuditReport:
    """Report which classes fail, whether the gap is real, and why.

    Args:
        y_true: True labels (class indices, names or booleans), or an object that holds them and all other inputs: a
            :class:`~classgap.Predictions`, the path of a prediction file, or a table of polars, pandas, Arrow, DuckDB, PySpark,
            Dask or another engine that narwhals knows. Labels in a table that is not in memory are counted by its engine.
        y_pred: Predicted labels; by default the class with the highest score.
        scores: ``(n, K)`` logits or probabilities, columns in class order; of two classes also ``(n,)``, the scores of
            the second.
        features: ``(n, d)`` inputs of the last layer.
        head: The last layer: its weight ``(K, d)``, a pair ``(weight, bias)``, or an object with both.
        margin_norms: Norms of the last layer's rows before MARC was folded into it, ``(K,)``. The average margin after MARC is
            measured with these norms (its eq. 8); files written by ``stage=marc`` contain them.
        class_names: Names in class order. Numeric labels are then indices into this list.
        train_counts: Numbers of training samples per class, in class order or by name.
        ids, paths, texts: Sample ids, paths of image files, and texts, one per sample (or, with a file or table, the name of the
            column); :meth:`AuditReport.mistakes` and the page show them.
        columns: Names of the columns of a file or table; those not given are found by their usual names.
        by: Columns that define slices, e.g. ``{"site": values}`` with one value per sample (or, with a file or table, the names
            of its columns); ``report.slices`` says which slices, and which classes within slices, are less accurate.
        sample_weight: Weight of each sample (or, with a file or table, the name of the column): accuracies are weighted, and
            intervals are those of the effective number of samples. Not with ``by``.
        threshold, positive: Of two classes with scores: ``positive`` (a class name; by default the second class) is predicted
            where its probability is at least ``threshold``. Without ``threshold``, predictions stay as they are; those from one
            score per sample have a threshold of 0.5.
        confidence: Confidence level of the intervals.
        seed: Random seed.
        scores_kind: Kind of the scores. ``"auto"``: logits if a value lies outside [0, 1] (± 0.001), otherwise probabilities.
        reference: Another report, or one number per class, whose order defines the thirds of ``groups["reference"]``.
        n_boot: Number of posterior draws for the ``*_corrected`` values.
        remainder: Which thirds get one class more if K is not a multiple of 3: the ``"first"`` or the ``"last"``.
        sample: Measure the scores of a file or lazy table in batches, and take areas under curves, curves, prediction sets,
            features, causes and mistakes from a stratified sample of this many rows; ``report.sampling`` says so. By default
            only tables of more than 100 million scores (rows × classes), with at most 200,000 rows in the sample.
        few, many: Limits of the groups by frequency: "few" has fewer than ``few`` training samples, "many" more than ``many``.
    Example:
        >>> report = audit(["cat", "cat", "dog", "dog"], ["cat", "dog", "dog", "dog"])
        >>> report.overall.value, report.per_class["accuracy"].tolist()
        (0.75, [0.5, 1.0])
        >>> from classgap import Predictions
        >>> audit(Predictions.from_counts([[8, 2], [1, 9]], ["cat", "dog"])).worst.value
        0.8
    """
    options = _Options(confidence, seed, n_boot, remainder, few, many)
    found = as_predictions(
        y_true,
        y_pred,
        scores=scores,
        scores_kind=scores_kind,
        features=features,
        head=head,
        margin_norms=margin_norms,
        class_names=class_names,
        train_counts=train_counts,
        ids=ids,
        paths=paths,
        texts=texts,
        columns=columns,
        by=by,
        sample_weight=sample_weight,
        batches=None if sample is None else True,
    )
    if sample is not None:
        checks.whole("sample", sample, low=100)
        if found.batches is None:
            raise checks.InputError(
                "sample needs scores in CSV or Parquet files, or in a lazy table of polars, DuckDB or Dask, without sample "
                "weights; leave it out, since these predictions are in memory"
            )
    found = decide(found, threshold, positive)
    streamed = None if found.batches is None else stream(found, sample, seed)
    return _assemble(found if streamed is None else streamed.predictions, reference, options, streamed)


def _assemble(
    predictions: Predictions, reference: Reference | None, options: _Options, streamed: Streamed | None = None
) -> AuditReport:
    confusion, classes, train_counts = predictions.confusion, predictions.classes, predictions.train_counts
    samples = predictions if predictions.has_rows else None
    known = confusion
    if streamed is not None:
        samples, known = streamed.sample, streamed.sample.confusion
    rng = np.random.default_rng(options.seed)
    measured = _weighted(predictions, options) or confusion
    present = measured.support > 0
    group = groups.thirds(measured.accuracy, options.remainder)
    found = estimate_metrics(
        measured.correct,
        measured.support,
        confidence=options.confidence,
        draws=options.n_boot,
        rng=rng,
        remainder=options.remainder,
    )
    if isinstance(measured, Weighted):
        found = with_values(found, measured, options.remainder)
    metrics = found.metrics
    inflation = measured.inflation if isinstance(measured, Weighted) else 1.0
    test = Homogeneity(*homogeneity(measured.correct[present], measured.support[present], rng, inflation=inflation))
    sections = diagnosing.score_sections(samples, len(classes), options.confidence, options.seed)
    if streamed is not None:
        sections = streamed.sections(sections)
    columns = _columns(confusion, measured, classes, group, train_counts, samples, options.confidence)
    if streamed is not None and streamed.top5 is not None:
        columns["top5"] = streamed.top5
    for section in sections.values():
        if section is not None:
            columns |= section.columns()
    return AuditReport(
        classes=classes,
        num_samples=confusion.num_samples,
        confidence=options.confidence,
        seed=options.seed,
        confusion=confusion,
        metrics=metrics,
        groups=_groups(measured, classes, found, train_counts, reference, options),
        per_class=structured(columns),
        homogeneity=test,
        verdict=_verdict(metrics, test, options.confidence),
        margin_levels=diagnosing.margin_levels(group, confusion.support, sections, options.confidence),
        diagnoses=diagnosing.diagnoses(known, classes, group, samples, sections["geometry"], train_counts),
        samples=samples,
        sampling=None if streamed is None else streamed.sampling,
        threshold=diagnosing.threshold_of(samples, options.confidence),
        slices=_slices(predictions, options),
        notes=(
            *([] if streamed is None else [streamed.sampling.sentence]),
            *predictions.notes,
            *([_WEIGHTED_NOTE] if isinstance(measured, Weighted) else ()),
            *diagnosing.inverted(samples, sections["ranking"]),
            *_notes(confusion, measured.support, classes),
            *getattr(sections["geometry"], "notes", ()),
            *([] if train_counts is None else [_TRAINING_NOTE]),
        ),
        **sections,
    )


def _weighted(predictions: Predictions, options: _Options) -> Weighted | None:
    weight = predictions.sample_weight
    if weight is None:
        return None
    if predictions.by:
        raise checks.InputError("slices (by) cannot be combined with sample_weight; audit the slices without weights")
    return weigh(predictions.y_true, predictions.y_pred, weight, predictions.num_classes, options.confidence)


def _groups(
    confusion: Confusion | Weighted,
    classes: tuple[str, ...],
    found: Estimates,
    train_counts: Ints | None,
    reference: Reference | None,
    options: _Options,
) -> dict[str, dict[str, Estimate]]:
    result = {"own": {name: found.metrics[name] for name in THIRDS}}
    if reference is not None:
        group = groups.thirds(_reference_accuracy(reference, classes), options.remainder)
        result["reference"] = _fixed_groups(confusion, group, THIRDS, options.confidence)
    result["cross"] = found.crossed
    if train_counts is not None:
        group = groups.by_frequency(train_counts, few=options.few, many=options.many)
        result["frequency"] = _fixed_groups(confusion, group, FREQUENCIES, options.confidence)
    return result


def _fixed_groups(
    confusion: Confusion | Weighted, group: Ints, names: Sequence[str], confidence: float
) -> dict[str, Estimate]:
    """Mean class accuracy of groups that were defined without these samples; nan for a group without samples."""
    weight = groups.membership(group, confusion.support > 0)
    value = np.where(weight.any(1), np.clip(weight @ np.nan_to_num(confusion.accuracy), 0, 1), np.nan)
    bounds_ = mean_interval(value, weight**2, confusion.correct, confusion.support, confidence)
    return estimates(names, value, *bounds_)


def _reference_accuracy(reference: Reference, classes: tuple[str, ...]) -> Float64s:
    if isinstance(reference, AuditReport):
        if set(reference.classes) != set(classes):
            raise checks.InputError("reference must be a report on the same classes; its class names differ")
        place = {name: k for k, name in enumerate(reference.classes)}
        return reference.confusion.accuracy[[place[name] for name in classes]]
    return checks.float_vector("reference", in_class_order("reference", reference, classes), length=len(classes))


def _columns(
    confusion: Confusion,
    measured: Confusion | Weighted,
    classes: tuple[str, ...],
    group: Ints,
    train_counts: Ints | None,
    samples: Predictions | None,
    confidence: float,
) -> dict[str, NDArray[Any]]:
    accuracy = measured.accuracy
    size = measured.size if isinstance(measured, Weighted) else measured.support
    low, high = wilson(accuracy, size, confidence)
    columns: dict[str, NDArray[Any]] = {
        "name": np.array(classes),
        "support": confusion.support,
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "precision": measured.precision,
        "f1": measured.f1,
        "group": np.array([*THIRDS, ""])[group],
    }
    if isinstance(measured, Weighted):
        columns["effective_support"] = measured.size
    if samples is not None and samples.scores is not None and len(classes) > 5:
        columns["top5"] = diagnosing.top5(samples.scores, samples.y_true, confusion.support)
    if train_counts is not None:
        columns["train_count"] = train_counts
    return columns


def _slices(predictions: Predictions, options: _Options) -> Slices | None:
    counts = predictions.slice_counts()
    if not counts:
        return None
    rng = np.random.default_rng(options.seed)  # its own, so that slices do not change the other numbers
    classes, confidence = predictions.classes, options.confidence
    return describe_slices(counts, classes, confidence=confidence, draws=options.n_boot, rng=rng)


def _verdict(metrics: Mapping[str, Estimate], test: Homogeneity, confidence: float) -> str:
    gap, true_gap = metrics["gap"], metrics["gap_corrected"]
    chance = p_value(test.p_value)
    if metrics["overall"].value == 0:
        return NOTHING_CORRECT
    if test.method == "no variation to test":
        return "There is no gap: every class with samples has the same accuracy."
    if test.p_value < 1 - confidence:
        return (
            f"The gap is real ({chance}): the observed gap between the best and the worst class is {percent(gap.value)}; "
            f"without sampling noise it is about {percent(true_gap.value)} "
            f"({confidence_level(confidence)} interval {percent(true_gap.low)} to {percent(true_gap.high)})."
        )
    return (
        f"The gap may be sampling noise ({chance}): classes of equal accuracy would often show the observed gap of "
        f"{percent(gap.value)}. A true gap from {percent(true_gap.low)} to {percent(true_gap.high)} is compatible with these "
        f"samples ({confidence_level(confidence)} interval)."
    )


_TRAINING_NOTE = (
    "the numbers of training samples are known, but one model does not show what more of them would give; models trained with a "
    "half, a quarter and an eighth of the samples do: classgap learning-curve"
)


def _notes(confusion: Confusion, size: Ints, classes: tuple[str, ...]) -> list[str]:
    """Remarks on classes with few samples; ``size`` is their number, or the effective one of weighted samples."""
    notes = []
    for absent, what in (
        (confusion.support == 0, "no samples"),
        ((confusion.support > 0) & (size == 0), "only samples of weight 0"),
    ):
        notes += _absent([classes[k] for k in np.flatnonzero(absent)], what)
    present = int((size > 0).sum())
    thing = "samples" if (size == confusion.support).all() else "effective samples"
    if doubt := looks_like_a_regression(confusion, classes):
        notes.append(doubt)
    if present < 3:
        notes.append(
            f"only {present} class{'es' if present > 1 else ''} with samples: thirds of the classes are not meaningful"
        )
    small = int(((size > 0) & (size < 10)).sum())
    if small:
        notes.append(
            f"{small} class{'es have' if small > 1 else ' has'} fewer than 10 {thing} and therefore wide intervals"
        )
    if np.median(size[size > 0]) < SMALL:
        notes.append(
            f"most classes have fewer than {SMALL} {thing}, too few to determine the worst class and the true gap; therefore "
            "the intervals of the worst class, the gap and the thirds are wide"
        )
    return notes


def _absent(names: Sequence[str], what: str) -> list[str]:
    """The note on classes without an accuracy; none without such classes."""
    if not names:
        return []
    listed = ", ".join(map(repr, names[:5])) + (" …" if len(names) > 5 else "")
    if len(names) == 1:
        return [f"class {listed} has {what}; its accuracy is nan, and averages exclude it"]
    return [f"{len(names)} classes ({listed}) have {what}; their accuracy is nan, and averages exclude them"]
