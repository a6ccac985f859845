"""Calibration: one temperature, one scale and offset a class, or a full matrix."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from classgap.checks import InputError, number
from classgap.posthoc.estimators.base import ClasswiseAffine, PostHocMethod
from classgap.posthoc.held_out import Array, HeldOut
from classgap.posthoc.solver.minimize import lbfgs, solve
from classgap.posthoc.solver.sweep import CHUNK, ClasswiseProblem, evaluate
from classgap.registry import Float, method


@method("temperature_scaling", kind="posthoc", family="calibration", paper="arXiv:1706.04599")
class TemperatureScaling(ClasswiseAffine):
    r"""Divide all scores by one temperature :math:`T`, fitted by likelihood. Changes confidence, never a prediction.

    When to use: probabilities that should mean what they say; before methods that assume calibrated scores.
    Expect: on balanced data and on a long tail alike not one prediction changes, so neither does any accuracy.
    Pitfalls: one temperature is an average: rare classes may stay over-confident. It does nothing for a gap.

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
    """The temperature of greatest (weighted) likelihood, within [1/1000, 1000] times the scores' spread.

    The likelihood is concave in 1/T, so its derivative has one root; at perfect separation it has none and the bound is used.
    """
    u = np.ones(len(y)) if weights is None else weights
    K = scores.shape[1]
    problem = ClasswiseProblem(scores, y, u, float(u.sum()), np.ones(K))
    spread = float(np.std(scores[: 20 * CHUNK])) or 1.0

    def slope(log_inverse: float) -> float:
        theta = np.concatenate([np.full(K, np.exp(log_inverse)), np.zeros(K)])
        return float(evaluate(problem, theta).gradient[:K].sum())

    low, high = -np.log(1000 * spread), np.log(1000 / spread)
    with threadpool_limits(1, "blas"):  # sweeps share out the rows themselves
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
    """One scale and one offset a class, fitted by likelihood (convex, solved exactly).

    When to use: calibration class by class with enough held-out samples, under the prior of the held-out set.
    Expect: on balanced data a slight trade the wrong way (+1 point for the easy third, -1 for the hard one); on a long tail
    +1 point, as likelihood keeps favouring the head (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: it learns the held-out set's prior, which should be that of use. To lift rare classes take MARC, which is this with
    re-weighting.

    Args:
        ridge: Pull towards no change, relative to the weight of an average class.
        tol: Gradient norm to stop at, relative to the norm at no change.
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
    """A full ``K × K`` matrix and an offset, fitted by likelihood with a ridge towards the identity.

    The only method here that moves scores between named pairs of classes. It has K² parameters: with fewer than some hundred
    samples a class keep the ridge large.

    When to use: few classes, hundreds of held-out samples for each, and pairs of classes that take each other's samples.
    Expect: on balanced data no change beyond noise; on a long tail between nothing (linear head) and +5 points for the hard third
    (hidden layer; CIFAR-100 embeddings, imbalance 100).
    Pitfalls: K² parameters, so time and memory grow with the square of the classes: above some hundred take vector scaling.

    Args:
        ridge: Pull of each parameter towards no change, relative to the weight of an average class.
        tol: Largest gradient entry to stop at, relative to the first.
    Attributes:
        matrix_: ``(K, K)``; corrected scores are ``scores @ matrix_.T + offset_``.
    Reference: Guo et al., *On calibration of modern neural networks*, ICML 2017, arXiv:1706.04599; the ridge follows Kull et
    al., NeurIPS 2019, arXiv:1910.12656.
    """

    learned = ("matrix_", "offset_")
    matrix_: Array
    offset_: Array

    def __init__(self, ridge: float = 10.0, tol: float = 1e-4) -> None:
        self.ridge = ridge
        self.tol = tol

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
                p = softmax(s @ matrix.T + offset, axis=1)
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

    def _fold(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        return self.matrix_ @ weight, self.matrix_ @ bias + self.offset_
