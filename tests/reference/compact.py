"""Center, range, spread-out and Gaussian-mixture losses, written from the papers with plain loops."""

from __future__ import annotations

import itertools

import numpy as np

from reference.softmax import cross_entropy, mean


def squeeze(logits, features, labels, weight, of):
    return mean(
        [
            cross_entropy(z, y) + weight * sum(v**2 for v in (x if of == "features" else z))
            for z, x, y in zip(logits, features, labels, strict=True)
        ]
    )


def center(features, labels, centers):
    return mean([0.5 * np.sum((x - centers[y]) ** 2) for x, y in zip(features, labels, strict=True)])


def move_centers(features, labels, centers, seen, rate):
    """c_k ← c_k − α Σ (c_k − φ_i) / (1 + b_k); a class met for the first time takes the mean of its samples."""
    moved = centers.copy()
    for k in set(labels):
        members = [x for x, y in zip(features, labels, strict=True) if y == k]
        if seen[k]:
            moved[k] = centers[k] - rate * sum(centers[k] - x for x in members) / (1 + len(members))
        else:
            moved[k] = np.mean(members, axis=0)
    return moved


def range_intra(features, labels, k):
    total = 0.0
    for c in sorted(set(labels)):
        members = [x for x, y in zip(features, labels, strict=True) if y == c]
        distances = sorted((np.sum((a - b) ** 2) for a, b in itertools.combinations(members, 2)), reverse=True)[:k]
        if distances:
            total += len(distances) / sum(1 / d for d in distances)
    return total


def range_inter(features, labels, margin):
    centres = [np.mean([x for x, y in zip(features, labels, strict=True) if y == c], axis=0) for c in set(labels)]
    if len(centres) < 2:
        return 0.0
    nearest = min(0.5 * np.sum((a - b) ** 2) for a, b in itertools.combinations(centres, 2))
    return max(0.0, margin - nearest)


def spreadout(features, labels, pairs):
    unit = [x / np.linalg.norm(x) for x in features]
    dots = [
        unit[i] @ unit[j]
        for i, j in itertools.permutations(range(len(unit)), 2)
        if pairs == "all" or labels[i] != labels[j]
    ]
    if not dots:
        return 0.0
    return np.mean(dots) ** 2 + max(0.0, np.mean(np.square(dots)) - 1 / features.shape[1])


def gaussian_mixture(features, labels, means, alpha, lam):
    losses = []
    for x, y in zip(features, labels, strict=True):
        distances = np.array([0.5 * np.sum((x - m) ** 2) for m in means])
        scores = -distances
        scores[y] = -distances[y] * (1 + alpha)
        losses.append(cross_entropy(scores, y) + lam * distances[y])
    return mean(losses)
