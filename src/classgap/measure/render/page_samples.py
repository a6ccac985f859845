"""The samples on the page: the worst mistakes and the labels to check, with pictures or texts where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classgap.measure.render.page_tables import Table, plain
from classgap.measure.render.pictures import thumbnails

if TYPE_CHECKING:
    import polars as pl

    from classgap.measure.audit_report import AuditReport

WORST_SHOWN = 60  # mistakes of all classes
HARD_CLASSES, EACH_SHOWN = 20, 6  # and of each of the hardest classes
LABELS_SHOWN = 60
TEXT_SHOWN = 280  # characters

# column of the frame: (heading, kind, meaning)
_COLUMNS = {
    "true": ("true", "text", "true class of the sample"),
    "predicted": ("predicted", "text", "class that the model predicts"),
    "margin": ("margin", "share", "probability of the true class minus the largest probability of another class"),
    "cause": ("suspected cause", "text", "most important cause in the diagnosis of its class that fits the sample"),
    "label": ("label", "text", "label in the file"),
    "suggested": ("suggested", "text", "class of which the model is confident instead"),
    "probability_label": ("probability of the label", "share", "probability that the model gives to the label"),
    "probability_suggested": ("of the suggestion", "share", "probability that the model gives to the suggested class"),
}


@dataclass(frozen=True, eq=False)
class PageSamples:
    """Tables by name with the sentence above each, and notes on pictures that are missing."""

    tables: dict[str, Table]
    leads: dict[str, str]
    pictures: bool
    notes: tuple[str, ...]


def page_samples(report: AuditReport, below: float) -> PageSamples:
    """The samples that the page of an audit shows; none if only counts are known or nothing tells the samples apart."""
    samples = report.samples
    if samples is None or (samples.scores is None and not samples.columns):
        return PageSamples({}, {}, False, ())
    mistakes = report.mistakes(n=None)
    found = {"mistakes": mistakes[_shown_rows(report, mistakes)]}
    leads = {"mistakes": _mistakes_lead(report, mistakes.height, found["mistakes"].height)}
    if samples.scores is not None:
        suspected = report.mislabelled(below)
        found["labels"] = suspected.head(LABELS_SHOWN)
        leads["labels"] = _labels_lead(report, suspected.height)
    found = {name: frame for name, frame in found.items() if frame.height}
    notes: tuple[str, ...] = ()
    pictures: dict[str, str] = {}
    if samples.paths is not None:
        made = thumbnails([str(path) for frame in found.values() for path in frame["path"]])
        pictures, notes = made.by_path, made.notes
    titles: dict[tuple[str, str], str] = {(d.name, c.kind): c.title.lower() for d in report.diagnoses for c in d.causes}
    tables = {name: _table(name, frame, pictures, titles) for name, frame in found.items()}
    return PageSamples(tables, leads, bool(pictures) or samples.texts is not None, notes)


def _shown_rows(report: AuditReport, mistakes: pl.DataFrame) -> list[int]:
    """Positions of the worst mistakes of all classes and of the hardest classes, in order."""
    accuracy = np.where(report.confusion.support > 0, report.confusion.accuracy, np.inf)
    hardest = {report.classes[k] for k in np.argsort(accuracy, kind="stable")[:HARD_CLASSES]}
    seen = dict.fromkeys(hardest, 0)
    rows = []
    for position, name in enumerate(mistakes["true"]):
        mine = name in seen and seen[name] < EACH_SHOWN
        if mine or position < WORST_SHOWN:
            rows.append(position)
        if mine:
            seen[name] += 1
    return rows


def _mistakes_lead(report: AuditReport, total: int, shown: int) -> str:
    order = (
        "The most confident ones come first."
        if report.margins is not None
        else "Those of the hardest classes come first."
    )
    where = "" if report.sampling is None else f" in the sample of {report.sampling.rows:,} rows"
    if shown == total:
        return f"All {total:,} mistakes{where}. {order}"
    return (
        f"{shown:,} of {total:,} mistakes{where}: the worst ones, and up to {EACH_SHOWN} of each of the hardest classes. {order} "
        "All of them are in mistakes.csv (--out) and report.mistakes(n=None)."
    )


def _labels_lead(report: AuditReport, total: int) -> str:
    where = "" if report.sampling is None else f" of the sample of {report.sampling.rows:,} rows"
    shown = f"{total:,} sample{'' if total == 1 else 's'}"
    if total > LABELS_SHOWN:
        shown = f"The {LABELS_SHOWN} most suspicious of {total:,} samples"
    return (
        f"{shown}{where} whose label the model contradicts with confidence, so it is probably wrong. The list for an "
        "annotator is mislabelled.csv (--out) or report.mislabelled()."
    )


def _table(name: str, frame: pl.DataFrame, pictures: dict[str, str], titles: Mapping[tuple[str, str], str]) -> Table:
    """The samples of a frame; ``titles`` are the words of the page for the causes, by class and kind."""
    sample = frame["id"].cast(str).to_list() if "id" in frame.columns else [f"row {row}" for row in frame["row"]]
    data: dict[str, list[Any]] = {"sample": sample}
    columns = [{"key": "sample", "label": "sample", "kind": "text", "help": "id of the sample, or its row from 0"}]
    for key, (label, kind, meaning) in _COLUMNS.items():
        if key in frame.columns:
            data[key] = plain(frame[key].to_numpy())
            columns.append({"key": key, "label": label, "kind": kind, "help": meaning})
    if "cause" in frame.columns:
        pairs = zip(frame["true"].to_list(), frame["cause"].to_list(), strict=True)
        words = {"mislabelled": "probably wrong label"}
        data["cause"] = [titles.get(pair, words.get(pair[1], pair[1])) for pair in pairs]
    if "text" in frame.columns:
        data["text"] = [_excerpt(text) for text in frame["text"]]
        columns.append({"key": "text", "label": "text", "kind": "long", "help": "beginning of the text"})
    if pictures:
        data["picture"] = [pictures.get(path) for path in frame["path"]]
    return {"label": name, "columns": columns, "data": data}


def _excerpt(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"
