"""Small scores with a known story, shared by the post-hoc tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Task(NamedTuple):
    """A linear head on Gaussian features, trained on a long tail."""

    scores: np.ndarray
    y: np.ndarray
    features: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    counts: np.ndarray

    @property
    def norms(self) -> np.ndarray:
        return np.linalg.norm(self.weight, axis=1)

    @property
    def context(self) -> dict[str, np.ndarray]:
        return {
            "class_counts": self.counts,
            "weight_norms": self.norms,
            "bias": self.bias,
            "features": self.features,
        }


def long_tailed_task(
    num_classes: int = 5, per_class: int = 60, dim: int = 8, seed: int = 0, *, balanced: bool = False
) -> Task:
    """Scores as a head trained on counts 1000, …, 10 would give them, on held-out samples with half the tail's slope."""
    rng = np.random.default_rng(seed)
    counts = np.geomspace(1000, 10, num_classes).astype(int)
    means = rng.normal(size=(num_classes, dim))
    share = np.full(num_classes, 1.0) if balanced else np.sqrt(counts)
    sizes = np.floor(per_class * num_classes * share / share.sum()).astype(int)
    sizes[0] += per_class * num_classes - sizes.sum()
    y = np.repeat(np.arange(num_classes), sizes)
    features = (means[y] + 1.2 * rng.normal(size=(len(y), dim))).astype(np.float64)
    weight = means / 1.2**2
    bias = np.log(counts / counts.sum()) - (means**2).sum(1) / (2 * 1.2**2)
    return Task(features @ weight.T + bias, y, features, weight, bias, counts)
