"""Margins on angles, with real angles: SphereFace, CosFace, ArcFace, LDAM, DBM (Table 1 and eq. 5–11 of the DBM paper)."""

from __future__ import annotations

import numpy as np

from reference.reweight import effective_number_weights
from reference.softmax import cross_entropy, mean


def _losses(cosines, target, s, changed, offset=0.0):
    """``changed(row, y)`` is the cosine of the true class after the margin."""
    losses = []
    for row, y in zip(cosines, target, strict=True):
        row = np.array(row, dtype=float)
        value = changed(row, y)
        row[y] = value
        losses.append(cross_entropy(s * row + offset, y))
    return losses


def cosface(cosines, target, m, s):
    return mean(_losses(cosines, target, s, lambda row, y: row[y] - m))


def arcface(cosines, target, m, s):
    def changed(row, y):
        theta = np.arccos(row[y])
        return np.cos(theta + m) if theta + m < np.pi else row[y] - m * np.sin(np.pi - m)

    return mean(_losses(cosines, target, s, changed))


def sphereface(cosines, target, m, s, lam):
    def changed(row, y):
        theta = np.arccos(row[y])
        k = min(int(theta * m / np.pi), m - 1)
        psi = (-1) ** k * np.cos(m * theta) - 2 * k
        return (lam * row[y] + psi) / (1 + lam)

    return mean(_losses(cosines, target, s, changed))


def ldam(cosines, target, counts, max_m, s):
    margins = [max_m * (n / min(counts)) ** -0.25 for n in counts]
    return mean(_losses(cosines, target, s, lambda row, y: row[y] - margins[y]))


def dbm(cosines, target, counts, k_m, tau, s, variant="ce", instance="hard", ref="min", monotone=True, beta=0.9999):
    base = min(counts) if ref == "min" else counts[-1]

    def changed(row, y):
        theta = np.arccos(row[y])
        margin = k_m * (counts[y] / base) ** -tau
        hard = row.argmax() != y
        extra = margin * (1 - row[y]) / 2 if instance == "all" or (instance == "hard" and hard) else 0.0
        angle = theta + margin + extra
        return -2 - np.cos(angle) if monotone and angle > np.pi else np.cos(angle)

    offset = np.log(np.array(counts) / sum(counts)) if variant == "bs" else 0.0
    losses = np.array(_losses(cosines, target, s, changed, offset))
    if variant != "cb":
        return mean(losses)
    weights = effective_number_weights(counts, beta)[np.array(target)]
    return float((weights * losses).sum() / weights.sum())
