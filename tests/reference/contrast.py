"""Supervised, balanced, robust and teacher-key contrasts, with plain loops."""

from __future__ import annotations

import numpy as np

from reference.softmax import cross_entropy, mean


def supcon(embeddings, labels, temperature):
    losses = []
    n = len(labels)
    for i in range(n):
        others = [a for a in range(n) if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        if not positives:
            losses.append(0.0)
            continue
        partition = np.log(sum(np.exp(embeddings[i] @ embeddings[a] / temperature) for a in others))
        losses.append(-mean([embeddings[i] @ embeddings[p] / temperature - partition for p in positives]))
    return losses


def bcl(embeddings, labels, prototypes, temperature):
    members = [*zip(embeddings, labels, strict=True), *((row, k) for k, row in enumerate(prototypes))]
    losses = []
    for i, (x, y) in enumerate(zip(embeddings, labels, strict=True)):
        others = [member for position, member in enumerate(members) if position != i]
        partition = 0.0
        for c in range(len(prototypes)):
            terms = [np.exp(x @ a / temperature) for a, label in others if label == c]
            partition += sum(terms) / len(terms)
        positives = [a for a, label in others if label == y]
        losses.append(-mean([x @ p / temperature - np.log(partition) for p in positives]))
    return losses


def bcl_projection(rows, weights):
    """Linear, BatchNorm with the statistics of the rows, ReLU, linear, unit length."""
    hidden = rows @ weights["first.weight"].T + weights["first.bias"]
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    hidden = np.maximum(hidden * weights["norm.weight"] + weights["norm.bias"], 0)
    out = hidden @ weights["last.weight"].T + weights["last.bias"]
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def dro_lt(features, labels, centroids, epsilon, temperature):
    per_class = []
    for c in sorted(set(labels)):

        def weight(j, c=c):
            distance = np.linalg.norm(centroids[c] - features[j])
            return np.exp(-(distance + epsilon[c] * (labels[j] == c)) / temperature)

        everyone = sum(weight(j) for j in range(len(labels)))
        own = [i for i in range(len(labels)) if labels[i] == c]
        per_class.append(-mean([np.log(weight(i) / everyone) for i in own]))
    return mean(per_class)


def elm_dro_lt(features, labels, centroids, epsilon):
    """Eq. (5) of the ELM paper, averaged over samples."""
    losses = []
    for x, y in zip(features, labels, strict=True):
        own = np.sum((x - centroids[y]) ** 2)
        total = 0.0
        for other, label in zip(features, labels, strict=True):
            total += np.exp(-np.sum((other - centroids[y]) ** 2) + own + epsilon[y] * (label != y))
        losses.append(np.log(total))
    return mean(losses)


def gml_scores(query, keys, key_labels, usable, temperature, num_classes):
    """Log mean exp over the usable keys of each class; nan without one."""
    scores = np.full(num_classes, np.nan)
    for k in range(num_classes):
        terms = [
            np.exp(query @ key / temperature)
            for key, label, ok in zip(keys, key_labels, usable, strict=True)
            if label == k and ok
        ]
        if terms:
            scores[k] = np.log(np.mean(terms))
    return scores


def gml_contrast(queries, labels, keys, key_labels, temperature, prior):
    losses = []
    for q, y in zip(queries, labels, strict=True):
        scores = gml_scores(q, keys, key_labels, [True] * len(keys), temperature, len(prior)) + np.log(prior)
        present = ~np.isnan(scores)
        losses.append(cross_entropy(scores[present], int(present[:y].sum())))
    return mean(losses)
