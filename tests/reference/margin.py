"""Losses with a margin matrix (Jitkrittum et al. 2022, eq. 3), EQL (Tan et al. 2020), Seesaw (Wang et al. 2021)."""

from __future__ import annotations

import numpy as np

from reference.softmax import log_softmax, mean


def with_margins(logits, target, margin):
    """``margin(y, j)`` for j ≠ y."""
    losses = []
    for row, y in zip(logits, target, strict=True):
        losses.append(np.log(1 + sum(np.exp(margin(y, j) + row[j] - row[y]) for j in range(len(row)) if j != y)))
    return mean(losses)


def eql_delta(logits, target, counts, coefficient):
    prior = np.array(counts) / sum(counts)
    return with_margins(logits, target, lambda y, j: coefficient * prior[j])


def ldam_delta(logits, target, counts, coefficient):
    prior = np.array(counts) / sum(counts)
    return with_margins(logits, target, lambda y, j: coefficient * prior[y] ** -0.25)


def eql_softmax(logits, target, counts, threshold, drop):
    """``drop`` says, for each sample and class, whether the coin fell on dropping."""
    prior = np.array(counts) / sum(counts)
    losses = []
    for i, (row, y) in enumerate(zip(logits, target, strict=True)):
        weights = [1 - drop[i][j] * (prior[j] < threshold) * (j != y) for j in range(len(row))]
        losses.append(-np.log(np.exp(row[y]) / sum(w * np.exp(z) for w, z in zip(weights, row, strict=True))))
    return mean(losses)


def eql_sigmoid(logits, target, counts, threshold):
    prior = np.array(counts) / sum(counts)
    losses = []
    for row, y in zip(logits, target, strict=True):
        total = 0.0
        for j, z in enumerate(row):
            p = 1 / (1 + np.exp(-z))
            if j == y:
                total -= np.log(p)
            elif prior[j] >= threshold:
                total -= np.log(1 - p)
        losses.append(total)
    return mean(losses)


def seesaw(logits, target, counts, p, q):
    losses = []
    for row, y in zip(logits, target, strict=True):
        scores = np.exp(log_softmax(row))
        total = 0.0
        for j, z in enumerate(row):
            mitigation = compensation = 1.0
            if counts[j] < counts[y]:
                mitigation = (max(counts[j], 1) / max(counts[y], 1)) ** p
            if scores[j] > max(scores[y], 0.01):
                compensation = (scores[j] / max(scores[y], 0.01)) ** q
            total += (mitigation * compensation if j != y else 1.0) * np.exp(z)
        losses.append(-np.log(np.exp(row[y]) / total))
    return mean(losses)
