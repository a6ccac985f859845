"""Logit adjustment (Menon et al. 2021), VS (Kini et al. 2021), LADE (Hong et al. 2021)."""

from __future__ import annotations

import numpy as np

from reference.softmax import cross_entropy, mean


def logit_adjusted(logits, target, counts, tau):
    prior = np.array(counts) / sum(counts)
    return mean([cross_entropy(row + tau * np.log(prior), y) for row, y in zip(logits, target, strict=True)])


def balanced_softmax(logits, target, counts):
    losses = []
    for row, y in zip(logits, target, strict=True):
        masses = [n * np.exp(z) for n, z in zip(counts, row, strict=True)]
        losses.append(-np.log(masses[y] / sum(masses)))
    return mean(losses)


def vector_scaling(logits, target, counts, gamma, tau):
    counts = np.array(counts, dtype=float)
    scale = (counts.max() / counts) ** gamma
    prior = counts / counts.sum()
    return mean([cross_entropy(row / scale + tau * np.log(prior), y) for row, y in zip(logits, target, strict=True)])


def lade(logits, target, counts, alpha, lam, importance="scored", mask_absent=False):
    samples, classes = logits.shape
    prior = np.array(counts) / sum(counts)
    regularizer = 0.0
    for k in range(classes):
        own = [logits[i, k] for i in range(samples) if target[i] == k]
        if mask_absent and not own:
            continue
        first = sum(own) / len(own) if own else 0.0
        weights = [1 / (classes * prior[k if importance == "scored" else target[i]]) for i in range(samples)]
        second = np.log(sum(w * np.exp(logits[i, k]) for i, w in enumerate(weights)) / samples)
        regularizer -= prior[k] * (first - second - lam * second**2)
    return balanced_softmax(logits, target, counts) + alpha * regularizer
