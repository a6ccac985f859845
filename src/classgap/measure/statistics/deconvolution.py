"""The distribution of the true class accuracies, with the sampling noise removed, for any shape of that distribution.

Class k has ``correct[k] ~ Binomial(support[k], p_k)``. :func:`fit` finds the distribution of the p_k that makes the counts
most likely, without assuming a shape (the nonparametric maximum-likelihood estimate of Kiefer and Wolfowitz 1956); it is a
small number of atoms. :func:`draw` then draws the K accuracies from their posterior under that distribution, and
:func:`corrected_values` averages any metric over such draws. No interval is made here: how fast the estimate approaches the
truth depends on the shape, which is why :mod:`classgap.measure.statistics.true_intervals` derives intervals that need no shape.

Computed on the distinct pairs ``(support, correct)``, so that 50 000 classes of 50 samples cost no more than 51 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s, Ints
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.metrics import evaluate

_GRID = (
    200  # atoms that may be used, equally spaced in the angle arcsin sqrt(p), plus as many of the observed accuracies
)
_MAX_PAIRS = 2000  # distinct pairs used to fit; more are thinned evenly along the observed accuracy
_MAX_ITERATIONS = 60
_TOLERANCE = 1e-6  # of the log-likelihood of one class
_DRAWN_ENTRIES = 1_000_000
_FEWEST_DRAWS = 20


@dataclass(frozen=True, eq=False)
class Mixture:
    """A discrete distribution of accuracies: ``weight[j]`` of the classes at ``atom[j]``."""

    atom: Float64s
    weight: Float64s


def fit(correct: Ints, support: Ints) -> Mixture:
    """Nonparametric maximum likelihood by the constrained Newton method (Wang 2007): add atoms where the gradient is
    largest, solve for all weights as a non-negative least-squares problem, search along the line, drop atoms of weight 0.
    """
    pairs, count = np.unique(np.stack([support, correct], axis=1), axis=0, return_counts=True)
    pairs, count = _thinned(pairs, count)
    grid = _grid(pairs[:, 1] / pairs[:, 0])
    likelihood = _likelihood(pairs[:, 1], pairs[:, 0], grid)
    share = count / count.sum()
    weight = _start(grid, float(pairs[:, 1] @ count) / float(pairs[:, 0] @ count))
    density = likelihood @ weight
    for _ in range(_MAX_ITERATIONS):
        gradient = (share / density) @ likelihood - 1
        if gradient.max() <= _TOLERANCE:
            break
        used = (weight > 0) | _peaks(gradient)
        proposal = np.zeros_like(weight)
        proposal[used] = _newton_weights(likelihood[:, used] / density[:, None], share)
        weight, density, improved = _line_search(likelihood, share, weight, density, proposal)
        if improved <= _TOLERANCE:
            break
    kept = weight > 1e-9
    return Mixture(grid[kept], weight[kept] / weight[kept].sum())


def draw(mixture: Mixture, correct: Ints, support: Ints, size: int, rng: np.random.Generator) -> Float64s:
    """``(size, K)`` accuracies drawn from the posterior of each class."""
    pairs, place = np.unique(np.stack([support, correct], axis=1), axis=0, return_inverse=True)
    posterior = _likelihood(pairs[:, 1], pairs[:, 0], mixture.atom) * mixture.weight
    cumulative = np.cumsum(posterior, axis=1)
    cumulative = cumulative / cumulative[:, -1:]
    uniform = np.ascontiguousarray(rng.random((size, len(support))).T)
    rows = zip(cumulative[place.reshape(-1), :-1], uniform, strict=True)
    return np.asarray(mixture.atom[np.stack([np.searchsorted(bounds, row) for bounds, row in rows], axis=1)])


def expected_accuracy(mixture: Mixture, correct: Ints, support: Ints) -> Float64s:
    """Posterior mean accuracy of each class."""
    posterior = _likelihood(correct, support, mixture.atom) * mixture.weight
    return np.asarray(posterior @ mixture.atom / posterior.sum(1))


def corrected_values(
    correct: Ints,
    support: Ints,
    names: tuple[str, ...],
    *,
    draws: int,
    rng: np.random.Generator,
    remainder: Remainder = "first",
) -> Float64s:
    """Posterior means of the named metrics of the true accuracies; absent classes must have been left out."""
    mixture = fit(correct, support)
    size = int(np.clip(_DRAWN_ENTRIES // len(support), min(_FEWEST_DRAWS, draws), draws))
    accuracy = draw(mixture, correct, support, size, rng)
    return np.asarray(evaluate(accuracy, names, remainder=remainder).mean(0))


def _thinned(pairs: Ints, count: Ints) -> tuple[Ints, Ints]:
    """At most :data:`_MAX_PAIRS` rows: consecutive ones, ordered by accuracy, are represented by one with all their count."""
    if len(pairs) <= _MAX_PAIRS:
        return pairs, count
    order = np.argsort(pairs[:, 1] / pairs[:, 0], kind="stable")
    starts = np.unique(np.linspace(0, len(pairs), _MAX_PAIRS, endpoint=False).astype(np.int64))
    ends = np.append(starts[1:], len(pairs))
    middle = order[(starts + ends - 1) // 2]
    middle[0], middle[-1] = order[0], order[-1]  # the extremes matter most
    return pairs[middle], np.add.reduceat(count[order], starts)


def _grid(share: Float64s) -> Float64s:
    """Possible atoms. The maximum-likelihood distribution has none outside the observed range."""
    low, high = np.arcsin(np.sqrt([share.min(), share.max()]))
    even = np.sin(np.linspace(low, high, _GRID)) ** 2
    seen = share
    if len(share) > _GRID:
        seen = np.quantile(share, np.linspace(0, 1, _GRID), method="nearest")
    return np.unique(np.clip(np.concatenate([even, seen]), share.min(), share.max()))


def _likelihood(correct: Ints, support: Ints, atom: Float64s) -> Float64s:
    """``(rows, atoms)`` binomial likelihoods, each row scaled to a maximum near 1."""
    from scipy.special import xlog1py, xlogy

    wrong = support - correct
    share = correct / support
    best = xlogy(correct, share) + xlog1py(wrong, -share)
    logs = xlogy(correct[:, None], atom) + xlog1py(wrong[:, None], -atom)
    return np.asarray(np.exp(np.maximum(logs - best[:, None], -700)))


def _start(grid: Float64s, mean: float) -> Float64s:
    """A first distribution under which every count is possible: half spread out, half at the mean."""
    weight = np.full(len(grid), 0.5 / len(grid))
    weight[np.abs(grid - mean).argmin()] += 0.5
    return weight


def _peaks(gradient: Float64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Local maxima above 0."""
    padded = np.concatenate([[-np.inf], gradient, [-np.inf]])
    return (gradient > 0) & (gradient >= padded[:-2]) & (gradient >= padded[2:])


