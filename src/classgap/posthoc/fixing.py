"""Fit every applicable method, choose one by a named rule, and measure it on samples that no choice has seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from classgap import registry
from classgap.checks import number
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.gap_dial import STRENGTHS, GapDial
from classgap.posthoc.held_out import Array, Evidence
from classgap.posthoc.selection import (
    DEFAULT_RULE,
    choose,
    compare_predictions,
    fold_numbers,
    need_samples,
    rejection,
    splits,
)

if TYPE_CHECKING:
    from classgap.measure import Comparison

Progress = Callable[[int, int], None]

# Settings tried beside each method's defaults; the rule chooses among all of them by cross-fitting.
_VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "marc": ({}, {"ridge": 0.1}, {"ridge": 1.0}),  # the first has no ridge, as in the paper
    "logit_adjustment": ({"tau": 1.0}, {"tau": None}),
    "crt": ({"weight_decay": 1e-2}, {"weight_decay": 1e-3}),
    "gap_dial": tuple({"strength": s, "ridge": 1.0} for s in STRENGTHS),
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """One method with one setting.

    Attributes:
        method: Fitted on the fitting part.
        selection: Cross-fitted comparison with the uncorrected scores on the fitting part; what the rule sees.
        report: Comparison on the report part, which had no say in anything.
    """

    label: str
    method: PostHocMethod
    selection: Comparison
    report: Comparison


@dataclass(frozen=True, eq=False)
class Repair:
    """What :func:`repair` found.

    Attributes:
        candidates: All that were fitted, by label.
        skipped: Methods that could not be tried, with the reason.
        chosen: Label the rule picked, or None.
        helps: Whether the verdict of ``compare`` on the report part is an improvement (:data:`HELPFUL`).
        overall: What the rule calls overall: ``"balanced"`` or ``"overall"`` accuracy.
        report_rows: Samples of the report part.
    """

    candidates: Mapping[str, Candidate]
    skipped: Mapping[str, str]
    chosen: str | None
    helps: bool
    rule: str
    report_rows: Array
    overall: str = "balanced"

    @property
    def rejected(self) -> dict[str, str]:
        """Candidates whose verdict on the report part is an improvement but that were not chosen, each with the reason."""
        return {
            label: rejection({n: c.selection for n, c in self.candidates.items()}, label, self.rule, self.overall)
            for label, candidate in self.candidates.items()
            if label != self.chosen and candidate.report.verdict.kind in HELPFUL
        }

    @property
    def frontier(self) -> list[tuple[float, Candidate]]:
        """The gap dial's strengths in order."""
        dials = [(c.method.strength_, c) for c in self.candidates.values() if isinstance(c.method, GapDial)]
        return sorted(dials, key=lambda pair: pair[0])


