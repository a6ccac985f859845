"""Suspected wrong labels, from the scores of the model, and the classes with significantly many of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints, divide, group_sums, log_sum_exp, row_blocks
from classgap.measure.diagnostics.causes.signals import Cause, Signal
from classgap.measure.diagnostics.margins import ScoreKind
from classgap.measure.render.plain import percent

# A label is suspect if the model gives it at most this share of the mean probability for its class …
UNLIKELY = 0.1
# … and a class is reported if it has this many more than expected, in number and as a share of its samples.
MIN_SAMPLES, MIN_SHARE = 3, 0.05
LISTED = 50
TEMPERATURE_ROWS = 2000


def wrong_labels(scores: Floats, y_true: Ints, names: tuple[str, ...], kind: ScoreKind) -> Signal:
    r"""Test per class whether the model contradicts more labels than its own probabilities predict.

    As in confident learning, thresholds are relative to each class. A label k is contradicted if the probability of some class j
    is at least the mean probability :math:`t_j` over the samples of j, and the probability of k is at most one tenth of
    :math:`t_k`. Overlapping classes produce such samples too, but a calibrated model predicts how many: sample i has label k with
    probability :math:`p_{ik}`, so the sum of these probabilities over all contradicted pairs is the expected number. The scores
    are first calibrated with one temperature. An excess that remains in the median class is attributed to the model and
    subtracted, and the variation between classes is allowed for.

    Scores must come from data that the model was not trained on; a network that has memorised its labels contradicts none.

    Reference: after Northcutt, Jiang and Chuang, *Confident learning*, JAIR 2021, with our own test for excess.
    """
    num_classes = len(names)
    found = _contradict(scores, y_true, num_classes, kind, UNLIKELY, 1.0)
    believed, support = found.believed, found.support
    observed = np.bincount(y_true[believed >= 0], minlength=num_classes)
    allowed, p_values = _excess(observed, found.expected, support)
    extra = np.maximum(observed - allowed, 0.0)

    def cause(k: int) -> Cause:
        rows = np.flatnonzero((y_true == k) & (believed >= 0))
        rows = rows[np.argsort(found.own[rows], kind="stable")]
        rivals = np.argsort(-np.bincount(believed[rows], minlength=num_classes), kind="stable")[:1]
        sentence = (
            f"About {extra[k]:.0f} of its {support[k]} labels are probably wrong ({percent(extra[k] / support[k])}): in "
            f"{observed[k]} samples the model is confident of another class, most often '{names[rivals[0]]}'; "
            f"{allowed[k]:.1f} such samples are expected."
        )
        remedies = ("First check the labels of the listed samples; the most suspicious come first.",)
        return Cause(
            "mislabelled",
            "Probably wrong labels",
            float(extra[k] / support[k]),
            float(p_values[k]),
            sentence,
            remedies,
            classes=tuple(int(j) for j in rivals),
            samples=tuple(int(i) for i in rows[:LISTED]),
        )

    return Signal(p_values, (extra >= MIN_SAMPLES) & (extra >= MIN_SHARE * support), cause)


def suspected_labels(
    scores: Floats, y_true: Ints, num_classes: int, kind: ScoreKind, *, below: float = UNLIKELY
) -> tuple[Ints, Ints]:
    """Rows whose label is probably wrong, most suspicious first, and the class of which the model is confident instead.

    All classes are searched, without a significance test.

    Args:
        below: A label is suspect if the model gives it at most this share of the mean probability for its class, and gives
            another class at least ``1 - below`` of the mean probability for that class. A larger value lists more of the wrong
            labels, but also more correct ones.
    """
    checks.fraction("below", below)
    found = _contradict(scores, y_true, num_classes, kind, below, 1 - below)
    rows = np.flatnonzero(found.believed >= 0)
    rows = rows[np.argsort(found.share[rows], kind="stable")]
    return rows, found.believed[rows]


@dataclass(frozen=True, eq=False)
class _Contradictions:
    """Contradicted labels.

    Attributes:
        believed: ``(n,)`` class of which the model is confident instead of the label; -1 if there is none.
        own: ``(n,)`` probability of the label.
        share: ``(n,)`` this probability divided by the mean probability for the class.
        expected: ``(K,)`` expected number of contradicted labels.
        support: ``(K,)`` number of samples.
    """

    believed: Ints
    own: Float64s
    share: Float64s
    expected: Float64s
    support: Ints


def _contradict(
    scores: Floats, y_true: Ints, num_classes: int, kind: ScoreKind, below: float, above: float
) -> _Contradictions:
    """Labels with at most ``below`` of the mean probability for their class, while another class has at least ``above``."""
    temperature = _temperature(scores, y_true, kind)
    usual = np.zeros(num_classes)
    for block, p in _probabilities(scores, kind, temperature):
        usual += group_sums(p[np.arange(len(p)), y_true[block]], y_true[block], num_classes)
    support = np.bincount(y_true, minlength=num_classes)
    usual = divide(usual, support)

    expected, believed, own = np.zeros(num_classes), np.full(len(scores), -1), np.empty(len(scores))
    for block, p in _probabilities(scores, kind, temperature):
        confident = np.where(
            p >= above * usual, p, 0.0
        )  # a comparison with nan is false: a class without samples is never believed
        some = confident.max(axis=1) > 0
        own[block] = p[np.arange(len(p)), y_true[block]]
        best = confident.argmax(axis=1)
        suspect = some & (own[block] <= below * usual[y_true[block]]) & (best != y_true[block])
        believed[block] = np.where(suspect, best, -1)
        expected += np.where(some[:, None] & (p <= below * usual), p, 0.0).sum(axis=0)
    return _Contradictions(believed, own, divide(own, usual[y_true]), expected, support)


def _excess(observed: Ints, expected: Float64s, support: Ints) -> tuple[Float64s, Float64s]:
    """Allowed numbers, and p-values of the observed ones (Poisson, or negative binomial if classes vary more)."""
    from scipy.stats import nbinom, poisson

    seen = support > 0
    ratio = max(1.0, float(np.nanmedian(divide(observed, expected)[seen])) if (expected[seen] > 0).any() else 1.0)
    allowed = ratio * expected
    residual = divide((observed - allowed) ** 2, allowed)[seen]
    # The median of a squared standard normal variable is 0.455; this gives a robust estimate of the overdispersion.
    dispersion = max(1.0, float(np.nanmedian(residual)) / 0.455) if not np.isnan(residual).all() else 1.0
    if dispersion > 1.001:
        chance = nbinom.sf(observed - 1, np.maximum(allowed, 1e-12) / (dispersion - 1), 1 / dispersion)
    else:
        chance = poisson.sf(observed - 1, allowed)
    return allowed, np.where(seen, chance, np.nan)


def _log_scores(scores: Floats, kind: ScoreKind) -> Float64s:
    values = scores.astype(np.float64)
    return values if kind == "logits" else np.log(np.maximum(values, np.finfo(scores.dtype).tiny))


def _softmax(values: Float64s) -> Float64s:
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def _probabilities(scores: Floats, kind: ScoreKind, temperature: float) -> Iterator[tuple[slice, Float64s]]:
    for block in row_blocks(*scores.shape):
        yield block, _softmax(_log_scores(scores[block], kind) / temperature)


def _temperature(scores: Floats, y_true: Ints, kind: ScoreKind) -> float:
    """The temperature with the highest likelihood, from at most :data:`TEMPERATURE_ROWS` rows."""
    from scipy.optimize import minimize_scalar

    rows = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), TEMPERATURE_ROWS)).astype(int))
    values, labels = _log_scores(scores[rows], kind), y_true[rows]

    def loss(log_temperature: float) -> float:
        scaled = values / np.exp(log_temperature)
        return float(np.mean(log_sum_exp(scaled) - scaled[np.arange(len(rows)), labels]))

    return float(np.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-3}).x))
