"""What :func:`classgap.fix` found: :class:`FixReport`, its words and tables, and the folder it writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classgap.checks import InputError
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.gap_dial import GapDial
from classgap.posthoc.files import save
from classgap.posthoc.held_out import Array
from classgap.posthoc.selection import rejection
from classgap.predictions import Predictions

if TYPE_CHECKING:
    from classgap.measure import Comparison

# Verdicts of ``compare`` on the report part that count as help: the hard classes or the overall accuracy gained.
HELPFUL = ("closed", "better", "better_hard", "traded", "likely_hard", "not_hard")
COLUMNS = ("method", "hard cv", "overall cv", "hard", "overall", "verdict")
# What a result folder may hold; anything else in it belongs to the user.
WRITTEN = (
    "method",
    "head.safetensors",
    "predictions.csv",
    "figures",
    "methods.md",
    "report.md",
    "report.json",
    "report.html",
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """One method with one setting.

    Attributes:
        method: Fitted on the fitting part.
        selection: Cross-fitted comparison with the uncorrected scores on the fitting part; what the rule sees.
        report: Comparison on the samples set aside, which influenced neither fit nor choice.
    """

    label: str
    method: PostHocMethod
    selection: Comparison
    report: Comparison


@dataclass(frozen=True, eq=False)
class FixReport:
    """Which post-hoc method was chosen, and what it is worth. Made by :func:`classgap.fix`.

    Attributes:
        before: The predictions given.
        candidates: All methods that were fitted, by label, the chosen one first.
        skipped: Methods that could not be tried, with the reason.
        chosen: Label of the method the rule chose, or None.
        rule: The rule.
        report_rows: Samples set aside for the report.
        overall: What the rule calls overall: ``"balanced"`` or ``"overall"`` accuracy.
    """

    before: Predictions
    candidates: Mapping[str, Candidate]
    skipped: Mapping[str, str]
    chosen: str | None
    rule: str
    report_rows: Array
    overall: str = "balanced"

    def __repr__(self) -> str:
        return f"FixReport({self.verdict})"

    @property
    def helps(self) -> bool:
        """Whether the verdict of ``compare`` on the samples set aside is an improvement."""
        return self.chosen is not None and self.candidates[self.chosen].report.verdict.kind in HELPFUL

    @property
    def method(self) -> PostHocMethod:
        """The chosen method, fitted."""
        return self._chosen.method

    @property
    def comparison(self) -> Comparison:
        """Before and after the chosen method, on the samples set aside."""
        return self._chosen.report

    @property
    def _chosen(self) -> Candidate:
        if self.chosen is None:
            raise InputError(f"no method is admissible under the rule {self.rule}; candidates holds what was tried")
        return self.candidates[self.chosen]

    @cached_property
    def after(self) -> Predictions:
        """All predictions given, corrected by the chosen method; its scores are corrected logits."""
        scores = self.method.transform(self.before.scores, features=self.before.features)
        layer = dict.fromkeys(("weight", "bias", "margin_norms"))
        return replace(self.before, scores=scores, scores_kind="logits", y_pred=scores.argmax(axis=1), **layer)  # type: ignore[arg-type]

    @property
    def rejected(self) -> dict[str, str]:
        """Candidates whose verdict on the samples set aside is an improvement but that were not chosen, with the reason."""
        return {
            label: rejection({n: c.selection for n, c in self.candidates.items()}, label, self.rule, self.overall)
            for label, candidate in self.candidates.items()
            if label != self.chosen and candidate.report.verdict.kind in HELPFUL
        }

    @property
    def frontier(self) -> list[tuple[float, Candidate]]:
        """The strengths of the gap dial, in order."""
        dials = [(c.method.strength_, c) for c in self.candidates.values() if isinstance(c.method, GapDial)]
        return sorted(dials, key=lambda pair: pair[0])

    @property
    def verdict(self) -> str:
        """Whether a method helps, and by how much, in words."""
        return _verdict(self)

    def rows(self) -> list[tuple[str, ...]]:
        """A line of text cells for each method, under :data:`COLUMNS`."""
        return _rows(self)

    def to_markdown(self) -> str:
        """All methods as a Markdown table, with how they were fitted and chosen."""
        counted = "mean over classes" if self.overall == "balanced" else "mean over samples"
        lines = [
            "# Methods tried",
            "",
            "Differences to the uncorrected scores in points, with 95 % paired intervals; + and − mark intervals that exclude 0. "
            f'"cv" is cross-fitted and what the rule sees; the other columns are measured on {len(self.report_rows):,} samples '
            'that influenced no fit and no choice, "hard" there on the classes hard before, cross-fitted. The verdict allows '
            f"for four tests (Bonferroni). Rule: {self.rule}. Overall: {counted}.",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "|" + "---|" * len(COLUMNS),
            *("| " + " | ".join(row) + " |" for row in self.rows()),
            "",
            self.verdict,
            "",
            *(f"Left out: {name} ({reason})." for name, reason in self.skipped.items()),
        ]
        return "\n".join(lines) + "\n"

    def save(self, folder: str | Path, *, source: str = "") -> Path:
        """Write the report, and the chosen method if it helps, in place of an earlier result in ``folder``.

        Everything is written to a temporary folder first; then the files of the earlier result are removed, and the new ones
        take their place. Other files in ``folder`` stay.

        Args:
            source: What was fixed, for the title of the page.
        """
        target = Path(folder)
        if target.exists() and not target.is_dir():
            raise InputError(f"{target} is a file; choose a folder")
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fix-", dir=target) as temporary:
            _write(self, Path(temporary), source)
            for name in WRITTEN:
                _remove(target / name)
            for name in WRITTEN:
                if (Path(temporary) / name).exists():
                    os.replace(Path(temporary) / name, target / name)
        return target


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(result: FixReport, folder: Path, source: str) -> None:
    from classgap.measure.render.folder import write_report
    from classgap.posthoc.figure import frontier

    (folder / "methods.md").write_text(result.to_markdown(), encoding="utf-8")
    if result.chosen is None:
        return
    title = ": ".join(part for part in (source, f"{result.chosen}, on the samples set aside") if part)
    write_report(result.comparison, folder, title, more={"frontier": frontier(result)})
    if result.helps:
        _write_predictions(result, folder / "predictions.csv")
        save(result.method, folder / "method")
        _write_head(result, folder / "head.safetensors")


def _write_predictions(result: FixReport, path: Path) -> None:
    import polars as pl

    before = result.before
    assert before.scores is not None
    names = np.asarray(before.classes)
    part = np.full(before.num_samples, "fit", dtype=object)
    part[result.report_rows] = "report"
    table = {"row": np.arange(before.num_samples), "part": part, "true": names[before.y_true]}
    table |= {} if before.ids is None else {"id": before.ids}
    table |= {"before": names[before.scores.argmax(axis=1)], "after": names[result.after.y_pred]}
    pl.DataFrame({name: column.tolist() for name, column in table.items()}).write_csv(path)


def _write_head(result: FixReport, path: Path) -> None:
    """The last layer with the correction folded in, where there is one and the method allows it."""
    from safetensors.numpy import save_file

    if result.before.weight is None:
        return
    try:
        weight, bias = result.method.fold(result.before.weight, result.before.bias)
    except InputError:
        return  # DisAlign changes each sample differently
    save_file({"weight": np.ascontiguousarray(weight), "bias": np.ascontiguousarray(bias)}, path)


def _verdict(result: FixReport) -> str:
    from classgap.measure.render.plain import points

    if result.chosen is None:
        return _with_rejected(f"No method is admissible under the rule {result.rule}.", result)
    report = result.comparison
    hard, overall = report.groups["cross"]["hard"].delta, report.metrics[result.overall].delta
    numbers = (
        f"classes hard before {points(hard.value)} [{points(hard.low)}, {points(hard.high)}], "
        f"{result.overall} accuracy {points(overall.value)} [{points(overall.low)}, {points(overall.high)}]"
    )
    if result.helps:
        return f"Chosen by {result.rule}: {result.chosen}. On the samples set aside: {numbers}; {report.verdict.title}."
    reason = f'the verdict on the samples set aside is "{report.verdict.title}"'
    if hard.low > 0 or overall.low > 0:
        reason += ", because after Bonferroni correction (4 tests) no gain is significant"
    sentence = (
        f"Nothing helps beyond noise: {result.rule} chose {result.chosen}, {numbers}; {reason}. No method was written."
    )
    return _with_rejected(sentence, result)


def _with_rejected(sentence: str, result: FixReport) -> str:
    """The sentence, and which methods looked better on the samples set aside but were not chosen, why, and what to do."""
    if not result.rejected:
        return sentence
    named = "; ".join(f"{label}: {reason}" for label, reason in list(result.rejected.items())[:3])
    return (
        f"{sentence} An improvement on the samples set aside that the rule did not choose: {named}. To take it, choose by "
        "another --rule (best_hard allows any cost), or fit that method alone in Python (classgap.posthoc); as it "
        "is then chosen with these samples in view, confirm it on new ones."
    )


def _rows(result: FixReport) -> list[tuple[str, ...]]:
    from classgap.measure.render.plain import points

    def cell(comparison: Comparison, metric: str, *, crossed: bool = False) -> str:
        delta = (comparison.groups["cross"] if crossed else comparison.metrics)[metric].delta
        mark = " +" if delta.low > 0 else " −" if delta.high < 0 else ""
        return f"{points(delta.value)} [{points(delta.low)}, {points(delta.high)}]{mark}"

    return [
        (
            ("→ " if label == result.chosen else "") + label,
            cell(c.selection, "hard"),
            cell(c.selection, result.overall),
            cell(c.report, "hard", crossed=True),
            cell(c.report, result.overall),
            c.report.verdict.title,
        )
        for label, c in result.candidates.items()
    ]
