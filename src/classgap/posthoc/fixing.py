"""``fix``: fit every applicable method, choose one by a rule, and measure it on samples that were set aside."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from classgap import registry
from classgap.checks import InputError, label_vector, number, whole
from classgap.posthoc.costs import RULE, cost_methods, measure_costs
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.lowest_cost import check_cost
from classgap.posthoc.fix_report import Candidate, FixReport
from classgap.posthoc.held_out import Array, HeldOut, as_logits
from classgap.posthoc.selection import DEFAULT_RULE, choose, compare_predictions, fold_numbers, need_samples, splits
from classgap.predictions import Predictions
from classgap.predictions.predictions import Counts, Progress, as_predictions
from classgap.predictions.side_files import cost_in_order

if TYPE_CHECKING:
    from classgap.measure import Comparison


def fix(
    data: Any,
    *,
    scores: ArrayLike | None = None,
    scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
    features: ArrayLike | None = None,
    head: Any = None,
    class_names: Sequence[str] | None = None,
    train_counts: Counts | None = None,
    rule: str = DEFAULT_RULE,
    cost: ArrayLike | Mapping[str, Mapping[str, float]] | None = None,
    overall: str = "balanced",
    report_share: float = 1 / 3,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> FixReport:
    """Reduce the gap of a trained model without training it again.

    A stratified share ``report_share`` of the samples (1/2, 1/3, 1/4, …) is set aside. On the other samples, every post-hoc
    method is cross-fitted, the rule chooses one by these comparisons, and all methods are fitted again. Then each method is
    measured on the samples set aside.

    Args:
        data: Samples that the model was **not** trained on, with scores, or with features and a head: predictions, the path of a
            prediction file, a table, or true labels together with ``scores``. ``predict`` of the fitted methods gives class
            names; numbers or booleans if the labels are these and there are no ``class_names``.
        scores: ``(n, K)`` logits or probabilities, columns in class order.
        scores_kind: Kind of the scores. ``"auto"``: logits if a value lies outside [0, 1] (± 0.001), otherwise probabilities.
        features: ``(n, d)`` inputs of the last layer; some methods need them.
        head: The last layer: its weight ``(K, d)``, a pair ``(weight, bias)``, or an object with both.
        class_names: Names in class order.
        train_counts: Numbers of training samples per class, in class order or by name; by default the label counts of ``data``.
        rule: Name of the rule that chooses the method, one of :data:`classgap.posthoc.RULES`.
        cost: ``(K, K)`` costs of errors in class order, or by name ``{true: {predicted: cost}}``: instead of the rule, the lowest
            mean cost chooses between decisions by expected cost (:class:`classgap.posthoc.LowestCost`).
        overall: What the rule means by overall accuracy: ``"balanced"`` is the mean over classes, ``"overall"`` over samples.
        report_share: Share of the samples that is set aside for the report.
        folds: Number of folds of the cross-fitting.
        seed: Random seed.
        progress: Called with (fits done, fits in total).
    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1, 2], 200)
        >>> logits = 3 * np.eye(3)[y] + rng.normal(size=(600, 3)) - [0, 0, 2]  # class 2 is under-predicted
        >>> result = fix(y, scores=logits, folds=2)
        >>> result.helps, result.comparison.metrics["hard"].delta.value > 0.1
        (True, True)
    """
    found = as_predictions(
        data,
        scores=scores,
        scores_kind=scores_kind,
        features=features,
        head=head,
        class_names=class_names,
        train_counts=train_counts,
    )
    held_out = held_out_of(found.without_weights("fix"))
    number("report_share", report_share, low=0.05, high=0.5)
    whole("seed", seed, low=0)
    whole("folds", folds, low=2)
    choose({}, rule, overall)  # an unknown name is an error before any work is done
    set_aside = fold_numbers(held_out.y, round(1 / report_share), seed) == 0
    fitting, reporting = held_out.take(np.flatnonzero(~set_aside)), held_out.take(np.flatnonzero(set_aside))
    need_samples(fitting, folds, "fix")
    matrix = None if cost is None else check_cost(cost_in_order(cost, found.classes), found.num_classes)
    wanted, skipped = applicable(held_out) if matrix is None else (cost_methods(matrix), {})
    ticks, steps = count(1), len(wanted) * (folds + 1)

    def tick() -> None:
        if progress is not None:
            progress(next(ticks), steps)

    crossed = {label: fitting.logits.argmax(axis=1) for label in wanted}
    for part, rows in splits(fitting, folds, seed + 1):
        for label, method in _fit_all(wanted, part, tick).items():
            crossed[label][rows] = _predict(method, fitting, rows)
    fitted = _fit_all(wanted, fitting, tick)
    selection = _compare(fitting, crossed, seed, found.classes)
    after = {n: _predict(m, reporting, slice(None)) for n, m in fitted.items()}
    costs = None
    if matrix is not None:
        parts = [(part.y, part.logits.argmax(axis=1), made) for part, made in ((fitting, crossed), (reporting, after))]
        costs, rule = measure_costs(matrix, parts[0], parts[1]), RULE
    chosen = choose(selection, rule, overall) if costs is None else costs.chosen
    report = _compare(reporting, after, seed, found.classes, precise=chosen)
    order = sorted(fitted, key=lambda n: (n != chosen, -selection[n].metrics["hard"].delta.value))
    names = np.asarray(found.classes if class_names is not None else _as_given(data, found.classes))
    for method in fitted.values():
        method.classes_, method.scores_kind_ = names, found.scores_kind or "logits"
    candidates = {n: Candidate(n, fitted[n], selection[n], report[n]) for n in order}
    return FixReport(found, candidates, skipped, chosen, rule, np.flatnonzero(set_aside), overall, costs)


def _as_given(data: Any, classes: tuple[str, ...]) -> Sequence[Any]:
    """Class names, or the numbers or booleans that the user gave as labels, so that ``predict`` gives what ``data`` holds."""
    from classgap.predictions.tables import is_frame

    if isinstance(data, (Predictions, str, Path)) or is_frame(data):
        return classes
    flags = {"0": False, "False": False, "1": True, "True": True}
    readers: dict[str, Callable[[str], Any]] = {"i": int, "u": int, "f": float, "b": flags.__getitem__}
    read = readers.get(label_vector("y_true", data).dtype.kind, str)
    try:
        return [read(name) for name in classes]
    except (KeyError, ValueError):  # the scores have columns of other names, which are no labels here
        return classes


def held_out_of(found: Predictions) -> HeldOut:
    """The input of post-hoc methods from predictions; probabilities become their logarithms."""
    if found.scores is None or not found.has_rows:
        raise InputError(
            "fix needs true labels and scores (--scores), or features with the weight of the last layer; got labels only, "
            "for which classgap audit is enough"
        )
    norms = None if found.weight is None else np.linalg.norm(found.weight, axis=1)
    return HeldOut.gather(
        as_logits(found.scores, found.scores_kind or "logits"),
        found.y_true,
        classes=np.arange(found.num_classes),
        class_counts=found.train_counts,
        weight_norms=None if norms is None or (norms == 0).any() else norms,
        bias=found.bias,
        features=found.features,
    )[0]


def applicable(held_out: HeldOut) -> tuple[dict[str, PostHocMethod], dict[str, str]]:
    """Every registered method (with its variants) that suits these samples, and why the others do not."""
    wanted: dict[str, PostHocMethod] = {}
    skipped: dict[str, str] = {}
    for declared in registry.methods("posthoc"):
        method: type[PostHocMethod] = declared.cls  # type: ignore[assignment]
        if reason := method.unsuitable(held_out):
            skipped[declared.name] = reason
            continue
        for settings in method.variants:
            wanted[_label(declared.name, settings)] = declared.build(**settings)
    return wanted, skipped


def _label(name: str, settings: Mapping[str, Any]) -> str:
    """Short name of a method with its setting: ``gap_dial(2)``, ``marc(ridge 1)``, ``crt``."""
    if not settings:
        return name
    key, value = next(iter(settings.items()))
    shown = "tuned" if value is None else f"{value:g}"
    return f"{name}({shown})" if key in ("strength", "tau") else f"{name}({key.replace('_', ' ')} {shown})"


def _fit_all(
    methods: Mapping[str, PostHocMethod], held_out: HeldOut, tick: Callable[[], None]
) -> dict[str, PostHocMethod]:
    """Fit every method on the same samples, in one thread per core; call ``tick`` after each.

    The settings of a method are fitted together, since they may share work.
    """
    fitted: dict[str, PostHocMethod] = {label: clone(method) for label, method in methods.items()}
    settings: dict[type[PostHocMethod], list[PostHocMethod]] = {}
    for method in fitted.values():
        method.classes_, method.scores_kind_ = np.arange(held_out.num_classes), "logits"
        settings.setdefault(type(method), []).append(method)
    with threadpool_limits(1, "blas"), warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        # Every fit is measured on other samples, also an inexact one.
        warnings.simplefilter("ignore", ConvergenceWarning)
        running = {pool.submit(kind.fit_settings, group, held_out): group for kind, group in settings.items()}
        for done in as_completed(running):
            done.result()
            for _ in running[done]:
                tick()
    return fitted


def _predict(method: PostHocMethod, held_out: HeldOut, rows: Any) -> Array:
    features = None if held_out.features is None else held_out.features[rows]
    return method.predict(held_out.logits[rows], features=features)


def _compare(
    held_out: HeldOut, after: Mapping[str, Array], seed: int, classes: Sequence[str], precise: str | None = None
) -> dict[str, Comparison]:
    before = held_out.logits.argmax(axis=1)
    with threadpool_limits(1, "blas"):  # the matrices are small: more threads would wait for each other
        return compare_predictions(held_out.y, before, after, classes, seed=seed, precise=precise)
