"""cRT: train the last layer again with equal weight for every class."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from classgap.checks import InputError, number
from classgap.posthoc.estimators.base import PostHocMethod, class_weights
from classgap.posthoc.held_out import Array, HeldOut
from classgap.posthoc.solver.minimize import lbfgs
from classgap.posthoc.solver.sweep import CHUNK
from classgap.registry import Float, method


@method(
    "crt",
    kind="posthoc",
    family="head",
    paper="arXiv:1910.09217",
    needs=("features",),
    space={"weight_decay": Float(1e-5, 1e-1, default=1e-2, log=True)},
)
class CRT(PostHocMethod):
    r"""Classifier re-training: a new linear head on frozen features, with equal weight for every class.

    Class-aware sampling is replaced by its expectation (sample weights :math:`1/n_y`), and the ten epochs of SGD by the
    minimum of the convex objective :math:`\frac1K \sum_k \mathrm{mean}_{i: y_i = k} \mathrm{CE}_i + \frac\lambda2 \|W\|^2`.
    It learns a whole head, so unlike the other methods it may be fitted on the features of the training samples.

    When to use: long-tailed data with features, when the head and not the features causes the errors.
    Expect: on balanced data no significant change; on a long tail about +17 points for the hard third and +7 overall for -3 in
    the easy third (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: a new head of K × d parameters over-fits classes with a handful of samples: raise ``weight_decay`` first. Features
    must come from the model that will be used, in evaluation mode.

    Args:
        weight_decay: :math:`\lambda`, on the weights and not on the bias, for features scaled to a mean square of one. The
            paper uses 5e-4 with ten epochs, which is early stopping; with the exact minimum, so little over-fits rare classes.
        tol: Stop when the largest gradient entry is this small, relative to the start.
    Attributes:
        weight_, bias_: The new head ``(K, d)`` and ``(K,)``. A class without samples gets a very low score.
    Reference: Kang et al., *Decoupling representation and classifier*, ICLR 2020, arXiv:1910.09217, sec. 4.
    """

    learned: ClassVar = {"weight_": "Kd", "bias_": "K"}
    variants = ({"weight_decay": 1e-2}, {"weight_decay": 1e-3})
    uses_features = True
    weight_: Array
    bias_: Array

    def __init__(self, weight_decay: float = 1e-2, tol: float = 1e-3) -> None:
        self.weight_decay = weight_decay
        self.tol = tol

    def _fit(self, held_out: HeldOut) -> None:
        number("weight_decay", self.weight_decay, low=0.0)
        features = held_out.features
        assert features is not None
        K, seen = held_out.num_classes, held_out.support > 0
        spread = float(np.sqrt(np.mean(np.square(features[: 80 * CHUNK], dtype=np.float64)))) or 1.0
        weights = class_weights(held_out.support, 1.0)[held_out.y]
        weights /= weights.sum()

        def objective(x: Array) -> tuple[float, Array]:
            head = x.reshape(K, -1)
            value, gradient = _weighted_cross_entropy(features, held_out.y, weights, head, spread, seen)
            decayed = head[:, :-1]
            gradient[:, :-1] += self.weight_decay * decayed
            return value + self.weight_decay / 2 * float((decayed**2).sum()), gradient.ravel()

        head = lbfgs(objective, np.zeros(K * (features.shape[1] + 1)), tol=self.tol).reshape(K, -1)
        self.weight_, self.bias_ = head[:, :-1] / spread, np.where(seen, head[:, -1], -1e4)

    def _transform(self, scores: Array | None, features: Array | None) -> Array:
        assert features is not None
        if features.shape[1] != self.weight_.shape[1]:
            raise InputError(
                f"features have {features.shape[1]} columns, but CRT was fitted with {self.weight_.shape[1]}"
            )
        new: Array = features @ self.weight_.T.astype(features.dtype) + self.bias_.astype(features.dtype)
        return new

    def _fold(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        return self.weight_, self.bias_


def _weighted_cross_entropy(
    features: Array, y: Array, weights: Array, head: Array, spread: float, seen: Array
) -> tuple[float, Array]:
    """Weighted sum of cross-entropies over the classes with samples, and its gradient ``(K, d + 1)``, in chunks of rows."""
    dtype = features.dtype
    weight, bias = (head[:, :-1] / spread).astype(dtype), np.where(seen, head[:, -1], -np.inf).astype(dtype)
    value, gradient = 0.0, np.zeros(head.shape)
    for start in range(0, len(y), 16 * CHUNK):
        x, t, u = (a[start : start + 16 * CHUNK] for a in (features, y, weights))
        p = x @ weight.T
        p += bias
        p -= p.max(axis=1, keepdims=True)
        at = np.arange(len(t)), t
        own = p[at].astype(np.float64)
        np.exp(p, out=p)
        mass = p.sum(axis=1)
        value += float(u @ (np.log(mass, dtype=np.float64) - own))
        p *= (u / mass)[:, None].astype(dtype)
        p[at] -= u.astype(dtype)
        gradient[:, :-1] += (p.T @ x) / spread
        gradient[:, -1] += p.sum(axis=0, dtype=np.float64)
    return value, gradient
