"""Nested collaborative learning and learning from failure, with plain loops."""

from __future__ import annotations

import itertools

import numpy as np

from reference.softmax import cross_entropy, log_softmax, mean


def distillation(rows):
    total = 0.0
    for i, j in itertools.permutations(range(len(rows)), 2):
        p, q = log_softmax(rows[j]), log_softmax(rows[i])
        total += np.sum(np.exp(p) * (p - q))
    return total / (len(rows) - 1)


def ncl(logits, labels, counts, size, lam):
    prior = np.log(np.array(counts) / np.sum(counts))
    losses = []
    for rows, y in zip(logits, labels, strict=True):
        ranking = [k for k in np.argsort(-rows[0]) if k != y]
        hard = [y, *ranking[: size - 1]]
        full = [row + prior for row in rows]
        few = [(row + prior)[hard] for row in rows]
        alone = sum(cross_entropy(row, y) for row in full) + sum(cross_entropy(row, 0) for row in few)
        losses.append(alone + lam * (distillation(full) + distillation(few)))
    return mean(losses)


def released_distillation(rows):
    """As the release sums it: expert j teaches expert i, with 1e-9 inside the student's logarithm only."""
    total = 0.0
    for i, j in itertools.permutations(range(len(rows)), 2):
        student, teacher = np.exp(log_softmax(rows[i])), np.exp(log_softmax(rows[j]))
        total += np.sum(teacher * (np.log(teacher) - np.log(student + 1e-9)))
    return total / (len(rows) - 1)


def released_ncl(logits, labels, counts, size, lam):
    """Step by step what the release computes: the count is added, then other classes are multiplied by 0."""
    losses = []
    for rows, y in zip(logits, labels, strict=True):
        ranking = [k for k in np.argsort(-rows[0]) if k != y]
        mask = np.zeros(len(counts))
        mask[[y, *ranking[: size - 1]]] = 1.0
        full = [row + np.log(counts) for row in rows]
        few = [row * mask for row in full]
        alone = sum(cross_entropy(row, y) for row in full) + sum(cross_entropy(row, y) for row in few)
        losses.append(alone + lam * (released_distillation(full) + released_distillation(few)))
    return mean(losses)


def dbm_scaled(cosines, label, counts, k_m, scale):
    """A row of scaled cosines with the margin of DBM at its label, as the authors' code has it (last class is the rarest)."""
    margin = k_m * counts[-1] / counts[label]
    if int(np.argmax(cosines)) != label:
        margin = margin * (1 + (1 - cosines[label]) / 2)
    changed = np.array(cosines, dtype=float)
    changed[label] = np.cos(np.arccos(cosines[label]) + margin)
    return scale * changed


class LearningFromFailure:
    """Per-sample running losses in dictionaries."""

    def __init__(self, q, decay):
        self.q, self.decay, self.memory, self.labels = q, decay, ({}, {}), {}

    def __call__(self, logits, labels, index):
        for (biased, final), y, i in zip(logits, labels, index, strict=True):
            self.labels[i] = y
            for memory, row in zip(self.memory, (biased, final), strict=True):
                new = cross_entropy(row, y)
                memory[i] = self.decay * memory[i] + (1 - self.decay) * new if i in memory else new
        losses = []
        for (biased, final), y, i in zip(logits, labels, index, strict=True):
            relative = [m[i] / max(v for j, v in m.items() if self.labels[j] == y) for m in self.memory]
            weight = relative[0] / (sum(relative) + 1e-8)
            p = np.exp(log_softmax(biased)[y])
            losses.append(self.q * p**self.q * cross_entropy(biased, y) + weight * cross_entropy(final, y))
        return mean(losses)


def taught(logits, target, teachers, temperature, alpha):
    """Hinton et al., sec. 2: soft targets are the mean of the teachers' tempered probabilities; T^2 keeps the gradient."""
    total = 0.0
    for i, label in enumerate(target):
        soft = np.mean([np.exp(log_softmax(np.asarray(z[i]) / temperature)) for z in teachers], axis=0)
        total -= alpha * temperature**2 * np.sum(soft * log_softmax(logits[i] / temperature))
        total -= (1 - alpha) * log_softmax(logits[i])[label]
    return total / len(target)
