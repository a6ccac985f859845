"""Slow and obvious versions of the measuring core, written from the definitions."""

from __future__ import annotations

import math
import random

import numpy as np


def class_accuracies(y_true, y_pred, num_classes):
    """Share of right predictions of each class; None where it has no samples."""
    result = []
    for k in range(num_classes):
        hits = [p == k for t, p in zip(y_true, y_pred, strict=True) if t == k]
        result.append(sum(hits) / len(hits) if hits else None)
    return result


def thirds(accuracies, remainder="first"):
    """Lists of class indices: easy, medium, hard."""
    order = sorted((k for k, a in enumerate(accuracies) if a is not None), key=lambda k: (-accuracies[k], k))
    if len(order) == 2:
        return [order[:1], [], order[1:]]
    if len(order) == 1:
        return [order, [], []]
    sizes = [len(order) // 3] * 3
    for extra in range(len(order) % 3):
        sizes[extra if remainder == "first" else 2 - extra] += 1
    groups, start = [], 0
    for size in sizes:
        groups.append(order[start : start + size])
        start += size
    return groups


def mean(values):
    return sum(values) / len(values) if values else math.nan


def metrics(accuracies, remainder="first"):
    """All metrics of class accuracies (None entries skipped)."""
    values = [a for a in accuracies if a is not None]
    easy, medium, hard = (mean([accuracies[k] for k in g]) for g in thirds(accuracies, remainder))
    average = mean(values)
    lowest = sorted(values)[: max(1, round(len(values) / 10))]
    differences = sum(abs(a - b) for a in values for b in values)
    return {
        "balanced": average,
        "easy": easy,
        "medium": medium,
        "hard": hard,
        "worst": min(values),
        "worst_decile": mean(lowest),
        "gap": max(values) - min(values),
        "std": math.sqrt(mean([(a - average) ** 2 for a in values])),
        "gini": differences / (2 * len(values) ** 2 * average) if average else 0.0,
        "harmonic_mean": 0.0 if min(values) == 0 else len(values) / sum(1 / a for a in values),
        "geometric_mean": math.prod(values) ** (1 / len(values)),
    }


def wilson(hits, size, z):
    """All p with |hits/size - p| <= z * sqrt(p (1 - p) / size), its ends found by bisection."""
    share = hits / size

    def inside(p):
        return abs(share - p) <= z * math.sqrt(p * (1 - p) / size)

    def edge(outside, within):
        for _ in range(100):
            middle = (outside + within) / 2
            outside, within = (outside, middle) if inside(middle) else (middle, within)
        return within

    return (share if share == 0 else edge(0.0, share)), (share if share == 1 else edge(1.0, share))


def mcnemar_mid_p(gained, lost):
    """Twice the chance of a table as lopsided or more, the observed one at half its weight."""
    total, fewer = gained + lost, min(gained, lost)
    if gained == lost:
        return 1.0
    chance = [math.comb(total, i) / 2**total for i in range(total + 1)]
    return 2 * (sum(chance[:fewer]) + chance[fewer] / 2)


def benjamini_hochberg(p_values, level):
    """Which hypotheses the step-up procedure rejects at this level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    last = -1
    for rank, i in enumerate(order, start=1):
        if p_values[i] <= level * rank / len(p_values):
            last = rank
    rejected = set(order[:last]) if last > 0 else set()
    return [i in rejected for i in range(len(p_values))]


def cross_fitted_thirds(y_true, right, num_classes, *, splits, seed):
    """Split the rows themselves, rank on one half, score on the other."""
    rng = random.Random(seed)
    found = [[], [], []]
    for _ in range(splits):
        halves = [], []
        for row in range(len(y_true)):
            halves[rng.random() < 0.5].append(row)
        for ranking, scoring in (halves, halves[::-1]):

            def accuracies(rows):
                by_class = [[right[r] for r in rows if y_true[r] == k] for k in range(num_classes)]
                return [mean(hits) if hits else None for hits in by_class]

            scored = accuracies(scoring)
            for group, members in enumerate(thirds(accuracies(ranking))):
                values = [scored[k] for k in members if scored[k] is not None]
                if values:
                    found[group].append(mean(values))
    return [mean(values) for values in found]


def mixture_log_likelihood(correct, support, *, steps):
    """Mean log-likelihood of binomial counts under the best distribution of accuracies on a grid, by plain EM."""
    grid = np.linspace(0, 1, 201)
    chance = np.array([grid**x * (1 - grid) ** (n - x) for x, n in zip(correct, support, strict=True)])
    weight = np.full(201, 1 / 201)
    for _ in range(steps):
        weight = weight * (chance / (chance @ weight)[:, None]).mean(0)
    return np.log(chance @ weight).mean()
