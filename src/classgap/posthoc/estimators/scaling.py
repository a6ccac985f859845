"""Calibration: one temperature, one scale and one offset per class, or a full matrix."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from threadpoolctl import threadpool_limits

from classgap.checks import InputError, number
from classgap.posthoc.estimators.base import ClasswiseAffine, PostHocMethod
from classgap.posthoc.held_out import Array, HeldOut
from classgap.posthoc.solver.minimize import lbfgs, solve
from classgap.posthoc.solver.sweep import CHUNK, ClasswiseProblem, evaluate
from classgap.registry import Float, method


@method("temperature_scaling", kind="posthoc", family="calibration", paper="arXiv:1706.04599")
class TemperatureScaling(ClasswiseAffine):
    r"""Divide all scores by one temperature :math:`T`, fitted by maximum likelihood. Changes confidences, never a prediction.

    When to use: for calibrated probabilities; before methods that assume calibrated scores.
    Expect: on balanced data and on a long tail no prediction changes, so no accuracy changes.
    Pitfalls: one temperature is an average: rare classes may remain over-confident. It does not reduce a gap.

    Attributes:
        temperature_: :math:`T > 0`.
    Reference: Guo et al., *On calibration of modern neural networks*, ICML 2017, arXiv:1706.04599.
    """

    temperature_: float

    def _fit(self, held_out: HeldOut) -> None:
        self.temperature_ = fit_temperature(held_out.logits, held_out.y)
        self.scale_ = np.full(held_out.num_classes, 1 / self.temperature_)
        self.offset_ = np.zeros(held_out.num_classes)


def fit_temperature(scores: Array, y: Array, weights: Array | None = None) -> float:
    """The temperature of maximum (weighted) likelihood, within [1/1000, 1000] times the standard deviation of the scores.

    The log-likelihood is concave in 1/T, so its derivative has at most one root; with perfect separation it has none, and the
    bound is used.
    """
    u = np.ones(len(y)) if weights is None else weights
    K = scores.shape[1]
    problem = ClasswiseProblem(scores, y, u, float(u.sum()), np.ones(K))
    spread = float(np.std(scores[: 20 * CHUNK])) or 1.0

    def slope(log_inverse: float) -> float:
        theta = np.concatenate([np.full(K, np.exp(log_inverse)), np.zeros(K)])
        return float(evaluate(problem, theta).gradient[:K].sum())

    low, high = -np.log(1000 * spread), np.log(1000 / spread)
    with threadpool_limits(1, "blas"):  # a sweep uses its own threads
        if slope(low) >= 0:
            return float(np.exp(-low))
        if slope(high) <= 0:
            return float(np.exp(-high))
        return float(np.exp(-brentq(slope, low, high, xtol=1e-6)))


@method(
    "vector_scaling",
    kind="posthoc",
    family="calibration",
    paper="arXiv:1706.04599",
    space={"ridge": Float(1e-4, 10.0, default=0.1, log=True)},
)
class VectorScaling(ClasswiseAffine):
    """One scale and one offset per class, fitted by maximum likelihood (convex, solved exactly).

    When to use: calibration per class with enough held-out samples, for the class frequencies of the held-out set.
    Expect: on balanced data a slightly larger gap (+1 point for the easy third, -1 for the hard third); on a long tail
    +1 point, since the likelihood favours frequent classes (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: it learns the class frequencies of the held-out set, which should be those at inference. To improve rare classes use
    MARC, which is vector scaling with re-weighting.

    Args:
        ridge: Weight of the penalty on changes, relative to the weight of an average class.
        tol: Stop when the gradient norm is this small, relative to the norm at no change.
    Reference: Guo et al., *On calibration of modern neural networks*, ICML 2017, arXiv:1706.04599.
    """

    objective_: float

    def __init__(self, ridge: float = 0.1, tol: float = 1e-4) -> None:
        self.ridge = ridge
        self.tol = tol

    def _fit(self, held_out: HeldOut) -> None:
        number("ridge", self.ridge, low=0.0)
        ones = np.ones(len(held_out.y))
        solution = solve(
            ClasswiseProblem(
                held_out.logits,
                held_out.y,
                ones,
                float(len(ones)),
                np.ones(held_out.num_classes),
                ridge=self.ridge,
                free=held_out.support > 0,
            ),
            tol=self.tol,
        )
        self.scale_, self.offset_, self.objective_ = solution.scale, solution.offset, solution.value


@method(
    "matrix_scaling",
    kind="posthoc",
    family="calibration",
    paper="arXiv:1706.04599",
    space={"ridge": Float(1e-2, 100.0, default=10.0, log=True)},
)
class MatrixScaling(PostHocMethod):
    """A full ``K × K`` matrix and an offset, fitted by maximum likelihood with a ridge towards the identity.

    The only method here that moves scores between pairs of classes. It has K² parameters: with fewer than some hundred samples
    per class, keep the ridge large.

    When to use: few classes, hundreds of held-out samples per class, and pairs of classes that are confused with each other.
    Expect: on balanced data no significant change; on a long tail between 0 (linear head) and +5 points for the hard third
    (hidden layer; CIFAR-100 embeddings, imbalance 100).
    Pitfalls: K² parameters, so time and memory grow with the square of the number of classes: above some hundred classes use
    vector scaling. ``fix`` leaves it out above 500 classes.

    Args:
        ridge: Weight of the penalty on changes of each parameter, relative to the weight of an average class.
        tol: Stop when the largest gradient entry is this small, relative to the start.
    Attributes:
        matrix_: ``(K, K)``; corrected scores are ``scores @ matrix_.T + offset_``.
    Reference: Guo et al., *On calibration of modern neural networks*, ICML 2017, arXiv:1706.04599; the ridge follows Kull et
    al., NeurIPS 2019, arXiv:1910.12656.
    """

    MOST_CLASSES: ClassVar = 500  # in fix: with more, one fit takes longer than all other methods together

    learned: ClassVar = {"matrix_": "KK", "offset_": "K"}
    matrix_: Array
    offset_: Array

    def __init__(self, ridge: float = 10.0, tol: float = 1e-4) -> None:
        self.ridge = ridge
        self.tol = tol

    @classmethod
    def unsuitable(cls, held_out: HeldOut) -> str | None:
        if held_out.num_classes > cls.MOST_CLASSES:
            return f"has K² parameters; fix leaves it out above {cls.MOST_CLASSES} classes"
        return super().unsuitable(held_out)

    def _fit(self, held_out: HeldOut) -> None:
        number("ridge", self.ridge, low=0.0)
        scores, y, K = held_out.logits, held_out.y, held_out.num_classes
        free = held_out.support > 0
        strength = self.ridge / K

        def objective(x: Array) -> tuple[float, Array]:
            change = x.reshape(K, K + 1)
            value, gradient = 0.0, np.zeros((K, K + 1))
            matrix, offset = np.eye(K) + change[:, :K], change[:, K]
            for start in range(0, len(y), 16 * CHUNK):
                s, t = scores[start : start + 16 * CHUNK].astype(np.float64), y[start : start + 16 * CHUNK]
                p = s @ matrix.T
                p += offset
                p -= p.max(axis=1, keepdims=True)
                np.exp(p, out=p)
                p /= p.sum(axis=1, keepdims=True)
                at = np.arange(len(t)), t
                value -= float(np.log(np.maximum(p[at], 1e-300)).sum())
                p[at] -= 1
                gradient[:, :K] += p.T @ s
                gradient[:, K] += p.sum(axis=0)
            gradient = gradient / len(y) + strength * change
            gradient[~free] = 0.0
            return value / len(y) + strength / 2 * float((change**2).sum()), gradient.ravel()

        change = lbfgs(objective, np.zeros(K * (K + 1)), tol=self.tol).reshape(K, K + 1)
        self.matrix_, self.offset_ = np.eye(K) + change[:, :K], change[:, K]

    def _transform(self, scores: Array | None, features: Array | None) -> Array:
        if scores is None:
            raise InputError("MatrixScaling needs scores (n, K)")
        corrected: Array = scores @ self.matrix_.T.astype(scores.dtype) + self.offset_.astype(scores.dtype)
        return corrected

    def _ignores_shifts(self) -> bool:
        sums = self.matrix_.sum(axis=1)
        return bool(np.allclose(sums, sums[0]))

    def _fold(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        return self.matrix_ @ weight, self.matrix_ @ bias + self.offset_
