"""Focal (Lin et al. 2017, softmax form) and class-balanced losses (Cui et al. 2019)."""

from __future__ import annotations

import numpy as np

from reference.softmax import cross_entropy, log_softmax, mean


def focal(logits, target, gamma):
    losses = []
    for row, y in zip(logits, target, strict=True):
        p = np.exp(log_softmax(row))[y]
        losses.append(-((1 - p) ** gamma) * np.log(p))
    return mean(losses)


def effective_number_weights(counts, beta):
    weights = [(1 - beta) / (1 - beta**n) for n in counts]
    return np.array(weights) * len(counts) / sum(weights)


def _binary(score, positive, gamma):
    p = 1 / (1 + np.exp(-score))
    p_true = p if positive else 1 - p
    return -((1 - p_true) ** gamma) * np.log(p_true)


def class_balanced(logits, target, counts, beta, kind, gamma, weight_norm="batch"):
    weights = effective_number_weights(counts, beta)
    gamma = gamma if kind.startswith("focal") else 0.0
    total = 0.0
    for row, y in zip(logits, target, strict=True):
        if kind.endswith("sigmoid"):
            loss = sum(_binary(score, k == y, gamma) for k, score in enumerate(row))
        else:
            loss = (1 - np.exp(log_softmax(row)[y])) ** gamma * cross_entropy(row, y)
        total += weights[y] * loss
    return total / (len(target) if weight_norm == "batch" else sum(weights[y] for y in target))
