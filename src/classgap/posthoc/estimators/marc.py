"""MARC: a scale and an offset for the margin of each class."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from classgap.checks import InputError, number, one_of, whole
from classgap.posthoc.estimators.base import ClasswiseAffine, class_weights
from classgap.posthoc.held_out import Array, HeldOut, check_scores, label_columns
from classgap.posthoc.solver.minimize import solve
from classgap.posthoc.solver.sweep import ClasswiseProblem, evaluate
from classgap.registry import Float, method

# The smallest ridge of the exact solver. Eq. 11 does not change under a common shift of all scores, and has no minimum if a
# class is separated perfectly: this ridge makes the solution unique and finite.
_LEAST_RIDGE = 1e-6
# SGD of the second stage, as in the paper and in the authors' code.
_BATCH, _RATE, _MOMENTUM = 512, 0.05, 0.9


@method(
    "marc",
    kind="posthoc",
    family="margin",
    paper="arXiv:2112.07225",
    space={
        "gamma": Float(0.0, 2.0, default=1.2),
        "ridge": Float(0.0, 10.0, default=0.0),
    },
)
class MARC(ClasswiseAffine):
    r"""Margin calibration: learn :math:`\hat\eta_j = \omega_j \eta_j + \beta_j \|W_j\|` by re-weighted cross-entropy.

    .. math:: \min_{\omega, \beta} \frac1Z \sum_i U_{y_i} \mathrm{CE}(\hat\eta_i, y_i)
              + \frac{r}{2K} (\|\omega - 1\|^2 + \|\beta\|^2), \quad U_k = K n_k^{-\gamma} / \sum_j n_j^{-\gamma}

    With :math:`r = 0`, the default, this is eq. 11 of the paper. :math:`n_k` counts the samples given to ``fit``, as in the
    paper, where these are the training samples: a balanced held-out set needs no re-weighting, and training counts would correct
    twice. The problem is convex; it is solved to ``tol`` over all samples, or by a given number of
    ``steps`` of SGD as in the paper.

    When to use: long-tailed data with held-out (or out-of-fold) scores of every class, when the counts alone are not enough.
    Expect: on balanced data a slight loss of the hard classes (-1 point); on a long tail about +20
    points for the hard third, +7 overall and -4 in the easy third (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: on scores of the training samples themselves, which the paper uses, the minimum of eq. 11 is far from no change or,
    if a class is separated perfectly, at infinity, and most of the gain is lost: set ``steps=2000`` or ``ridge=0.1`` there.
    Without re-weighting (``gamma=0``) it is vector scaling and does not help rare classes.

    Args:
        gamma: Exponent of the class weights; ``0`` means no re-weighting.
        normalize: :math:`Z`: ``"batch"`` divides by the number of samples (eq. 11), ``"weights"`` by :math:`\sum_i U_{y_i}` (the
            authors' code). With ``steps``, :math:`Z` is that of each batch and scales the learning rate; otherwise it only scales
            the ridge.
        ridge: :math:`r`, a penalty on changes that the paper does not have, relative to the weight of an average class.
            ``0`` is eq. 11 (solved with 1e-6, so that the solution is unique and finite). Use ``0.1`` for classes with very few
            samples, or for training scores without ``steps``. The authors' code has weight decay, :math:`r = K / 2000` towards
            :math:`\omega = 0`.
        steps: None solves exactly. A number: that many steps of SGD from :math:`\omega = 1, \beta = 0`: momentum 0.9, learning
            rate 0.05 with a cosine schedule to 0, batches of 512 (2000 of them in the authors' code for CIFAR).
        tol: Stop when the gradient norm is this small, relative to the norm at no change.
    Attributes:
        omega_, beta_: The learned scale and offset of each margin ``(K,)``; ``1`` and ``0`` for a class without samples.
        weight_norms_: :math:`\|W_j\|`, by which scores are divided to give margins ``(K,)``; ones if none were given.
        objective_: Value of the objective at the solution.
    Example:
        >>> scores = np.array([[2.0, 1.0], [1.5, 1.0], [1.2, 1.0], [1.0, 0.8]])
        >>> marc = MARC().fit(scores, [0, 0, 1, 1], weight_norms=[2.0, 1.0])
        >>> marc.omega_.shape, marc.beta_.shape, marc.margins(scores).shape
        ((2,), (2,), (4, 2))

    Reference: Wang et al., *Margin calibration for long-tailed visual recognition*, ACML 2022, arXiv:2112.07225, eq. 8-12.
    """

    learned: ClassVar = dict.fromkeys(("omega_", "beta_", "weight_norms_", "scale_", "offset_"), "K")
    variants = ({}, {"ridge": 0.1}, {"ridge": 1.0})  # the first has no ridge, as in the paper
    omega_: Array
    beta_: Array
    weight_norms_: Array
    objective_: float

    def __init__(
        self,
        gamma: float = 1.2,
        normalize: str = "batch",
        ridge: float = 0.0,
        steps: int | None = None,
        tol: float = 1e-4,
    ) -> None:
        self.gamma = gamma
        self.normalize = normalize
        self.ridge = ridge
        self.steps = steps
        self.tol = tol

    @property
    def margin_norms(self) -> Array | None:
        """The norms of the layer before calibration; the norms of the folded layer would not give the margin of eq. 8."""
        return getattr(self, "weight_norms_", None)

    def margins(self, scores: ArrayLike) -> Array:
        r"""Calibrated margins :math:`\hat d_j = \omega_j d_j + \beta_j` (eq. 8) of every sample to every class, ``(n, K)``.

        :math:`d_j = \eta_j / \|W_j\|` comes from the uncorrected ``scores``.
        """
        check_is_fitted(self, "weight_norms_")
        matrix = check_scores(scores, columns=len(self.classes_))
        calibrated: Array = self.omega_ * (matrix / self.weight_norms_) + self.beta_
        return calibrated

    def average_margins(self, scores: ArrayLike, y: ArrayLike) -> Array:
        """Mean calibrated margin of each class over its own samples, ``(K,)``; nan for a class without samples.

        Args:
            scores: Uncorrected scores ``(n, K)``.
            y: True labels ``(n,)``, as given to ``fit``.
        """
        margins = self.margins(scores)
        _, target = label_columns(y, margins.shape[1], self.classes_)
        if len(target) != len(margins):
            raise InputError(f"scores and y must have the same length, got {len(margins)} and {len(target)}")
        count = np.bincount(target, minlength=margins.shape[1])
        own = np.bincount(target, margins[np.arange(len(target)), target], minlength=margins.shape[1])
        average: Array = np.divide(own, count, out=np.full(len(count), np.nan), where=count > 0)
        return average

    def _fit(self, held_out: HeldOut) -> None:
        number("gamma", self.gamma, low=0.0, high=20.0)
        number("ridge", self.ridge, low=0.0)
        one_of("normalize", self.normalize, ("batch", "weights"))
        weights = class_weights(held_out.support, self.gamma)[held_out.y]
        unit = np.ones(held_out.num_classes) if held_out.weight_norms is None else held_out.weight_norms
        problem = ClasswiseProblem(
            held_out.logits,
            held_out.y,
            weights,
            float(weights.sum()) if self.normalize == "weights" else float(len(weights)),
            unit,
            ridge=self.ridge,
            free=held_out.support > 0,
        )
        self.weight_norms_ = unit
        if self.steps is None:
            self._solve(problem)
        else:
            theta = sgd(problem, whole("steps", self.steps, low=1), weighted=self.normalize == "weights")
            self.omega_, self.beta_ = np.split(theta, 2)
            self.objective_ = evaluate(problem, theta).value
        self.scale_, self.offset_ = self.omega_, unit * self.beta_

    def _solve(self, problem: ClasswiseProblem) -> None:
        added = max(_LEAST_RIDGE - problem.ridge, 0.0)
        solution = solve(replace(problem, ridge=problem.ridge + added), tol=self.tol)
        self.omega_, self.beta_ = solution.scale, solution.offset
        distance = float(((self.omega_ - 1) ** 2).sum() + (self.beta_**2).sum())
        self.objective_ = solution.value - added / (2 * problem.num_classes) * distance
        if problem.ridge == 0 and problem.mask.all():
            # Without a ridge, a common shift of all scores is undetermined: choose the smallest offsets, as SGD would.
            shift = 1 / problem.unit
            self.beta_ = self.beta_ - shift * (self.beta_ @ shift) / (shift @ shift)


def sgd(problem: ClasswiseProblem, steps: int, *, weighted: bool) -> Array:
    """Scales and offsets after ``steps`` of SGD from no change, as in the second stage of MARC; deterministic.

    Args:
        weighted: Divide the loss of a batch by the sum of its weights, instead of by its number of samples.
    """
    rng, count, K = np.random.default_rng(0), len(problem.y), problem.num_classes
    batch = min(_BATCH, count)
    theta = problem.identity
    velocity = np.zeros_like(theta)
    order = np.empty(0, dtype=np.int64)
    for step in range(steps):
        if len(order) < batch:  # end of an epoch; an incomplete batch is dropped
            order = rng.permutation(count)
        rows, order = order[:batch], order[batch:]
        x, y, u = problem.scores[rows].astype(np.float64), problem.y[rows], problem.weights[rows]
        error = softmax(theta[:K] * x + theta[K:] * problem.unit, axis=1)
        error[np.arange(batch), y] -= 1
        error *= (u / (u.sum() if weighted else batch))[:, None]
        gradient = np.concatenate([(error * x).sum(axis=0), problem.unit * error.sum(axis=0)])
        gradient += problem.ridge / K * (theta - problem.identity)
        velocity = _MOMENTUM * velocity + np.where(problem.mask, gradient, 0.0)
        theta = theta - _RATE * (1 + math.cos(math.pi * step / steps)) / 2 * velocity
    return theta
