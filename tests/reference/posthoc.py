"""Post-hoc methods written slowly and obviously from the papers; the estimators are checked against these."""

from __future__ import annotations

import math

import numpy as np


def cross_entropy(logits: list[float], target: int) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(v - top) for v in logits)) - logits[target]


def marc_weights(counts: list[float], gamma: float) -> list[float]:
    """Eq. (12)."""
    raw = [(1 / n) ** gamma for n in counts]
    return [len(counts) * r / sum(raw) for r in raw]


def marc_objective(scores, y, counts, norms, omega, beta, *, gamma, normalize, ridge) -> float:
    """Eq. (10)-(12) with the ridge that pulls towards no change."""
    U = marc_weights(list(counts), gamma)
    total, weight = 0.0, 0.0
    for row, target in zip(scores, y, strict=True):
        calibrated = [omega[j] * row[j] + beta[j] * norms[j] for j in range(len(row))]
        total += U[target] * cross_entropy(calibrated, target)
        weight += U[target]
    K = len(counts)
    penalty = ridge / (2 * K) * (sum((w - 1) ** 2 for w in omega) + sum(b**2 for b in beta))
    return total / (weight if normalize == "weights" else len(y)) + penalty


def marc_margins(scores, y, norms, omega, beta):
    """Eq. (4) and (8): the calibrated margin of each sample to its own class, averaged over the samples of each class."""
    sums, counts = [0.0] * len(norms), [0] * len(norms)
    for row, target in zip(scores, y, strict=True):
        margin = row[target] / norms[target]
        sums[target] += omega[target] * margin + beta[target]
        counts[target] += 1
    return [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)]


def marc_by_sgd(
    scores, y, counts, norms, *, gamma, ridge, normalize="weights", epochs=60, batch=32, lr=0.05, momentum=0.9, seed=0
):
    """The paper's Algorithm 2 on cached logits: SGD with momentum and cosine decay; (weighted) mean over the batch."""
    rng = np.random.default_rng(seed)
    n, K = scores.shape
    U = np.array(marc_weights(list(counts), gamma))
    theta, velocity = np.repeat([1.0, 0.0], K), np.zeros(2 * K)
    steps, done = epochs * (n // batch), 0
    for _ in range(epochs):
        order = rng.permutation(n)
        for start in range(0, n - batch + 1, batch):
            rows = order[start : start + batch]
            z, t = scores[rows], y[rows]
            logits = theta[:K] * z + theta[K:] * norms
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(batch), t] -= 1
            p *= (U[t] / (U[t].sum() if normalize == "weights" else batch))[:, None]
            gradient = np.concatenate([(p * z).sum(0), p.sum(0) * norms]) + ridge / K * (
                theta - np.repeat([1.0, 0.0], K)
            )
            velocity = momentum * velocity + gradient
            theta = theta - 0.5 * lr * (1 + math.cos(math.pi * done / steps)) * velocity
            done += 1
    return theta[:K], theta[K:]


def logit_adjustment(row, prior, tau):
    return [z - tau * math.log(p) for z, p in zip(row, prior, strict=True)]


def tau_norm_head(weight, tau):
    return [[v / math.sqrt(sum(x * x for x in row)) ** tau for v in row] for row in weight]


def disalign(row, phi, alpha, beta, v, v0, form):
    sigma = 1 / (1 + math.exp(-(sum(a * b for a, b in zip(v, phi, strict=True)) + v0)))
    if form == "paper":
        return [sigma * (a * z + b) + (1 - sigma) * z for z, a, b in zip(row, alpha, beta, strict=True)]
    return [(1 + sigma * a) * z + sigma * b for z, a, b in zip(row, alpha, beta, strict=True)]


def dial_objective(scores, y, offsets, strength, ridge) -> float:
    """Power mean of the classes' soft errors plus the ridge that is weaker for classes with more samples."""
    K = len(scores[0])
    right, support = [0.0] * K, [0] * K
    for row, target in zip(scores, y, strict=True):
        support[target] += 1
        right[target] += math.exp(-cross_entropy([z + b for z, b in zip(row, offsets, strict=True)], target))
    seen = [k for k in range(K) if support[k]]
    miss = [1 - right[k] / support[k] for k in seen]
    mean = (sum(m ** (1 + strength) for m in miss) / len(seen)) ** (1 / (1 + strength))
    return mean + sum(ridge / support[k] * offsets[k] ** 2 for k in seen) / len(seen)
