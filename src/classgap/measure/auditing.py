"""From labels and predictions to an :class:`AuditReport`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap import _checks
from classgap.measure import bounds, calibration, geometry, groups, margins
from classgap.measure.causes import diagnosis
from classgap.measure.classwise import Float64s, Ints, divide, row_blocks
from classgap.measure.confusion import Confusion
from classgap.measure.estimating import Estimates, estimate_metrics, estimates
from classgap.measure.groups import FREQUENCIES, THIRDS, Remainder
from classgap.measure.inputs import Head, read_head, read_labels, read_names, read_scores, read_train_counts
from classgap.measure.intervals import mean_interval, wilson, z_value
from classgap.measure.noise import homogeneity
from classgap.measure.paired import SMALL
from classgap.measure.report import AuditReport, Estimate, Homogeneity, MarginLevels, Samples
from classgap.measure.views.plain import percent, structured

Reference = AuditReport | Sequence[float] | NDArray[Any]


@dataclass(frozen=True)
class _Options:
    """Settings shared by both ways in."""

    confidence: float
    seed: int
    n_boot: int
    remainder: Remainder
    few: int
    many: int

    def __post_init__(self) -> None:
        _checks.fraction("confidence", self.confidence)
        _checks.whole("n_boot", self.n_boot, low=100)
        _checks.whole("seed", self.seed, low=0)
        _checks.one_of("remainder", self.remainder, ("first", "last"))
        if self.few > self.many:
            raise _checks.InputError(f"few must not exceed many, got few={self.few} and many={self.many}")


def audit(
    y_true: ArrayLike,
    y_pred: ArrayLike | None = None,
    *,
    scores: ArrayLike | None = None,
    features: ArrayLike | None = None,
    head: Head | None = None,
    margin_norms: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    train_counts: ArrayLike | Mapping[str, int] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
    reference: Reference | None = None,
    n_boot: int = 1000,
    remainder: Remainder = "first",
    few: int = 20,
    many: int = 100,
) -> AuditReport:
    """Which classes fail, is it real, and why.

    Args:
        y_true: True labels: class indices, names or booleans.
        y_pred: Predicted labels; without them the highest score decides.
        scores: ``(n, K)`` logits or probabilities, columns in class order.
        features: ``(n, d)`` input of the last layer.
        head: The last layer: its weight ``(K, d)``, a pair ``(weight, bias)``, or an object with both.
        margin_norms: Norms of the last layer's rows before MARC was folded into it, ``(K,)``. The average margin after MARC is
            measured with these (its eq. 8); files written by ``stage=marc`` hold them.
        class_names: Names in class order. Labels that are numbers are then indices into them.
        train_counts: Training samples of each class, in class order or by name.
        confidence: Confidence level of the intervals.
        seed: Random seed.
        scores_kind: What ``scores`` are; ``"auto"`` takes rows that sum to 1 for probabilities.
        reference: Another report, or one number per class, whose order defines the thirds of ``groups["reference"]``.
        n_boot: Number of posterior draws behind the ``*_corrected`` values.
        remainder: Which thirds get the classes left over when K is not a multiple of 3.
        few, many: A class with fewer than ``few`` training samples is "few", with more than ``many`` "many".
    Example:
        >>> report = audit(["cat", "cat", "dog", "dog"], ["cat", "dog", "dog", "dog"])
        >>> report.overall.value, report.per_class["accuracy"].tolist()
        (0.75, [0.5, 1.0])
    """
    options = _Options(confidence, seed, n_boot, remainder, few, many)
    matrix, kind = read_scores(scores, scores_kind)
    labels = read_labels(y_true, y_pred, matrix, class_names, train_counts)
    samples = _samples(labels.y_true, labels.y_pred, matrix, kind, features, head, margin_norms, len(labels.classes))
    confusion = Confusion.from_codes(labels.y_true, labels.y_pred, len(labels.classes))
    return _assemble(confusion, labels.classes, labels.train_counts, reference, options, samples, labels.notes)


def audit_counts(
    counts: Any,
    class_names: Sequence[str] | None = None,
    *,
    train_counts: ArrayLike | Mapping[str, int] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    reference: Reference | None = None,
    n_boot: int = 1000,
    remainder: Remainder = "first",
    few: int = 20,
    many: int = 100,
) -> AuditReport:
    """The same from a K×K matrix of counts (rows true, columns predicted; dense or SciPy sparse), without the samples.

    Example:
        >>> audit_counts([[8, 2], [1, 9]], ["cat", "dog"]).worst.value
        0.8
    """
    options = _Options(confidence, seed, n_boot, remainder, few, many)
    confusion = counts if isinstance(counts, Confusion) else Confusion.from_counts(counts)
    if confusion.num_samples == 0:
        raise _checks.InputError("counts are all 0; there is nothing to audit")
    classes = read_names(class_names, confusion.num_classes)
    trained = None if train_counts is None else read_train_counts(train_counts, classes)
    return _assemble(confusion, classes, trained, reference, options, None, ())


def _samples(
    y_true: Ints,
    y_pred: Ints,
    scores: Any,
    kind: Any,
    features: Any,
    head: Head | None,
    margin_norms: Any,
    num_classes: int,
) -> Samples:
    if features is not None:
        features = _checks.float_matrix("features", features, rows=len(y_true))
    width = None if features is None else features.shape[1]
    weight, bias = (None, None) if head is None else read_head(head, num_classes, width)
    if margin_norms is not None and weight is None:
        raise _checks.InputError("margin_norms needs head beside it, the last layer; pass both or neither")
    norms = None if margin_norms is None else _checks.as_numpy(margin_norms)
    return Samples(y_true, y_pred, scores, kind, features, weight, bias, norms)


def _assemble(
    confusion: Confusion,
    classes: tuple[str, ...],
    train_counts: Ints | None,
    reference: Reference | None,
    options: _Options,
    samples: Samples | None,
    notes: tuple[str, ...],
) -> AuditReport:
    rng = np.random.default_rng(options.seed)
    present = confusion.support > 0
    group = groups.thirds(confusion.accuracy, options.remainder)
    found = estimate_metrics(
        confusion.correct,
        confusion.support,
        confidence=options.confidence,
        draws=options.n_boot,
        rng=rng,
        remainder=options.remainder,
    )
    metrics = found.metrics
    test = Homogeneity(*homogeneity(confusion.correct[present], confusion.support[present], rng))
    sections = _sections(samples, len(classes))
    columns = _columns(confusion, classes, group, train_counts, samples, options.confidence)
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
        groups=_groups(confusion, classes, found, train_counts, reference, options),
        per_class=structured(columns),
        homogeneity=test,
        verdict=_verdict(metrics, test, options.confidence),
        margin_levels=_margin_levels(group, confusion.support, sections, options.confidence),
        diagnoses=_diagnoses(confusion, classes, group, samples, sections["geometry"], train_counts),
        samples=samples,
        notes=(*notes, *_notes(confusion, classes), *getattr(sections["geometry"], "notes", ())),
        **sections,
    )


def _groups(
    confusion: Confusion,
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


def _fixed_groups(confusion: Confusion, group: Ints, names: Sequence[str], confidence: float) -> dict[str, Estimate]:
    """Mean class accuracy of groups that do not depend on these samples; nan for a group without samples."""
    weight = groups.membership(group, confusion.support > 0)
    value = np.where(weight.any(1), np.clip(weight @ np.nan_to_num(confusion.accuracy), 0, 1), np.nan)
    bounds_ = mean_interval(value, weight**2, confusion.correct, confusion.support, confidence)
    return estimates(names, value, *bounds_)


def _reference_accuracy(reference: Reference, classes: tuple[str, ...]) -> Float64s:
    if isinstance(reference, AuditReport):
        if set(reference.classes) != set(classes):
            raise _checks.InputError("reference is a report on other classes; both must have the same class names")
        place = {name: k for k, name in enumerate(reference.classes)}
        return reference.confusion.accuracy[[place[name] for name in classes]]
    return _checks.float_vector("reference", reference, length=len(classes))


def _columns(
    confusion: Confusion,
    classes: tuple[str, ...],
    group: Ints,
    train_counts: Ints | None,
    samples: Samples | None,
    confidence: float,
) -> dict[str, NDArray[Any]]:
    accuracy = confusion.accuracy
    low, high = wilson(accuracy, confusion.support, confidence)
    columns: dict[str, NDArray[Any]] = {
        "name": np.array(classes),
        "support": confusion.support,
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "precision": confusion.precision,
        "f1": confusion.f1,
        "group": np.array([*THIRDS, ""])[group],
    }
    if samples is not None and samples.scores is not None and len(classes) > 5:
        columns["top5"] = _top5(samples.scores, samples.y_true, confusion.support)
    if train_counts is not None:
        columns["train_count"] = train_counts
    return columns


def _top5(scores: NDArray[Any], y_true: Ints, support: Ints) -> Float64s:
    """Share of each class whose true score is among the five highest; ties count as if broken at random."""
    hits = np.zeros(len(support))
    for rows in row_blocks(len(y_true), scores.shape[1]):
        block, labels = scores[rows], y_true[rows]
        own = np.take_along_axis(block, labels[:, None], axis=1)
        higher, equal = (block > own).sum(1), (block == own).sum(1)
        hits += np.bincount(labels, weights=np.clip((5 - higher) / equal, 0, 1), minlength=len(support))
    return divide(hits, support)


def _sections(samples: Samples | None, num_classes: int) -> dict[str, Any]:
    sections: dict[str, Any] = dict.fromkeys(("margins", "calibration", "geometry", "bounds"))
    if samples is None:
        return sections
    if samples.scores is not None:
        kind: Any = samples.scores_kind
        probabilities = samples.scores if kind == "probabilities" else calibration.softmax(samples.scores)
        sections["margins"] = margins.describe(samples.scores, samples.y_true, num_classes, kind=kind)
        sections["calibration"] = calibration.describe(probabilities, samples.y_true)
    if samples.features is not None:
        sections["geometry"] = geometry.describe(
            samples.features,
            samples.y_true,
            num_classes,
            weight=samples.weight,
            bias=samples.bias,
            margin_norms=samples.margin_norms,
            logits=samples.scores if samples.scores_kind == "logits" else None,
        )
        if samples.weight is not None:
            sections["bounds"] = bounds.describe(samples.features, samples.y_true, samples.weight, samples.bias)
    return sections


def _margin_levels(group: Ints, support: Ints, sections: Mapping[str, Any], confidence: float) -> MarginLevels | None:
    """MR²'s Table 4: output margins of all classes and of each third, and the smallest angle of the head."""
    found: margins.Margins | None = sections["margins"]
    head = None if sections["geometry"] is None else sections["geometry"].head
    if found is None and head is None:
        return None
    output = {}
    for name, member in {"average": group >= 0, **{third: group == i for i, third in enumerate(THIRDS)}}.items():
        value = half = float("nan")
        if found is not None and member.any():
            variance = found.output.variance[member] / np.maximum(support[member] - 1, 1)
            value = float(found.output.mean[member].mean())
            half = z_value(confidence) * float(np.sqrt(variance.sum())) / int(member.sum())
        output[name] = Estimate(value, float(np.maximum(value - half, -1.0)), float(np.minimum(value + half, 1.0)))
    return MarginLevels(output, float("nan") if head is None else head.angles.margin)