def repair(
    evidence: Evidence,
    *,
    rule: str = DEFAULT_RULE,
    overall: str = "balanced",
    report_share: float = 1 / 3,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> Repair:
    """Split, fit, choose, report.

    A stratified ``report_share`` of the samples (one half, a third, a quarter, …) is set aside. On the rest every method is
    cross-fitted, the rule chooses from those comparisons, and all are fitted once more. Only then is each measured on the
    samples set aside.
    """
    number("report_share", report_share, low=0.05, high=0.5)
    choose({}, rule, overall)  # a name that does not exist is an error before any work
    set_aside = fold_numbers(evidence.y, round(1 / report_share), seed) == 0
    fitting, reporting = evidence.take(np.flatnonzero(~set_aside)), evidence.take(np.flatnonzero(set_aside))
    need_samples(fitting, folds, "fix")
    wanted, skipped = applicable(evidence)
    ticks, steps = count(1), len(wanted) * (folds + 1)

    def tick() -> None:
        if progress is not None:
            progress(next(ticks), steps)

    crossed = {label: fitting.logits.argmax(axis=1) for label in wanted}
    for part, rows in splits(fitting, folds, seed + 1):
        for label, method in _fit_all(wanted, part, tick).items():
            crossed[label][rows] = _predict(method, fitting, rows)
    fitted = _fit_all(wanted, fitting, tick)
    selection = _compare(fitting, crossed, seed)
    chosen = choose(selection, rule, overall)
    report = _compare(reporting, {n: _predict(m, reporting, slice(None)) for n, m in fitted.items()}, seed)
    order = sorted(fitted, key=lambda n: (n != chosen, -selection[n].metrics["hard"].delta.value))
    candidates = {n: Candidate(n, fitted[n], selection[n], report[n]) for n in order}
    helps = _helps(candidates, chosen)
    return Repair(candidates, skipped, chosen, helps, rule, np.flatnonzero(set_aside), overall)


def applicable(evidence: Evidence) -> tuple[dict[str, PostHocMethod], dict[str, str]]:
    """Every declared method (with its variants) that this evidence allows, and why the others are left out."""
    wanted: dict[str, PostHocMethod] = {}
    skipped: dict[str, str] = {}
    for declared in registry.methods("posthoc"):
        needs_features: bool = declared.cls.uses_features  # type: ignore[attr-defined]
        if needs_features and evidence.features is None:
            skipped[declared.name] = "needs features"
        elif declared.name == "tau_norm" and evidence.weight_norms is None:
            skipped[declared.name] = "needs the head's weight"
        elif declared.name == "tau_norm" and _one_length(evidence):
            skipped[declared.name] = "the rows of the head are equally long, as in a cosine head"
        elif declared.name == "logit_adjustment" and len(np.unique(evidence.class_counts)) == 1:
            skipped[declared.name] = "the training classes are equally frequent"
        else:
            for settings in _VARIANTS.get(declared.name, ({},)):
                wanted[_label(declared.name, settings)] = declared.build(**settings)
    return wanted, skipped


def _one_length(evidence: Evidence) -> bool:
    """Whether dividing the rows of the head by their norms changes nothing, and there is no bias to drop."""
    norms = evidence.weight_norms
    unbiased = evidence.bias is None or not np.any(evidence.bias)
    return unbiased and norms is not None and bool(np.ptp(norms) <= 1e-4 * norms.max())


def _label(name: str, settings: Mapping[str, Any]) -> str:
    """``gap_dial(2)``, ``marc(ridge 1)``, ``crt``: short, and telling variants apart."""
    if not settings:
        return name
    key, value = next(iter(settings.items()))
    shown = "tuned" if value is None else f"{value:g}"
    return f"{name}({shown})" if key in ("strength", "tau") else f"{name}({key.replace('_', ' ')} {shown})"


def _fit_all(
    methods: Mapping[str, PostHocMethod], evidence: Evidence, tick: Callable[[], None]
) -> dict[str, PostHocMethod]:
    """Every method on the same samples, as many at a time as there are cores; ``tick`` after each."""
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {label: pool.submit(_fit, method, evidence) for label, method in methods.items()}
        for _ in as_completed(running.values()):
            tick()
    return {label: fit.result() for label, fit in running.items()}


def _fit(method: PostHocMethod, evidence: Evidence) -> PostHocMethod:
    fitted: PostHocMethod = clone(method).fit(
        evidence.scores,
        evidence.y,
        class_counts=evidence.class_counts,
        weight_norms=evidence.weight_norms,
        bias=evidence.bias,
        features=evidence.features,
        classes=np.arange(evidence.num_classes),
    )
    return fitted


def _predict(method: PostHocMethod, evidence: Evidence, rows: Any) -> Array:
    features = None if evidence.features is None else evidence.features[rows]
    return method.predict(evidence.logits[rows], features=features)


def _compare(evidence: Evidence, after: Mapping[str, Array], seed: int) -> dict[str, Comparison]:
    return compare_predictions(evidence.y, evidence.logits.argmax(axis=1), after, evidence.num_classes, seed=seed)


# Verdicts of ``compare`` on the report part that count as help: the hard classes or the overall accuracy gained.
HELPFUL = ("closed", "better", "better_hard", "traded", "likely_hard", "not_hard")


def _helps(candidates: Mapping[str, Candidate], chosen: str | None) -> bool:
    return chosen is not None and candidates[chosen].report.verdict.kind in HELPFUL
