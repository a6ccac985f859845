"""Conditional mutual information and confusional spectral regularisation, with plain loops."""

from __future__ import annotations

import numpy as np

from reference.softmax import cross_entropy, log_softmax, mean


def class_means(logits, labels, num_classes):
    means = np.zeros((num_classes, num_classes))
    for k in set(labels):
        means[k] = np.mean([np.exp(log_softmax(z)) for z, y in zip(logits, labels, strict=True) if y == k], axis=0)
    return means


def cmic(logits, labels, means, lam, beta):
    logs = [log_softmax(z) for z in logits]
    inside = mean([np.sum(np.exp(p) * (p - np.log(means[y]))) for p, y in zip(logs, labels, strict=True)])
    between = 0.0
    for p, y in zip(logs, labels, strict=True):
        for q, v in zip(logs, labels, strict=True):
            if y != v:
                between += min(-np.sum(np.exp(p) * q), 2 * np.log(len(p)))
    plain = mean([cross_entropy(z, y) for z, y in zip(logits, labels, strict=True)])
    return plain + lam * inside - beta * between / len(labels) ** 2


def pair_weights(logits, labels, slack):
    """Errors after lowering the true logit, normalised by class size; leading singular pair; scaled to [0.01, 2.01]."""
    k = logits.shape[1]
    errors, totals = np.zeros((k, k)), np.zeros(k)
    for z, y in zip(logits, labels, strict=True):
        lowered = z.copy()
        lowered[y] -= slack * abs(z[y])
        predicted = int(np.argmax(lowered))
        totals[y] += 1
        if predicted != y:
            errors[predicted, y] += 1
    u, _, v = np.linalg.svd(errors / np.maximum(totals, 1))
    outer = np.outer(u[:, 0], v[0])
    return 2 * (outer - outer.min()) / (outer.max() - outer.min()) + 0.01


def csr(logits, labels, weights, share):
    losses = []
    for z, y in zip(logits, labels, strict=True):
        g = weights[int(np.argmax(z)), y]
        losses.append((1 - share) * cross_entropy(z, y) + share * g * cross_entropy(z, y))
    return mean(losses)
