"""Group DRO (Sagawa et al. 2020, algorithm 1) and the χ² ball of FairDRO (Jung et al. 2023), with classes as groups."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from reference.softmax import cross_entropy


def class_means(logits, target, classes):
    """Mean cross-entropy of each class in the batch; nan for an absent one."""
    result = []
    for k in range(classes):
        own = [cross_entropy(row, y) for row, y in zip(logits, target, strict=True) if y == k]
        result.append(sum(own) / len(own) if own else np.nan)
    return np.array(result)


def group_dro_step(q, logits, target, eta, strict, adjustment=None):
    """New weights and the loss of one batch. Strict: an absent class counts as loss 0; else it keeps its weight."""
    means = class_means(logits, target, len(q))
    present = ~np.isnan(means)
    losses = np.where(present, means, 0.0)
    raised = q * np.exp(eta * (losses if adjustment is None else losses + adjustment))
    if strict:
        q = raised / raised.sum()
        return q, (q * losses).sum()
    q = np.where(present, raised * q[present].sum() / raised[present].sum(), q)
    return q, (q * losses).sum() / q[present].sum()


def chi_square_weights(losses, rho, project):
    """The maximiser, by a general solver."""
    losses = np.asarray(losses, dtype=float)
    classes = len(losses)
    constraints = [
        {"type": "eq", "fun": lambda q: q.sum() - 1},
        {"type": "ineq", "fun": lambda q: 2 * rho / classes - ((q - 1 / classes) ** 2).sum()},
    ]
    bounds = [(0, None)] * classes if project else None
    options = {"maxiter": 1000, "ftol": 1e-14}
    start = np.full(classes, 1 / classes) + 1e-3 * (losses - losses.mean())
    found = minimize(
        lambda q: -q @ losses, start, bounds=bounds, constraints=constraints, method="SLSQP", options=options
    )
    return found.x
