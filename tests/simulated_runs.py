"""Predictions of simulated runs that share part of their luck, their audits and their comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import classgap
from classgap.measure import Comparison

Y = np.repeat(np.arange(9), 60)
ACCURACY = np.linspace(0.95, 0.5, 9)


def audit(y_true, y_pred, **kwargs):
    return classgap.audit(y_true, y_pred, n_boot=100, **kwargs)


def runs(y_true, accuracy, count, rng, *, agree=0.7, shared=None, seed_spread=0.0):
    """Predictions of ``count`` runs that share part of their luck, sample by sample."""
    shared = rng.random(len(y_true)) if shared is None else shared
    num_classes = len(accuracy)
    for _ in range(count):
        luck = np.where(rng.random(len(y_true)) < agree, shared, rng.random(len(y_true)))
        truth = np.clip(accuracy + seed_spread * rng.standard_normal(num_classes), 0, 1)
        yield np.where(luck < truth[y_true], y_true, (y_true + 1) % num_classes)


def pair(accuracy_after, *, y_true=Y, accuracy=ACCURACY, seed=0, runs_each=1):
    rng = np.random.default_rng(seed)
    shared = rng.random(len(y_true))
    sides = [
        [audit(y_true, p) for p in runs(y_true, a, runs_each, rng, shared=shared)] for a in (accuracy, accuracy_after)
    ]
    return sides[0], sides[1]


def compare(before, after, **kwargs) -> Comparison:
    return classgap.compare(before, after, **{"n_boot": 100, **kwargs})


_TEMPLATE = audit(Y, Y)


def report(y_pred):
    """An audit that carries only what a comparison reads: cheap enough for simulations."""
    return replace(_TEMPLATE, samples=replace(_TEMPLATE.samples, y_pred=y_pred))
