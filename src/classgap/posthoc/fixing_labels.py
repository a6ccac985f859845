"""``fix_labels``: thresholds of multi-label data, chosen by cross-fitting and measured on samples that were set aside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap.checks import InputError, number, whole
from classgap.posthoc.label_thresholds import LabelThresholds, rarest_label
from classgap.posthoc.selection import fold_numbers
from classgap.predictions import Columns
from classgap.predictions.export import write_table
from classgap.predictions.multi_label import MultiLabelPredictions, Thresholds, as_label_predictions, label_thresholds
from classgap.writing import replacing_entries, write

if TYPE_CHECKING:
    from classgap.measure.multi_label_compare import MultiLabelComparison

HELPFUL = ("better", "traded", "some_better")
WRITTEN = ("thresholds.json", "predictions.csv", "figures", "methods.md", "report.md", "report.json", "report.html")
METHODS = {
    "common": "one threshold for all labels",
    "per_label": "one threshold per label",
    "where_it_helps": "one threshold per label, where it raised the F1 in cross-fitting",
}


@dataclass(frozen=True, eq=False)
class MultiLabelFix:
    """The chosen thresholds and their measured effect. Created by :func:`classgap.fix_labels`.

    Attributes:
        before: The given predictions.
        chosen: Name of the chosen method (``common``, ``per_label`` or ``where_it_helps``), or None if none raises the macro F1
            in cross-fitting.
        methods: Fitted thresholds by method.
        selection: By method: change of macro F1 by cross-fitting, on the samples for fitting.
        reports: By method: comparison on the samples set aside, which were used neither to fit nor to choose.
        report_rows: Rows of the samples set aside.
    """

    before: MultiLabelPredictions
    chosen: str | None
    methods: Mapping[str, LabelThresholds]
    selection: Mapping[str, float]
    reports: Mapping[str, MultiLabelComparison]
    report_rows: NDArray[np.int64]

    @property
    def helps(self) -> bool:
        """Whether the verdict on the samples set aside is an improvement."""
        return self.chosen is not None and self.comparison.verdict.kind in HELPFUL

    @property
    def thresholds(self) -> LabelThresholds:
        """The chosen thresholds, ready to use."""
        return self.methods[self._known]

    @property
    def comparison(self) -> MultiLabelComparison:
        """Comparison before and after the chosen thresholds, on the samples set aside."""
        return self.reports[self._known]

    @property
    def _known(self) -> str:
        if self.chosen is None:
            raise InputError("no thresholds raise the macro F1 in cross-fitting; see reports for all of them")
        return self.chosen

    @property
    def verdict(self) -> str:
        """Whether other thresholds help, and how much, as text."""
        if self.chosen is None:
            return "No thresholds raise the macro F1 in cross-fitting, so nothing was chosen."
        found = self.comparison.verdict
        sentence = f"{found.title}: {found.sentence.removeprefix(f'{found.headline}: ')}"
        if self.helps:
            return f"Chosen: {METHODS[self.chosen]}. On the samples set aside: {sentence}"
        chosen = METHODS[self.chosen]
        aside = f"on the samples set aside: {sentence} No thresholds were written."
        return f"No significant improvement: chosen was {chosen}; {aside}"

    def __repr__(self) -> str:
        return f"<MultiLabelFix: {self.verdict}>"

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text per method: name, cross-fitted change, change and verdict on the samples set aside."""
        from classgap.measure.render.plain import points

        rows: list[tuple[str, ...]] = []
        for name, report in self.reports.items():
            delta = report.metrics["macro_f1"].delta
            rows.append((("→ " if name == self.chosen else "") + METHODS[name], points(self.selection[name]),
                         f"{points(delta.value)} [{points(delta.low)}, {points(delta.high)}]", f"{len(report.improved)}",
                         f"{len(report.worsened)}", report.verdict.title))  # fmt: skip
        return rows

    def to_markdown(self) -> str:
        """All methods as a Markdown table, with an explanation."""
        from classgap.measure.render.plain import markdown_table

        aside = len(self.report_rows)
        text = (
            "Change of macro F1 in points. The first number is cross-fitted on the samples for fitting; the largest is chosen. "
            f"The other columns are measured on {aside:,} samples that were used neither to fit nor to choose (95 % intervals)."
        )
        return "\n\n".join(["# Thresholds", text, markdown_table(COLUMNS, self.rows()), self.verdict]) + "\n"

    def save(self, folder: str | Path, *, source: str = "") -> Path:
        """Write the report, and the chosen thresholds if they help, to ``folder``; an earlier result there is replaced."""
        from classgap.measure.render.folder import write_report

        with replacing_entries(folder, WRITTEN) as temporary:
            write(temporary / "methods.md", self.to_markdown())
            if self.chosen is not None:
                title = ": ".join(p for p in (source, f"{METHODS[self.chosen]}, on the samples set aside") if p)
                write_report(self.comparison, temporary, title)
            else:
                write(temporary / "report.json", json.dumps({"verdict": self.verdict, "chosen": None}, indent=2))
            if self.helps:
                self.thresholds.save(temporary / "thresholds.json")
                self._write_predictions(temporary / "predictions.csv")
        return Path(folder)

    def _write_predictions(self, path: Path) -> None:
        """The predicted labels before and after, separated by semicolons."""
        names = np.array(self.before.labels, dtype=object)
        assert self.before.scores is not None
        after = self.thresholds.predict(self.before.scores)
        part = np.full(self.before.num_samples, "fit", dtype=object)
        part[self.report_rows] = "report"
        table: dict[str, list[Any]] = {"row": list(range(len(part))), "part": part.tolist()}
        table |= {} if self.before.ids is None else {"id": self.before.ids.tolist()}
        for name, flags in (("true", self.before.y_true), ("before", self.before.y_pred), ("after", after)):
            table[name] = [";".join(names[row]) for row in flags]
        write_table(table, path)


