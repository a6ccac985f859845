"""MR², slow and obvious, in NumPy, written from the paper; the oracle for ``classgap.losses`` and ``classgap.stats``."""

from __future__ import annotations

import numpy as np


def log_softmax(z):
    z = np.asarray(z, dtype=float)
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def running_moments(steps, num_classes, p=2.0, decay=0.9):
    """State after a list of (features, labels) batches.

    Every sample carries a weight: 1 when it arrives, times ``decay`` at each later appearance of its class. Returns, per
    class, the weighted mean of ‖φ‖_p² and the spread estimators of the four kinds (nan where undefined), and the pooled one.
    """
    norms = [[] for _ in range(num_classes)]  # (weight, value)
    weighted = [[] for _ in range(num_classes)]  # (weight, feature)
    within = [[] for _ in range(num_classes)]  # (weight, sum of squares, samples)
    pooled = []
    for features, labels in steps:
        step_scatter, step_freedom = 0.0, 0
        for k in range(num_classes):
            mine = np.asarray([f for f, y in zip(features, labels, strict=True) if y == k], dtype=float)
            if len(mine) == 0:
                continue
            norms[k] = [(w * decay, v) for w, v in norms[k]] + [(1.0, np.linalg.norm(f, ord=p) ** 2) for f in mine]
            weighted[k] = [(w * decay, f) for w, f in weighted[k]] + [(1.0, f) for f in mine]
            scatter = sum(((f - mine.mean(0)) ** 2).sum() for f in mine)
            within[k] = [(w * decay, s, n) for w, s, n in within[k]] + [(1.0, scatter, len(mine))]
            step_scatter += scatter
            step_freedom += len(mine) - 1
        pooled = [(w * decay, s, n) for w, s, n in pooled] + [(1.0, step_scatter, step_freedom)]

    def quotient(a, b):
        return a / b if b > 0 else np.nan

    second = [quotient(sum(w * v for w, v in rows), sum(w for w, _ in rows)) for rows in norms]
    pooled_spread = quotient(sum(w * s for w, s, _ in pooled), sum(w * n for w, _, n in pooled))
    ratio, batch, moments = [], [], []
    for k in range(num_classes):
        scatter = sum(w * s for w, s, _ in within[k])
        freedom = sum(w * (n - 1) for w, _, n in within[k])
        ratio.append(np.nan if not within[k] else (scatter / freedom if freedom > 0 else pooled_spread))
        batch.append(quotient(sum(w * s / n for w, s, n in within[k]), sum(w for w, _, _ in within[k])))
        moments.append(_weighted_variance(weighted[k]))
    spreads = {
        "pooled": [pooled_spread if w else np.nan for w in within],
        "ratio": ratio,
        "batch": batch,
        "moments": moments,
    }
    return np.array(second), {name: np.array(values) for name, values in spreads.items()}


def _weighted_variance(rows):
    """Unbiased variance of independent samples with the given weights."""
    if not rows:
        return np.nan
    w = np.array([weight for weight, _ in rows])
    x = np.array([feature for _, feature in rows])
    mean = (w[:, None] * x).sum(0) / w.sum()
    correction = 1 - (w**2).sum() / w.sum() ** 2
    if correction < 1e-9:
        return np.nan
    return (w * ((x - mean) ** 2).sum(1)).sum() / w.sum() / correction


def gamma(second, c_bar):
    """Eq. (1) / (17) over the classes seen; c̄ for the others."""
    seen = [k for k in range(len(second)) if not np.isnan(second[k])]
    total = sum(second[k] ** (1 / 3) for k in seen)
    return np.array(
        [c_bar * len(seen) * second[k] ** (1 / 3) / total if k in seen else c_bar for k in range(len(second))]
    )


def logit_margin(logits, labels, gamma, log_prior=None, tau=1.0, adjust="outside"):
    """Mean of −ln softmax(z/γ_y)_y, with the prior outside or inside the division."""
    losses = []
    for z, y in zip(np.asarray(logits, dtype=float), labels, strict=True):
        if log_prior is None or adjust == "posthoc":
            row = z / gamma[y]
        elif adjust == "outside":
            row = z / gamma[y] + tau * log_prior
        else:
            row = (z + tau * log_prior) / gamma[y]
        losses.append(-log_softmax(row)[y])
    return np.mean(losses)


def representation_margin(
    features, labels, sbar, form="paper", pair="sum", num_classes=None, kappa=0.5, running_total=None
):
    """Eq. (2) on a batch, in the paper's, the release's and the scale-free scaling."""
    features = np.asarray(features, dtype=float)
    width = features.shape[1]
    total = ((features - features.mean(0)) ** 2).sum(1).mean()
    unit = {"paper": 1.0, "release": 10.0 * width, "scale_free": 2 * total * kappa}[form]
    slack = 2 * sbar / unit
    if running_total is not None and form == "scale_free":
        slack = sbar / (running_total * kappa)
    losses = []
    for i, y in enumerate(labels):
        partners = [j for j in range(len(labels)) if j != i and labels[j] == y]
        excess = [((features[i] - features[j]) ** 2).sum() / unit - slack for j in partners]
        if not partners:
            losses.append(0.0)
        elif pair == "pairwise":
            losses.append(np.mean([np.logaddexp(0.0, a) for a in excess]))
        else:
            shift = np.log(len(partners)) if pair == "mean" else 0.0
            losses.append(np.logaddexp.reduce([0.0, *[a - shift for a in excess]]))
    if form == "paper":
        return np.mean(losses)
    if form == "scale_free":
        return kappa * np.mean(losses)
    per_class = [np.mean([v for v, y in zip(losses, labels, strict=True) if y == k]) for k in set(labels)]
    return width / 10 * sum(per_class) / num_classes


def logit_scatter(logits, labels, counts=None):
    """Mean over samples of half the mean squared distance to the others of the class, 0 for one without any.

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


def fit(scores, labels):
    """Fourth power of the share of samples whose own class has the largest score."""
    return np.mean([row.argmax() == y for row, y in zip(scores, labels, strict=True)]) ** 4
