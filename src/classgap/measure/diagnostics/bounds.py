"""The generalisation bounds of the papers, computed from features and head.

They hold for training data and for margins that were fixed beforehand. Their values normally exceed 1; then they say nothing
about the error itself, but they can still be used to compare classes, or two models of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from classgap import checks
from classgap.arrays import (
    Float64s,
    Floats,
    Ints,
    class_blocks,
    class_means,
    divide,
    group_sums,
    log_sum_exp,
    row_blocks,
    rows_of_classes,
)
from classgap.predictions.arrays import check_head

NORMS = (1.0, 2.0, 3.0, math.inf)
# In larger classes, ELM's pull term is averaged over this many samples, evenly spaced; all samples are partners.
PULL_ANCHORS = 512


@dataclass(frozen=True)
class Complexity:
    """Bound on the margin Rademacher complexity under one L_p norm (MR² Proposition 2).

    Attributes:
        paper: With the printed constant.
        corrected: With a constant that holds.
        paper_holds: Whether the printed constant holds: not for ``p < 2`` (one-hot features exceed it) nor for ``p = inf``.
    """

    paper: float
    corrected: float
    paper_holds: bool


@dataclass(frozen=True, eq=False)
class Bounds:
    r"""Upper bounds on error rates (a bound above 1 is vacuous), with probability ``1 - delta``.

    The MR² bounds hold for :math:`w^\top \phi` with :math:`\|w\| \le \Lambda`, without a bias. A head with a bias is of this form
    once a constant 1 is appended to the features and the bias to the weights. This is done only in the
    bounds, where :math:`\Lambda` and the second moments appear together; the margins use the features alone.

    Attributes:
        gamma: ``(K,)`` margins used; by default eq. 1 of MR² on the features.
        risk: Margin cross-entropy divided by ln 2, the first term of the MR² bounds.
        ramp_risk: Mean of MR²'s eq. 9 over all samples: 1 for a misclassified sample, 0 for a logit margin of at least
            ``gamma`` of its class, and linear between. It lies between the error rate and ``risk``.
        ramp_risk_by_class: ``(K,)`` the same over the samples of each class.
        mr2: MR² Proposition 1 as printed. ``mr2_tight`` omits a factor :math:`\sqrt K` that the proof does not need.
        complexity: By p, MR² Proposition 2.
        per_class_paper: ``(K,)`` the per-class bound of MR² as printed, which omits :math:`1/\sqrt{n_k}` and factors of K.
        per_class: ``(K,)`` the bound that the proof supports; ``per_class_tight`` omits :math:`\sqrt K` as above.
        pull, pull_lower: ``(K,)`` ELM's mean pull term and its lower bound from the spread (ELM Proposition 1).
        elm: ELM Proposition 2, two classes only (else nan): bounds the expected logit-adjusted loss in nats; as printed it
            holds with probability ``1 - 2 delta``. ``elm_corrected`` holds with ``1 - delta``.
    """

    delta: float
    gamma: Float64s
    risk: float
    ramp_risk: float
    ramp_risk_by_class: Float64s
    mr2: float
    mr2_tight: float
    complexity: Mapping[float, Complexity]
    per_class_paper: Float64s
    per_class: Float64s
    per_class_tight: Float64s
    pull: Float64s
    pull_lower: Float64s
    elm: float
    elm_corrected: float

    @property
    def vacuous(self) -> bool:
        """Whether even the tight bound is at least 1."""
        return not self.mr2_tight < 1

    def columns(self) -> dict[str, Float64s]:
        """Columns of the per-class table of the audit."""
        return {
            "mr2_gamma": self.gamma,
            "mr2_ramp_risk": self.ramp_risk_by_class,
            "mr2_bound": self.per_class_tight,
            "mr2_bound_paper": self.per_class_paper,
            "elm_pull": self.pull,
            "elm_pull_lower": self.pull_lower,
        }

    def summary(self) -> dict[str, float]:
        """Overall numbers."""
        summary = {
            "delta": self.delta,
            "vacuous": float(self.vacuous),
            "margin_risk": self.risk,
            "ramp_risk": self.ramp_risk,
            "mr2": self.mr2,
            "mr2_tight": self.mr2_tight,
            "elm": self.elm,
            "elm_corrected": self.elm_corrected,
        }
        for p, value in self.complexity.items():
            summary |= {f"complexity_l{p:g}_paper": value.paper, f"complexity_l{p:g}": value.corrected}
        return summary


def describe(
    features: Floats,
    y_true: Ints,
    weight: Floats,
    bias: Floats | None = None,
    logits: Floats | None = None,
    *,
    gamma: Floats | None = None,
    c_bar: float = 1.0,
    alpha: Floats | None = None,
    delta: float = 0.05,
) -> Bounds:
    """Bounds for the linear head ``weight`` (``(K, d)``), ``bias`` on ``features`` (``(n, d)``).

    Classes may be unbalanced: each second moment is weighted by the share of samples of its class.

    Args:
        logits: ``(n, K)``; by default computed from the head.
        gamma: Margins of MR²; by default its own rule with mean ``c_bar``, on the features alone, also if there is a bias.
        alpha: Slack of ELM's pull term per class; by default the square root of the number of samples.
        delta: Probability with which a bound may fail.
    """
    features = checks.feature_matrix(features)
    num_classes = len(np.atleast_1d(weight))
    head = check_head(weight, bias, num_classes, features.shape[1])
    y_true = checks.class_indices("y_true", y_true, num_classes, rows=len(features))
    checks.number("delta", delta, low=0.0, high=1.0, open_low=True)
    if logits is not None:
        logits = checks.float_matrix("logits", logits, rows=len(features), columns=num_classes)
    support = np.bincount(y_true, minlength=num_classes)
    with_bias = bool(head[1].any())
    moments = _lp_moments(features, y_true, num_classes, with_bias=with_bias)
    if gamma is None:
        gamma = margins_of(_second_moments(features, y_true, num_classes), c_bar)
    gamma = _positive("gamma", gamma, num_classes)
    slack = np.sqrt(support) if alpha is None else checks.float_vector("alpha", alpha, length=num_classes)

    losses, ramp = _margin_losses(features, y_true, head, logits, gamma)
    row_norms = {p: _largest_row_norm(head, p, with_bias=with_bias) for p in NORMS}
    width = features.shape[1] + with_bias
    complexity = {p: _complexity(p, row_norms[p], moments[p], support, gamma, width) for p in NORMS}
    risk, mr2, mr2_tight = _mr2(float(losses.mean()), complexity[2.0].corrected, num_classes, len(features), delta)
    ramp_by_class = class_means(ramp, y_true, num_classes)
    empirical = class_means(losses, y_true, num_classes) / math.log(2)
    per_class = _per_class(empirical, row_norms[2.0], moments[2.0], support, gamma, delta)
    pull, pull_lower = _pull(features, rows_of_classes(y_true, num_classes), slack)
    elm = [_elm(features, y_true, head, logits, pull + slack, odds / delta) for odds in (2, 4)]
    return Bounds(
        delta,
        gamma,
        risk,
        float(ramp.mean()),
        ramp_by_class,
        mr2,
        mr2_tight,
        complexity,
        *per_class,
        pull,
        pull_lower,
        *elm,
    )


def margins_of(second_moment: Float64s, c_bar: float = 1.0) -> Float64s:
    """Margins of MR², proportional to the cube root of the second moment, with mean ``c_bar``; ``c_bar`` without samples."""
    root = np.cbrt(np.maximum(second_moment, 1e-12))
    return np.where(np.isnan(root), c_bar, c_bar * root / np.nanmean(root))


def khintchine_constant(p: float, width: int) -> float:
    r"""A constant C with :math:`\mathbb E\|\sum_i \epsilon_i v_i\|_p \le C \sqrt{\sum_i \|v_i\|_p^2}` for random signs.

    Example:
        >>> [round(khintchine_constant(p, 64), 3) for p in (1, 2, 3, 5)]
        [8.0, 1.0, 1.169, 1.449]
    """
    if p == math.inf:
        return math.sqrt(2 * math.log(2 * width))
    if p <= 2:
        return float(width ** (1 / p - 0.5))
    return math.sqrt(2) * math.pow(math.gamma((p + 1) / 2) / math.sqrt(math.pi), 1 / p)


def printed_constant(p: float, width: int) -> float:
    """The constant that MR² prints instead; too small for ``p < 2`` and for infinity."""
    if p == math.inf:
        return math.sqrt(2 * math.log(width))
    return 1.0 if p <= 2 else float(2 ** (p / 2) * math.gamma((p + 1) / 2) / math.sqrt(math.pi))


def _complexity(p: float, row_norm: float, moment: Float64s, support: Ints, gamma: Float64s, width: int) -> Complexity:
    num_classes, total = len(support), support.sum()
    weighted = np.where(support > 0, num_classes * support / total * moment / gamma**2, 0.0).sum()
    base = row_norm * math.sqrt(num_classes / total) * math.sqrt(weighted)
    return Complexity(printed_constant(p, width) * base, khintchine_constant(p, width) * base, 2 <= p < math.inf)


def _mr2(loss: float, complexity: float, num_classes: int, total: int, delta: float) -> tuple[float, float, float]:
    risk = loss / math.log(2)
    doubt = 3 * math.sqrt(math.log(2 / delta) / (2 * total))
    return (
        risk,
        risk + 4 * math.sqrt(2 * num_classes) * complexity + doubt,
        risk + 4 * math.sqrt(2) * complexity + doubt,
    )


def _per_class(
    risk: Float64s, row_norm: float, moment: Float64s, support: Ints, gamma: Float64s, delta: float
) -> tuple[Float64s, Float64s, Float64s]:
    """Bounds as printed, as derived, and without the unnecessary root of K; nan for a class without samples."""
    num_classes = len(support)
    scale = 4 * row_norm * np.sqrt(moment) / gamma
    doubt = 3 * np.sqrt(divide(math.log(2 * num_classes / delta), 2 * support))
    tight = math.sqrt(2) * num_classes * scale / np.sqrt(np.maximum(support, 1))
    return risk + scale, risk + math.sqrt(num_classes) * tight + doubt, risk + tight + doubt


def _positive(name: str, value: Floats, length: int) -> Float64s:
    vector = checks.float_vector(name, value, length=length)
    if vector.min() <= 0:
        raise checks.InputError(f"{name} must be positive, got a minimum of {vector.min():g}")
    return vector


def _second_moments(features: Floats, y_true: Ints, num_classes: int) -> Float64s:
    r"""Mean squared L2 norm of each class's features, :math:`\|\mu_k\|^2 + \|s_k\|^2` of MR²'s eq. 1; nan where absent."""
    squared = np.empty(len(features))
    for block in row_blocks(*features.shape):
        values = features[block].astype(np.float64)
        squared[block] = np.einsum("nd,nd->n", values, values)
    return class_means(squared, y_true, num_classes)


def _lp_moments(features: Floats, y_true: Ints, num_classes: int, *, with_bias: bool) -> dict[float, Float64s]:
    """Mean squared L_p norm of the features per class, for the bounds; with a constant 1 appended if the head has a bias."""
    sums = {p: np.zeros(num_classes) for p in NORMS}
    for block in row_blocks(*features.shape):
        values = features[block].astype(np.float64)
        if with_bias:
            values = np.column_stack([values, np.ones(len(values))])
        for p in NORMS:
            sums[p] += group_sums(_row_norms(values, p) ** 2, y_true[block], num_classes)
    support = np.bincount(y_true, minlength=num_classes)
    return {p: divide(total, support) for p, total in sums.items()}


def _row_norms(values: Float64s, p: float) -> Float64s:
    if p == 3:  # ten times faster than the general power
        sizes = np.abs(values)
        return np.asarray(np.cbrt(np.einsum("nd,nd,nd->n", sizes, sizes, sizes)))
    return np.asarray(np.linalg.norm(values, ord=p, axis=1))


def _largest_row_norm(head: tuple[Float64s, Float64s], p: float, *, with_bias: bool) -> float:
    """Largest dual norm of a weight vector with its bias appended."""
    dual = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    rows = np.column_stack(head) if with_bias else head[0]
    return float(np.linalg.norm(rows, ord=dual, axis=1).max())


def _head_logits(features: Floats, head: tuple[Float64s, Float64s], logits: Floats | None, block: slice) -> Float64s:
    if logits is not None:
        return logits[block].astype(np.float64)
    values = features[block].astype(np.promote_types(features.dtype, np.float32), copy=False)
    return np.asarray(values @ head[0].T.astype(values.dtype) + head[1], np.float64)


def _margin_losses(
    features: Floats, y_true: Ints, head: tuple[Float64s, Float64s], logits: Floats | None, gamma: Float64s
) -> tuple[Float64s, Float64s]:
    """MR²'s margin cross-entropy (eq. 1) and ramp loss (eq. 9) of each sample, both with the margin of its true class."""
    losses, ramp = np.empty(len(features)), np.empty(len(features))
    for block in row_blocks(len(features), max(features.shape[1], len(gamma))):
        labels = y_true[block]
        values = _head_logits(features, head, logits, block) / gamma[labels][:, None]
        rows = np.arange(len(values))
        values -= values[rows, labels][:, None]
        losses[block] = log_sum_exp(values)
        values[rows, labels] = -np.inf
        ramp[block] = np.clip(1 + values.max(axis=1), 0.0, 1.0)  # 1 - margin / gamma, between 0 and 1
    return losses, ramp


