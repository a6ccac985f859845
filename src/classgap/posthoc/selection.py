"""Choice of a method on samples that were not used to fit it: stratified folds, cross-fitting and selection rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from classgap.checks import InputError, one_of, whole
from classgap.posthoc.held_out import Array, HeldOut

if TYPE_CHECKING:
    from classgap.measure import AuditReport, Comparison

Rule = Callable[[Mapping[str, "Comparison"], str], str | None]
DEFAULT_RULE = "hard_if_overall_holds"


def fold_numbers(y: Array, num_folds: int, seed: int) -> Array:
    """Fold of each sample. Every class is spread over the folds as evenly as possible, even with fewer samples than folds."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    counts = np.bincount(y)
    rank = np.arange(len(y)) - (np.cumsum(counts) - counts)[y[order]]
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = (rank + rng.integers(num_folds, size=len(counts))[y[order]]) % num_folds
    return fold


def splits(held_out: HeldOut, num_folds: int, seed: int) -> Iterator[tuple[HeldOut, Array]]:
    """For each fold: the samples of all other folds, to fit on, and the rows of this fold."""
    fold = fold_numbers(held_out.y, num_folds, seed)
    for k in range(num_folds):
        rows = np.flatnonzero(fold == k)
        if len(rows):
            yield held_out.take(np.flatnonzero(fold != k)), rows


def compare_predictions(
    y: Array,
    before: Array,
    after: Mapping[str, Array],
    classes: Sequence[str],
    *,
    seed: int = 0,
    precise: str | None = None,
) -> dict[str, Comparison]:
    """Paired comparison of each prediction in ``after`` with ``before``, for the same samples.

    Args:
        y, before, after: Class indices.
        precise: Name of the prediction whose intervals use as many draws as those of :func:`classgap.compare`.
    """
    from classgap.measure import audit, compare

    def measured(predicted: Array, draws: int) -> AuditReport:
        return audit(y, predicted, class_names=classes, seed=seed, n_boot=draws)

    reference = {draws: measured(before, draws) for draws in {200, 200 if precise is None else 1000}}
    compared = {}
    for name, predicted in after.items():
        draws = 1000 if name == precise else 200
        compared[name] = compare(reference[draws], measured(predicted, draws), seed=seed, n_boot=draws)
    return compared


def _best(candidates: Mapping[str, Comparison], metric: str) -> str | None:
    return max(candidates, key=lambda name: candidates[name].metrics[metric].delta.value, default=None)


def _hard_if_overall_holds(candidates: Mapping[str, Comparison], overall: str) -> str | None:
    return _best({n: c for n, c in candidates.items() if c.metrics[overall].delta.high >= 0}, "hard")


def _hard_if_overall_gains(candidates: Mapping[str, Comparison], overall: str) -> str | None:
    return _best({n: c for n, c in candidates.items() if c.metrics[overall].delta.value >= 0}, "hard")


RULES: Mapping[str, tuple[Rule, str]] = {
    DEFAULT_RULE: (
        _hard_if_overall_holds,
        "largest gain of the hard third, if overall accuracy is not significantly worse",
    ),
    "hard_if_overall_gains": (
        _hard_if_overall_gains,
        "largest gain of the hard third, if overall accuracy is not lower",
    ),
    "best_hard": (lambda candidates, overall: _best(candidates, "hard"), "largest gain of the hard third"),
    "best_overall": (lambda candidates, overall: _best(candidates, overall), "largest gain of the overall accuracy"),
}


def choose(candidates: Mapping[str, Comparison], rule: str = DEFAULT_RULE, overall: str = "balanced") -> str | None:
    """Name of the candidate that ``rule`` chooses; None if the rule admits none.

    Args:
        candidates: Comparison of each candidate with the uncorrected model, on samples that were not used to fit it.
        overall: What the rule means by overall accuracy: ``"balanced"`` is the mean over classes, ``"overall"`` over samples.
    """
    one_of("rule", rule, RULES)
    one_of("overall", overall, ("balanced", "overall"))
    return RULES[rule][0](candidates, overall)


def rejection(candidates: Mapping[str, Comparison], label: str, rule: str, overall: str) -> str:
    """Why ``rule`` did not choose the candidate ``label``, as a sentence."""
    delta = candidates[label].metrics[overall].delta
    words = "balanced accuracy" if overall == "balanced" else "overall accuracy"
    if choose({label: candidates[label]}, rule, overall) is None:
        how = "significantly lower" if delta.high < 0 else "lower"
        return f"its {words} is {how} in cross-fitting ({100 * delta.value:+.1f} points), which {rule} does not allow"
    wanted = words if rule == "best_overall" else "accuracy of the hard third"
    return f"another method has a larger gain of the {wanted} in cross-fitting"


def need_samples(held_out: HeldOut, num_folds: int, what: str) -> None:
    """Reject cross-fitting on too few samples, and a number of folds that is none."""
    whole("folds", num_folds, low=2)
    if len(held_out.y) < 2 * num_folds or (held_out.support > 1).sum() < 2:
        raise InputError(
            f"{what} chooses by {num_folds}-fold cross-fitting and needs at least {2 * num_folds} samples, and two classes with "
            f"at least two samples, got {len(held_out.y)} samples; pass more samples, or set all parameters"
        )
