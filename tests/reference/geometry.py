"""Margins, calibration, geometry and bounds, written from their definitions: loops, float64, no thought for speed."""

from __future__ import annotations

import itertools
import math

import numpy as np


def softmax(row):
    weights = [math.exp(v - max(row)) for v in row]
    return [w / sum(weights) for w in weights]


def margins(logits, y_true):
    """Per sample: (output margin, logit margin)."""
    found = []
    for row, y in zip(logits, y_true, strict=True):
        p = softmax(row)
        rivals = [j for j in range(len(row)) if j != y]
        found.append((p[y] - max(p[j] for j in rivals), row[y] - max(row[j] for j in rivals)))
    return np.array(found)


def margins_by_third(logits, y_true, weight):
    """MR² Table 4: mean output margin of all classes and of the thirds by accuracy, and the smallest angle of the weights."""
    output = margins(logits, y_true)[:, 0]
    classes = sorted(set(y_true))
    accuracy = {k: np.mean([np.argmax(z) == k for z, y in zip(logits, y_true, strict=True) if y == k]) for k in classes}
    by_class = {k: np.mean([m for m, y in zip(output, y_true, strict=True) if y == k]) for k in classes}
    ranked = sorted(classes, key=lambda k: -accuracy[k])  # stable: ties by class index
    thirds = [[by_class[k] for k in part] for part in np.array_split(ranked, 3)]
    pairs = itertools.combinations(weight, 2)
    angle = min(math.degrees(math.acos(a @ b / np.linalg.norm(a) / np.linalg.norm(b))) for a, b in pairs)
    return [np.mean(list(by_class.values())), *(np.mean(third) for third in thirds), angle]


def ece(confidence, correct, bins):
    total = 0.0
    for b in range(bins):
        inside = [i for i, c in enumerate(confidence) if b / bins < c <= (b + 1) / bins or (b == 0 and c == 0)]
        if inside:
            gap = np.mean([correct[i] for i in inside]) - np.mean([confidence[i] for i in inside])
            total += len(inside) / len(confidence) * abs(gap)
    return total


def spread(features, ddof=0):
    mean = features.mean(axis=0)
    return math.sqrt(sum(np.sum((f - mean) ** 2) for f in features) / (len(features) - ddof))


def diameter(features):
    return max(np.linalg.norm(a - b) for a in features for b in features)


def fisher(first, second, ridge):
    """Criterion of two classes, maximised over projections: its value at the optimal direction."""
    covariance = np.cov(first.T) + np.cov(second.T)
    covariance = np.atleast_2d(covariance) + ridge * np.trace(np.atleast_2d(covariance)) / first.shape[1] * np.eye(
        first.shape[1]
    )
    gap = first.mean(axis=0) - second.mean(axis=0)
    direction = np.linalg.inv(covariance) @ gap
    return (direction @ gap) ** 2 / (direction @ covariance @ direction)


def neural_collapse(features, y_true, weight, bias):
    """(nc1, cdnv, nc2 norm, nc2 angle, the same of weights, nc3, nc4); all classes present."""
    classes = sorted(set(y_true))
    groups = [features[y_true == k] for k in classes]
    means = np.array([g.mean(axis=0) for g in groups])
    centred = means - means.mean(axis=0)
    within = np.mean([np.cov(g.T, bias=True) for g in groups], axis=0)
    between = centred.T @ centred / len(classes)
    nc1 = np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True)) / len(classes)
    pairs = list(itertools.permutations(range(len(classes)), 2))
    variances = [spread(g) ** 2 for g in groups]
    cdnv = np.mean([(variances[i] + variances[j]) / (2 * np.sum((means[i] - means[j]) ** 2)) for i, j in pairs])
    nc3 = np.sum((weight / np.linalg.norm(weight) - centred / np.linalg.norm(centred)) ** 2)
    nearest = [np.argmin([np.linalg.norm(f - m) for m in means]) for f in features]
    chosen = [np.argmax(weight @ f + bias) for f in features]
    nc4 = np.mean([a != b for a, b in zip(nearest, chosen, strict=True)])
    return (nc1, cdnv, *_simplex(centred, pairs), *_simplex(weight, pairs), nc3, nc4)


def _simplex(vectors, pairs):
    norms = [np.linalg.norm(v) for v in vectors]
    cosines = [vectors[i] @ vectors[j] / norms[i] / norms[j] for i, j in pairs]
    return np.std(norms) / np.mean(norms), np.mean([abs(c + 1 / (len(vectors) - 1)) for c in cosines])


def margin_cross_entropy(logits, y, gamma):
    scaled = logits / gamma[y]
    return -math.log(softmax(scaled)[y])


def mr2_margins(features, y_true, num_classes, c_bar=1.0):
    """MR² eq. 1 on a whole data set: means and mean squared deviations of the features themselves."""
    roots = []
    for k in range(num_classes):
        own = features[y_true == k]
        mean = own.mean(axis=0)
        deviation = sum(np.sum((f - mean) ** 2) for f in own) / len(own)
        roots.append((np.sum(mean**2) + deviation) ** (1 / 3))
    return np.array([c_bar * num_classes * root / sum(roots) for root in roots])


def ramp_loss(logits, y, gamma):
    """MR² eq. 8 and 9: the margin of one sample, then min(1, max(0, 1 - margin / gamma))."""
    margin = logits[y] - max(z for j, z in enumerate(logits) if j != y)
    return min(1.0, max(0.0, 1.0 - margin / gamma[y]))


def hard_representation_margin(features, y_true, num_classes):
    """MR² eq. 3 for every sample: the largest squared distance to another sample of its class beyond 2 s̄, at least 0."""
    squared = [spread(features[y_true == k]) ** 2 for k in range(num_classes) if (y_true == k).any()]
    slack = 2 * sum(squared) / len(squared)
    found = []
    for i, f in enumerate(features):
        partners = [g for j, g in enumerate(features) if j != i and y_true[j] == y_true[i]]
        found.append(max([0.0, *(np.sum((f - g) ** 2) - slack for g in partners)]))
    return np.array(found)


def max_distances(features, y_true):
    """ELM Figure 4: for every sample the largest distance to a sample of its class, over the largest norm of all."""
    largest = max(np.linalg.norm(f) for f in features)
    return np.array(
        [
            max(np.linalg.norm(f - g) for g, k in zip(features, y_true, strict=True) if k == y) / largest
            for f, y in zip(features, y_true, strict=True)
        ]
    )


def rademacher(vectors, p):
    """Expected L_p norm of a random-sign sum, over all signs."""
    norms = [np.linalg.norm(np.array(s) @ vectors, ord=p) for s in itertools.product((-1, 1), repeat=len(vectors))]
    return np.mean(norms)


def pull(features, alpha):
    """ELM's mean pull term of one class."""
    terms = []
    for i, f in enumerate(features):
        others = [np.sum((f - g) ** 2) - alpha for j, g in enumerate(features) if j != i]
        terms.append(math.log(1 + sum(math.exp(v) for v in others)))
    return np.mean(terms)