def _pull(features: Floats, rows: list[Ints], alpha: Float64s) -> tuple[Float64s, Float64s]:
    """Mean pull term of ELM per class, and its lower bound from the spread."""
    sums = np.zeros((len(rows), features.shape[1]))
    for k, _, values in class_blocks(features, rows):
        sums[k] += values.sum(axis=0)
    pull, lower = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for k, members in enumerate(rows):
        count = len(members)
        if count == 0:
            continue
        anchors = np.unique(np.linspace(0, count - 1, min(count, PULL_ANCHORS)).astype(int))
        centred = features[members[anchors]] - sums[k] / count
        terms, deviation = np.zeros(len(anchors)), 0.0  # log 1, the summand in addition to the partners
        for block in row_blocks(count, max(features.shape[1], len(anchors))):
            others = features[members[block]] - sums[k] / count
            norms = np.einsum("nd,nd->n", others, others)
            deviation += float(norms.sum())
            squared = np.einsum("nd,nd->n", centred, centred)[:, None] + norms - 2 * centred @ others.T
            squared[anchors[:, None] == np.arange(count)[block]] = -np.inf  # no sample is its own partner
            terms = log_sum_exp(np.column_stack([terms, squared - alpha[k]]))
        pull[k] = terms.mean()
        if count > 1:
            lower[k] = 2 * deviation / (count - 1) - alpha[k] + math.log(count - 1)
    return pull, lower


def _elm(
    features: Floats,
    y_true: Ints,
    head: tuple[Float64s, Float64s],
    logits: Floats | None,
    slack: Float64s,
    odds: float,
) -> float:
    """ELM Proposition 2 with the largest observed loss as its B; ``slack`` is the mean pull term plus alpha."""
    support = np.bincount(y_true, minlength=len(head[1]))
    if len(support) != 2 or support.min() < 2:
        return math.nan
    prior, sign = support / support.sum(), np.where(y_true == 1, 1.0, -1.0)
    score = np.empty(len(features))
    for block in row_blocks(*features.shape):
        values = _head_logits(features, head, logits, block)
        score[block] = values[:, 1] - values[:, 0]
    losses = np.logaddexp(0.0, -sign * (score + math.log(prior[1] / prior[0])))
    doubt = 7 * losses.max() * math.log(odds) / 3 * (prior / (support - 1)).sum()
    width = np.linalg.norm(head[0][1] - head[0][0]) * math.sqrt(math.log(odds) * (prior / support * slack).sum())
    return float(doubt + prior @ class_means(losses, y_true, 2) + width)
