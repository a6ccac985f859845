"""The samples behind an audit: every mistake with its margin and suspected cause, and labels that are probably wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.arrays import Float64s, Ints, log_sum_exp, row_blocks
from classgap.measure.diagnostics.causes.mislabelled import UNLIKELY, suspected_labels
from classgap.predictions import Predictions

if TYPE_CHECKING:
    import polars as pl

    from classgap.measure.audit_report import AuditReport


def mistakes(report: AuditReport, class_name: str | None = None, n: int | None = None) -> pl.DataFrame:
    """The misclassified samples of an audit, worst first; see :meth:`AuditReport.mistakes`."""
    import polars as pl

    samples = _rows(report, "mistakes")
    wrong = np.flatnonzero(samples.y_true != samples.y_pred)
    if class_name is not None:
        name = checks.one_of("class_name", str(class_name), report.classes)
        wrong = wrong[samples.y_true[wrong] == report.classes.index(name)]
    if n is not None:
        checks.whole("n", n, low=1)
    wrong = wrong[_worst_first(report, samples, wrong)][:n]
    columns = _identified(samples, wrong)
    columns |= {"true": _names(report, samples.y_true[wrong]), "predicted": _names(report, samples.y_pred[wrong])}
    if report.margins is not None:
        columns["margin"] = report.margins.output.samples[wrong]
    columns["cause"] = suspected_causes(report, samples, wrong)
    if samples.scores is not None:
        true, predicted = _probabilities(samples, wrong, samples.y_true[wrong], samples.y_pred[wrong])
        columns |= {"probability_true": true, "probability_predicted": predicted}
    columns |= _shown(samples, wrong)
    return pl.DataFrame(columns, schema_overrides=_text_columns(columns))


def mislabelled(report: AuditReport, below: float = UNLIKELY) -> pl.DataFrame:
    """The samples whose label is probably wrong, most suspicious first; see :meth:`AuditReport.mislabelled`."""
    import polars as pl

    samples = _rows(report, "mislabelled")
    if samples.scores is None:
        raise checks.InputError("mislabelled needs scores; pass scores= (logits or probabilities) to audit")
    rows, believed = report.suspects if below == UNLIKELY else suspects(report, below)
    label, suggested = _probabilities(samples, rows, samples.y_true[rows], believed)
    columns = _identified(samples, rows)
    columns |= {"label": _names(report, samples.y_true[rows]), "suggested": _names(report, believed)}
    columns |= {"probability_label": label, "probability_suggested": suggested, **_shown(samples, rows)}
    return pl.DataFrame(columns, schema_overrides=_text_columns(columns))


def suspects(report: AuditReport, below: float = UNLIKELY) -> tuple[Ints, Ints]:
    """Rows whose label is probably wrong, most suspicious first, and the class that the model suggests; none without scores."""
    samples = report.samples
    if samples is None or samples.scores is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    kind: Any = samples.scores_kind
    return suspected_labels(samples.scores, samples.y_true, report.num_classes, kind, below=below)


def suspected_causes(report: AuditReport, samples: Predictions, rows: Ints) -> NDArray[Any]:
    """For each of the misclassified ``rows``, the kind of the most important cause that fits it; empty if there is none.

    A suspected label is "mislabelled". Otherwise it is the first cause of the class in ``report.diagnoses``; a cause that
    names other classes ("confused", "crowded") fits only the samples predicted as one of them.
    """
    found = np.full(len(rows), "", dtype=object)
    order = np.argsort(samples.y_true[rows], kind="stable")
    true, predicted = samples.y_true[rows][order], samples.y_pred[rows][order]
    for diagnosis in report.diagnoses:
        start, end = np.searchsorted(true, [diagnosis.class_index, diagnosis.class_index + 1])
        for cause in reversed(diagnosis.causes):  # the most important cause is written last
            if cause.kind == "mislabelled":
                continue
            fits = np.isin(predicted[start:end], cause.classes) if cause.classes else np.ones(end - start, dtype=bool)
            found[order[start:end][fits]] = cause.kind
    found[np.isin(rows, report.suspects[0])] = "mislabelled"
    return found


def _rows(report: AuditReport, what: str) -> Predictions:
    if report.samples is None:
        raise checks.InputError(
            f"{what} needs the samples, but this audit had only counts; read the file with rows=True, or name a column of "
            "sample ids (--id)"
        )
    return report.samples


def _worst_first(report: AuditReport, samples: Predictions, rows: Ints) -> Ints:
    """Order of ``rows``: by margin, or without scores by the accuracy of the class."""
    if report.margins is not None:
        return np.argsort(report.margins.output.samples[rows], kind="stable")
    return np.argsort(report.confusion.accuracy[samples.y_true[rows]], kind="stable")


def _identified(samples: Predictions, rows: Ints) -> dict[str, NDArray[Any]]:
    """Row number, and id where it is known."""
    numbers = rows if samples.row_numbers is None else samples.row_numbers[rows]
    return {"row": numbers, **({} if samples.ids is None else {"id": samples.ids[rows]})}


def _shown(samples: Predictions, rows: Ints) -> dict[str, NDArray[Any]]:
    """Path and text where they are known."""
    return {key: samples.columns[key][rows] for key in ("path", "text") if key in samples.columns}


def _names(report: AuditReport, codes: Ints) -> NDArray[Any]:
    return np.asarray(report.classes, dtype=object)[codes]


def _text_columns(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Columns of text, by name; without rows, polars could not tell."""
    import polars as pl

    return {name: pl.String for name, values in columns.items() if values.dtype.kind in "OU"}


def _probabilities(samples: Predictions, rows: Ints, *codes: Ints) -> list[Float64s]:
    """Probability of one class of every row, for each of the class indices ``codes``."""
    scores = np.asarray(samples.scores)
    found = [np.empty(len(rows)) for _ in codes]
    for block in row_blocks(len(rows), scores.shape[1]):
        values = scores[rows[block]].astype(np.float64)
        if samples.scores_kind == "logits":
            values = np.exp(values - log_sum_exp(values)[:, None])
        for result, code in zip(found, codes, strict=True):
            result[block] = values[np.arange(len(values)), code[block]]
    return found
