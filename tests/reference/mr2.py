"""MR², slow and obvious, in NumPy, written from the paper; the oracle for ``classgap.losses`` and ``classgap.batchstats``."""

from __future__ import annotations

import numpy as np


def log_softmax(z):
    z = np.asarray(z, dtype=float)
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def running_moments(steps, num_classes, p=2.0, decay=0.9):
    """State after a list of (features, labels) batches.

    Every sample carries a weight: 1 when it arrives, times ``decay`` at each later appearance of its class. Returns, per
    class, the weighted mean of ‖φ‖_p² and the spread estimators (nan where undefined).
    """
    norms = [[] for _ in range(num_classes)]  # (weight, value)
    within = [[] for _ in range(num_classes)]  # (weight, sum of squares, samples)
    pooled = []
    for features, labels in steps:
        step_scatter, step_freedom = 0.0, 0
        for k in range(num_classes):
            mine = rows_of(k, features, labels)
            if len(mine) == 0:
                continue
            norms[k] = [(w * decay, v) for w, v in norms[k]] + [(1.0, np.linalg.norm(f, ord=p) ** 2) for f in mine]
            scatter = sum(((f - mine.mean(0)) ** 2).sum() for f in mine)
            within[k] = [(w * decay, s, n) for w, s, n in within[k]] + [(1.0, scatter, len(mine))]
            step_scatter += scatter
            step_freedom += len(mine) - 1
        pooled = [(w * decay, s, n) for w, s, n in pooled] + [(1.0, step_scatter, step_freedom)]

    def quotient(a, b):
        return a / b if b > 0 else np.nan

    second = [quotient(sum(w * v for w, v in rows), sum(w for w, _ in rows)) for rows in norms]
    pooled_spread = quotient(sum(w * s for w, s, _ in pooled), sum(w * n for w, _, n in pooled))
    ratio = []
    for k in range(num_classes):
        scatter = sum(w * s for w, s, _ in within[k])
        freedom = sum(w * (n - 1) for w, _, n in within[k])
        ratio.append(np.nan if not within[k] else (scatter / freedom if freedom > 0 else pooled_spread))
    spreads = {"pooled": [pooled_spread if w else np.nan for w in within], "ratio": ratio}
    return np.array(second), {name: np.array(values) for name, values in spreads.items()}


def rows_of(k, features, labels):
    return np.asarray([f for f, y in zip(features, labels, strict=True) if y == k], dtype=float)


def published_averages(steps, num_classes, p=2.0, decay=0.9):
    """Section 3: moving averages of each batch's mean squared norm and mean squared deviation, for the classes in it.

    For p = 2 the mean squared norm is ‖μ̂‖² + ‖ŝ‖² of the batch.
    """
    second, deviation = np.full(num_classes, np.nan), np.full(num_classes, np.nan)
    for features, labels in steps:
        for k in range(num_classes):
            mine = rows_of(k, features, labels)
            if len(mine) == 0:
                continue
            norm = np.mean([np.linalg.norm(f, ord=p) ** 2 for f in mine])
            spread = np.mean([((f - mine.mean(0)) ** 2).sum() for f in mine])
            if np.isnan(second[k]):
                second[k], deviation[k] = norm, spread
            else:
                second[k] = decay * second[k] + (1 - decay) * norm
                deviation[k] = decay * deviation[k] + (1 - decay) * spread
    return second, deviation


def released_step(state, logits, labels, features, num_classes, c_bar, lam, decay, file):
    """One step of the authors' code: the new state (mean norms, variances) and the loss with its two parts."""
    mean_norm, variance = (list(part) for part in state)
    features, logits = np.asarray(features, dtype=float), np.asarray(logits, dtype=float)
    width = features.shape[1]
    for k in range(num_classes):
        mine = rows_of(k, features, labels)
        if len(mine) == 0:
            continue
        new_norm = np.linalg.norm(mine.mean(0), ord=5) ** 2
        new_variance = np.mean([np.linalg.norm(f - mine.mean(0), ord=5) ** 2 for f in mine])
        if mean_norm[k] == 0:
            mean_norm[k], variance[k] = new_norm, new_variance
        else:
            mean_norm[k] = decay * mean_norm[k] + (1 - decay) * new_norm
            variance[k] = decay * variance[k] + (1 - decay) * new_variance
    root = (np.array(mean_norm) + np.array(variance)) ** (1 / 3)
    margins = num_classes * root / root.sum()
    logit = np.mean([-log_softmax(z / c_bar / margins[y])[y] for z, y in zip(logits, labels, strict=True)])
    slack = 0.0 if file == "cifar" else np.mean(variance)
    total = 0.0
    for k in range(num_classes):
        mine = rows_of(k, features, labels)
        if len(mine) > 1:
            sums = [
                sum(np.exp((((a - b) ** 2).sum() - 2 * slack) / (10 * width)) for j, b in enumerate(mine) if i != j)
                for i, a in enumerate(mine)
            ]
            total += np.mean(np.log1p(sums))
    rep = total * width / 10 / num_classes
    return (mean_norm, variance), logit + lam * rep, logit, rep


def gamma(second, c_bar):
    """Eq. (1) / (17) over the classes seen; c̄ for the others."""
    seen = [k for k in range(len(second)) if not np.isnan(second[k])]
    total = sum(second[k] ** (1 / 3) for k in seen)
    return np.array(
        [c_bar * len(seen) * second[k] ** (1 / 3) / total if k in seen else c_bar for k in range(len(second))]
    )


def logit_margin(logits, labels, gamma, log_prior=None, tau=1.0):
    """Mean of −ln softmax(z/γ_y + τ ln π)_y; the paper has no prior."""
    offset = 0.0 if log_prior is None else tau * log_prior
    return np.mean(
        [-log_softmax(z / gamma[y] + offset)[y] for z, y in zip(np.asarray(logits, float), labels, strict=True)]
    )


def representation_margin(features, labels, sbar, temperature=1.0):
    """Eq. (2) on a batch, with a temperature; the constant (T − 1) ln b is subtracted."""
    features = np.asarray(features, dtype=float)
    losses = []
    for i, y in enumerate(labels):
        partners = [j for j in range(len(labels)) if j != i and labels[j] == y]
        excess = [(((features[i] - features[j]) ** 2).sum() - 2 * sbar) / temperature for j in partners]
        value = temperature * np.logaddexp.reduce([0.0, *excess])
        losses.append(value - (temperature - 1) * np.log(1 + len(partners)))
    return np.mean(losses)


def logit_scatter(logits, labels, counts=None):
    """Mean over samples of half the mean squared distance to the other samples of the class, 0 for a single sample.

    With training counts the logit of class c on samples of class y counts by (n_c/n_y)^½, each factor of mean 1 over classes.
    """
    counts = np.ones(logits.shape[1]) if counts is None else np.asarray(counts, dtype=float)
    column, row = (counts**power / (counts**power).mean() for power in (0.5, -0.5))
    total = 0.0
    for i, y in enumerate(labels):
        partners = [j for j, other in enumerate(labels) if other == y and j != i]
        if partners:
            total += row[y] * sum((column * (logits[i] - logits[j]) ** 2).sum() for j in partners) / len(partners) / 2
    return total / len(labels)


def fit(scores, labels, power=4):
    """The share of samples whose own class has the largest score, to a power."""
    return np.mean([row.argmax() == y for row, y in zip(scores, labels, strict=True)]) ** power