def _diagnoses(
    confusion: Confusion,
    classes: tuple[str, ...],
    group: Ints,
    samples: Samples | None,
    shape: geometry.Geometry | None,
    train_counts: Ints | None,
) -> tuple[diagnosis.Diagnosis, ...]:
    hard = np.flatnonzero(group == 2)
    hard = hard[np.argsort(confusion.accuracy[hard], kind="stable")]
    return diagnosis.diagnose(
        confusion.counts,
        hard,
        classes,
        y_true=None if samples is None else samples.y_true,
        scores=None if samples is None else samples.scores,
        kind=None if samples is None else samples.scores_kind,  # type: ignore[arg-type]
        geometry=shape,
        train_counts=train_counts,
    )


def _verdict(metrics: Mapping[str, Estimate], test: Homogeneity, confidence: float) -> str:
    gap, true_gap = metrics["gap"], metrics["gap_corrected"]
    chance = "p < 0.001" if test.p_value < 0.001 else f"p = {test.p_value:.3f}"
    if test.method == "no variation to test":
        return "There is no gap to judge: every class present has the same accuracy."
    if test.p_value < 1 - confidence:
        return (
            f"The gap is real ({chance}): of the {percent(gap.value)} observed between best and worst class, about "
            f"{percent(true_gap.value)} remain without sampling noise "
            f"({confidence:.0%} interval {percent(true_gap.low)} to {percent(true_gap.high)})."
        )
    return (
        f"The gap may be noise ({chance}): classes of equal accuracy would often differ by the {percent(gap.value)} "
        f"observed; a true gap from {percent(true_gap.low)} to {percent(true_gap.high)} is compatible with these samples "
        f"({confidence:.0%} interval)."
    )


def _notes(confusion: Confusion, classes: tuple[str, ...]) -> list[str]:
    notes = []
    absent = np.flatnonzero(confusion.support == 0)
    if len(absent):
        names = ", ".join(repr(classes[k]) for k in absent[:5]) + (" …" if len(absent) > 5 else "")
        one = len(absent) == 1
        what = (
            f"class {names} has no samples; its" if one else f"{len(absent)} classes ({names}) have no samples; their"
        )
        notes.append(f"{what} accuracy is nan and no average counts {'it' if one else 'them'}")
    present = int((confusion.support > 0).sum())
    if present < 3:
        notes.append(f"only {present} class{'es' if present > 1 else ''} with samples: thirds mean little")
    small = int(((confusion.support > 0) & (confusion.support < 10)).sum())
    if small:
        notes.append(f"{small} class{'es have' if small > 1 else ' has'} fewer than 10 samples; mind the intervals")
    if np.median(confusion.support[confusion.support > 0]) < SMALL:
        notes.append(
            f"most classes have fewer than {SMALL} samples: which class is worst and how large the true gap is cannot be "
            "said from them; the intervals of the worst class, the gap and the thirds are as wide as that"
        )
    return notes
