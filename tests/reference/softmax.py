"""What all references share."""

from __future__ import annotations

import numpy as np


def log_softmax(row):
    row = np.asarray(row, dtype=float)
    top = row.max()
    return row - top - np.log(np.exp(row - top).sum())


def cross_entropy(row, label):
    return -log_softmax(row)[label]


def mean(values):
    return float(np.sum(values) / len(values))