COLUMNS = ("thresholds", "macro F1 cv", "macro F1", "labels improved", "got worse", "verdict")


def fix_labels(
    data: Any,
    *,
    scores: ArrayLike | None = None,
    scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
    threshold: Thresholds | None = None,
    label_names: Sequence[str] | None = None,
    columns: Columns | None = None,
    report_share: float = 1 / 3,
    folds: int = 5,
    seed: int = 0,
) -> MultiLabelFix:
    """Find better thresholds for multi-label predictions, without training again.

    A share ``report_share`` of the samples is set aside. On the others three sets of thresholds are cross-fitted for the highest
    F1 (one for all labels, one per label, one per label where it helps); the one with the highest macro F1 is chosen, and all are
    measured on the samples set aside, as :func:`classgap.compare_labels` does.

    Args:
        data: Samples that the model was **not** trained on, with scores: :class:`~classgap.MultiLabelPredictions`, the path of a
            prediction file, a table, or ``(n, L)`` of 0 and 1 together with ``scores``.
        scores: ``(n, L)`` probabilities or logits.
        scores_kind: Kind of the scores. ``"auto"``: logits if a value lies outside [0, 1] (± 0.001), otherwise probabilities.
        threshold: Thresholds at present: one number, one per label, or by name; by default 0.5.
        label_names: Names of the labels, in the order of the columns.
        columns: Names of the columns of a file or table.
        report_share: Share of the samples that is set aside for the report.
        folds: Number of folds of the cross-fitting.
        seed: Random seed.
    """
    found = as_label_predictions(
        data, scores=scores, scores_kind=scores_kind, threshold=threshold, label_names=label_names, columns=columns
    )
    if found.scores is None:
        raise InputError("fix needs scores, one column per label (--scores); got predictions only")
    number("report_share", report_share, low=0.05, high=0.5)
    whole("seed", seed, low=0)
    whole("folds", folds, low=2)
    found = found.at_threshold(0.5) if found.thresholds is None else found
    aside = fold_numbers(rarest_label(found.y_true), round(1 / report_share), seed) == 0
    fitting, reporting = found.take(np.flatnonzero(~aside)), found.take(np.flatnonzero(aside))
    if fitting.num_samples < 2 * folds or not fitting.y_true.any() or not reporting.y_true.any():
        raise InputError(
            f"fix chooses by {folds}-fold cross-fitting and needs at least {3 * folds} samples, some of them with labels, got "
            f"{found.num_samples}; pass more samples"
        )
    present = label_thresholds(found.thresholds if found.thresholds is not None else 0.5, found.labels)
    crossed, helped = _cross_fit(fitting, present, folds, seed)
    fitted = _fit_all(fitting, present, helped, seed)
    selection = {
        name: _macro_f1(fitting.y_true, said) - _macro_f1(fitting.y_true, fitting.y_pred)
        for name, said in crossed.items()
    }
    best = max(selection, key=lambda name: selection[name])
    return MultiLabelFix(
        before=found,
        chosen=best if selection[best] > 0 else None,
        methods=fitted,
        selection=selection,
        reports={name: _report(reporting, method) for name, method in fitted.items()},
        report_rows=np.flatnonzero(aside),
    )


def _fit_all(
    part: MultiLabelPredictions, present: NDArray[np.float64], helped: NDArray[np.bool_], seed: int
) -> dict[str, LabelThresholds]:
    own = LabelThresholds(seed=seed).fit_predictions(part)
    every = np.ones(part.num_labels, dtype=bool)
    return {"common": own.only(~every, own.common_), "per_label": own, "where_it_helps": own.only(helped, present)}


def _cross_fit(
    fitting: MultiLabelPredictions, present: NDArray[np.float64], folds: int, seed: int
) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.bool_]]:
    """Cross-fitted predictions of every method, and the labels whose own threshold raised the cross-fitted F1."""
    fold = fold_numbers(rarest_label(fitting.y_true), folds, seed + 1)
    crossed = {name: fitting.y_pred.copy() for name in METHODS}
    every = np.ones(fitting.num_labels, dtype=bool)
    for k in range(folds):
        rows = np.flatnonzero(fold == k)
        if len(rows) == 0 or len(rows) == len(fold):
            continue
        assert fitting.scores is not None
        fitted = _fit_all(fitting.take(np.flatnonzero(fold != k)), present, every, seed)
        for name in ("common", "per_label"):
            crossed[name][rows] = fitted[name].predict(fitting.scores[rows])
    helped = _f1(fitting.y_true, crossed["per_label"]) > _f1(fitting.y_true, fitting.y_pred)
    crossed["where_it_helps"] = np.where(helped, crossed["per_label"], fitting.y_pred)
    return crossed, helped


def _f1(true: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> NDArray[np.float64]:
    from classgap.measure.statistics.f1 import LabelCounts

    return LabelCounts.gather(true, predicted).f1


def _macro_f1(true: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> float:
    return float(np.nanmean(_f1(true, predicted)))


def _report(reporting: MultiLabelPredictions, method: LabelThresholds) -> MultiLabelComparison:
    from classgap.measure.multi_label_compare import compare_labels

    return compare_labels(reporting, reporting.at_threshold(method.thresholds_))
