"""The gap dial: offsets per class that raise the accuracy of hard classes, with an adjustable strength.

The following was tried and is not used, because it changed the frontier by less than its noise on the CIFAR-100 embeddings (five
seeds, balanced and long-tailed): scales in addition to offsets; a full matrix (pairs of classes; it lost overall accuracy with
every ridge that changed anything); the mean of the hard third or a soft minimum as objective; soft labels mixed with the
probabilities of the model; a sharper softmax instead of the calibrated one; offsets equal to the log of class weights.
The following helped: calibration first, the prior first, and a ridge that is larger for classes with fewer samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classgap.checks import number, whole
from classgap.posthoc.estimators.base import ClasswiseAffine
from classgap.posthoc.estimators.logit_adjustment import log_prior_offsets
from classgap.posthoc.estimators.scaling import fit_temperature
from classgap.posthoc.held_out import Array, HeldOut
from classgap.posthoc.selection import DEFAULT_RULE, choose, compare_predictions, need_samples, splits
from classgap.posthoc.solver.minimize import lbfgs
from classgap.posthoc.solver.sweep import ClasswiseProblem, evaluate
from classgap.registry import Choice, Float, method

if TYPE_CHECKING:
    from classgap.measure import Comparison, Estimate

STRENGTHS = (0.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
RIDGES = (1.0, 3.0, 10.0)
_CONTENDERS = 32  # number of classes kept per sample; the probabilities of the others are too small to matter
_TOL = 1e-3  # tolerance of the gradient; below this no prediction changes


@dataclass(frozen=True)
class FrontierPoint:
    """Effect of one setting on samples it was not fitted on: paired differences from the uncorrected scores."""

    strength: float
    ridge: float
    overall: Estimate
    hard: Estimate
    worst_decile: Estimate


@method(
    "gap_dial",
    kind="posthoc",
    family="dial",
    paper="classgap",
    needs=("class_counts",),
    space={
        "strength": Float(0.0, 8.0, default=2.0),
        "ridge": Choice(RIDGES, default=1.0),
    },
)
class GapDial(ClasswiseAffine):
    r"""Raise the accuracy of hard classes with offsets per class, on balanced and on long-tailed data.

    Scores are calibrated with one temperature and moved to a uniform prior (:math:`-\log K\pi`), unless held-out samples show
    that the training loss has already done so. Then the offsets are added that minimise

    .. math:: \Big(\frac1K \sum_k (1 - a_k(b))^{1 + s}\Big)^{1 / (1 + s)} + \frac1K \sum_k \frac{r}{n_k} b_k^2,\qquad
              a_k(b) = \mathop{\mathrm{mean}}_{i: y_i = k} \mathrm{softmax}(z_i + b)_k

    with :math:`n_k` held-out samples of class k: the fewer samples, the stronger the penalty on its offset. The
    strength :math:`s` determines how much more a class counts if its error is larger: from the mean error (small s)
    towards that of the worst class (large s). ``0`` means calibration and prior only, which on balanced data changes no
    prediction.

    When to use: classes that are hard for other reasons than their frequency, above all on balanced data, if some loss on easy
    classes is acceptable; on a long tail instead of logit adjustment if the hard classes matter most.
    Expect: on balanced data, as chosen by the default rule, about +1 point for the hard third and -1 for the easy third (worst
    ten classes +1 ± 1); on a long tail about +23 points for the hard third, +23 for the worst ten classes, +7 overall and -7 for
    the easy third (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: hard classes gain at the cost of easy ones. With few held-out samples per class, the offsets are close to 0.

    Args:
        strength: :math:`s`. None tries 0, 1.5, 2, 2.5, 3, 4 and 6.
        ridge: :math:`r`. None tries 1, 3 and 10. If several settings are tried, they are cross-fitted (each sample is corrected
            by offsets that were fitted without it), and ``rule`` chooses one of them.
        rule: Name of the selection rule, see :data:`classgap.posthoc.RULES`.
        overall: What the rule means by overall accuracy: ``"balanced"`` is the mean over classes, ``"overall"`` over samples.
        folds: Number of folds of the cross-fitting.
        seed: Random seed of the fold assignment.
    Attributes:
        strength_, ridge_: The values used.
        frontier_: :class:`FrontierPoint` of each setting tried, from cross-fitted predictions; empty if both were given.
    """

    variants = tuple({"strength": s, "ridge": 1.0} for s in STRENGTHS)

    strength_: float
    ridge_: float
    frontier_: tuple[FrontierPoint, ...]

    def __init__(
        self,
        strength: float | None = None,
        ridge: float | None = None,
        rule: str = DEFAULT_RULE,
        overall: str = "balanced",
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.strength = strength
        self.ridge = ridge
        self.rule = rule
        self.overall = overall
        self.folds = folds
        self.seed = seed

    def _fit(self, held_out: HeldOut) -> None:
        strengths = STRENGTHS if self.strength is None else (number("strength", self.strength, low=0.0),)
        ridges = RIDGES if self.ridge is None else (number("ridge", self.ridge, low=0.0),)
        # at strength 0 the ridge has no effect
        settings = [(s, r) for r in ridges for s in strengths if s > 0 or r == ridges[0]]
        self.frontier_, (self.strength_, self.ridge_) = (), settings[0]
        if len(settings) > 1:
            need_samples(held_out, self.folds, "GapDial")
            whole("seed", self.seed, low=0)
            candidates = self._cross_fit(held_out, settings)
            self.frontier_ = tuple(_point(*settings[int(k)], c, self.overall) for k, c in candidates.items())
            self.strength_, self.ridge_ = settings[int(choose(candidates, self.rule, self.overall) or 0)]
        base = _Base.fit(held_out)
        self._learn(base, _Contest.of(held_out, base))

    @classmethod
    def fit_settings(cls, methods: Sequence[Any], held_out: HeldOut) -> None:
        """Calibration and prior do not depend on strength and ridge, so settings that are given share them."""
        if any(dial.strength is None or dial.ridge is None for dial in methods):
            super().fit_settings(methods, held_out)
            return
        base = _Base.fit(held_out)
        contest = _Contest.of(held_out, base)
        for dial in methods:
            dial.frontier_, dial.strength_, dial.ridge_ = (), dial.strength, dial.ridge
            dial._learn(base, contest)

    def _learn(self, base: _Base, contest: _Contest) -> None:
        self.scale_ = np.full(len(base.offset), base.scale)
        self.offset_ = base.offset + contest.offsets(self.strength_, self.ridge_)

    def _cross_fit(self, held_out: HeldOut, settings: list[tuple[float, float]]) -> dict[str, Comparison]:
        """Comparison of each setting with the uncorrected scores, on samples not used to fit it; keys are indices of settings."""
        before = held_out.logits.argmax(axis=1)
        after = np.tile(before, (len(settings), 1))
        for fitting, rows in splits(held_out, self.folds, self.seed):
            base = _Base.fit(fitting)
            contest = _Contest.of(fitting, base)
            scores, offsets = base.apply(held_out.logits[rows]), None
            for k, (strength, ridge) in enumerate(settings):
                offsets = contest.offsets(strength, ridge, start=offsets)
                after[k, rows] = (scores + offsets).argmax(axis=1)
        named = {str(k): predicted for k, predicted in enumerate(after)}
        return compare_predictions(
            held_out.y, before, named, [str(k) for k in range(held_out.num_classes)], seed=self.seed
        )


def _point(strength: float, ridge: float, comparison: Comparison, overall: str) -> FrontierPoint:
    change = comparison.metrics
    return FrontierPoint(strength, ridge, change[overall].delta, change["hard"].delta, change["worst_decile"].delta)


@dataclass(frozen=True)
class _Base:
    """Calibrated scores under a uniform prior: ``scale * scores + offset``."""

    scale: float
    offset: Array

    @classmethod
    def fit(cls, held_out: HeldOut) -> _Base:
        """Scores that contain the training prior are moved to a uniform prior; others are only calibrated.

        Which of the two applies is decided by the likelihood of the held-out samples, with equal weight for every class.
        """
        counts, support = held_out.class_counts, np.maximum(held_out.support, 1)
        equal_weight = (1 / support)[held_out.y]
        # calibrate under the training prior, which the scores contain, then under the uniform prior
        trained = (np.maximum(counts, 1e-12 * counts.sum()) / support)[held_out.y]
        first = 1 / fit_temperature(held_out.logits, held_out.y, trained)
        bonus = log_prior_offsets(counts)
        adjusted = (first * held_out.logits + bonus).astype(held_out.logits.dtype)
        second = 1 / fit_temperature(adjusted, held_out.y, equal_weight)
        moved = cls(first * second, second * bonus)
        if not bonus.any():
            return moved
        calibrated = cls(1 / fit_temperature(held_out.logits, held_out.y, equal_weight), np.zeros_like(bonus))
        return min(moved, calibrated, key=lambda base: base.loss(held_out, equal_weight))

    def loss(self, held_out: HeldOut, weights: Array) -> float:
        """Weighted negative log-likelihood."""
        K = held_out.num_classes
        problem = ClasswiseProblem(held_out.logits, held_out.y, weights, float(weights.sum()), np.ones(K))
        return evaluate(problem, np.concatenate([np.full(K, self.scale), self.offset])).value

    def apply(self, scores: Array) -> Array:
        return (self.scale * scores + self.offset).astype(scores.dtype)


@dataclass(frozen=True)
class _Contest:
    """The scores of each sample for its most probable classes: the true class first, then the others."""

    scores: Array  # (n, m)
    columns: Array  # (n, m)
    support: Array  # (K,) held-out samples

    @classmethod
    def of(cls, held_out: HeldOut, base: _Base) -> _Contest:
        scores, K = base.apply(held_out.logits), held_out.num_classes
        at = np.arange(len(scores)), held_out.y
        own = scores[at].copy()
        scores[at] = np.inf  # so that the true class is always kept
        m = min(K, _CONTENDERS)
        columns = (
            np.argpartition(scores, K - m, axis=1)[:, K - m :] if m < K else np.tile(np.arange(K), (len(scores), 1))
        )
        scores[at] = own
        first = (columns == held_out.y[:, None]).argmax(axis=1)
        rows = np.arange(len(scores))
        columns[rows, first], columns[:, 0] = columns[:, 0].copy(), held_out.y
        return cls(np.take_along_axis(scores, columns, axis=1), columns, held_out.support)

    def offsets(self, strength: float, ridge: float, start: Array | None = None) -> Array:
        """The offsets for this strength; zeros at strength 0. The offset of a class without samples is 0."""
        K, seen = len(self.support), self.support > 0
        if strength == 0:
            return np.zeros(K)
        support = np.maximum(self.support, 1)
        penalty = ridge / support / seen.sum()
        own = self.columns[:, 0]

        def objective(b: Array) -> tuple[float, Array]:
            p = self.scores + b[self.columns].astype(self.scores.dtype)
            p -= p.max(axis=1, keepdims=True)
            np.exp(p, out=p)
            p /= p.sum(axis=1, keepdims=True)
            accuracy = np.bincount(own, p[:, 0], minlength=K) / support
            miss = np.where(seen, 1 - accuracy, 0.0).clip(1e-9, 1.0)
            power_mean = float((miss[seen] ** (1 + strength)).mean()) ** (1 / (1 + strength))
            pull = (-((miss / power_mean) ** strength) / seen.sum() / support)[own] * p[:, 0]
            p *= -pull[:, None].astype(p.dtype)
            gradient = np.bincount(self.columns.ravel(), p.ravel(), minlength=K) + np.bincount(own, pull, minlength=K)
            value = power_mean + float(penalty @ b**2)
            return value, np.where(seen, gradient + 2 * penalty * b, 0.0)

        return lbfgs(objective, np.zeros(K) if start is None else start, tol=_TOL, max_iter=200)