def _newton_weights(ratio: Float64s, share: Float64s) -> Float64s:
    """Weights that maximise the second-order expansion of the log-likelihood around the present ones."""
    from scipy.optimize import nnls

    root = np.sqrt(share)[:, None]
    # One more row, with a large factor, asks the weights to sum to 1; they are scaled to it afterwards.
    scale = 1e3
    matrix = np.vstack([root * ratio, np.full((1, ratio.shape[1]), scale)])
    target = np.append(2 * root[:, 0], scale)
    # The normal equations keep the problem as small as the number of atoms.
    gram = matrix.T @ matrix
    ridge = 1e-10 * np.trace(gram) / len(gram)
    factor = np.linalg.cholesky(gram + ridge * np.eye(len(gram)))
    solution = nnls(factor.T, np.linalg.solve(factor, matrix.T @ target))[0]
    return np.asarray(solution / solution.sum())


def _line_search(
    likelihood: Float64s, share: Float64s, weight: Float64s, density: Float64s, proposal: Float64s
) -> tuple[Float64s, Float64s, float]:
    """The step that halves until the log-likelihood rises; with the new density and the rise."""
    proposed = likelihood @ proposal
    before = share @ np.log(density)
    step = 1.0
    for _ in range(30):
        candidate = density + step * (proposed - density)
        if candidate.min() > 0 and (rise := float(share @ np.log(candidate) - before)) > 0:
            return weight + step * (proposal - weight), candidate, rise
        step /= 2
    return weight, density, 0.0
