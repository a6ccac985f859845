"""The result of :func:`classgap.fix`: :class:`FixReport`, with its texts, tables and output folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classgap.checks import InputError
from classgap.posthoc.costs import Costs, cost_sentence
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.gap_dial import GapDial
from classgap.posthoc.files import save
from classgap.posthoc.held_out import Array
from classgap.posthoc.prediction_sets import PredictionSets
from classgap.posthoc.selection import rejection
from classgap.predictions import Predictions
from classgap.predictions.export import write_table
from classgap.writing import replacing_entries, write

if TYPE_CHECKING:
    from classgap.measure import Comparison

# Verdicts of ``compare`` on the samples set aside that are improvements of the hard classes or the overall accuracy.
HELPFUL = ("closed", "better", "better_hard", "traded", "likely_hard", "not_hard")
COLUMNS = ("method", "hard cv", "overall cv", "hard", "overall", "verdict")
# The files and folders that classgap writes; all others in the folder belong to the user.
WRITTEN = (
    "method",
    "head.safetensors",
    "predictions.csv",
    "prediction_sets.json",
    "figures",
    "methods.md",
    "report.md",
    "report.json",
    "report.html",
)

# Share of the samples that a folded layer may predict otherwise, because scores and features are rounded.
_ROUNDING = 0.01


@dataclass(frozen=True, eq=False)
class Candidate:
    """One method with one setting.

    Attributes:
        method: The method, fitted on the samples for fitting.
        selection: Cross-fitted comparison with the uncorrected scores on the samples for fitting; the rule uses this.
        report: Comparison on the samples set aside, which were used neither to fit nor to choose.
    """

    label: str
    method: PostHocMethod
    selection: Comparison
    report: Comparison


@dataclass(frozen=True, eq=False)
class FixReport:
    """The chosen post-hoc method and its measured effect. Created by :func:`classgap.fix`.

    Attributes:
        before: The given predictions.
        candidates: All fitted methods by label, the chosen one first.
        skipped: Methods that could not be fitted, with the reason.
        chosen: Label of the chosen method, or None.
        rule: Name of the rule.
        report_rows: Rows of the samples set aside for the report.
        overall: What the rule means by overall accuracy: ``"balanced"`` or ``"overall"``.
        costs: With ``cost=``: the mean costs, by which the method was chosen.
    """

    before: Predictions
    candidates: Mapping[str, Candidate]
    skipped: Mapping[str, str]
    chosen: str | None
    rule: str
    report_rows: Array
    overall: str = "balanced"
    costs: Costs | None = None

    def __repr__(self) -> str:
        return f"FixReport({self.verdict})"

    @property
    def helps(self) -> bool:
        """Whether the verdict of ``compare`` on the samples set aside is an improvement; with costs, whether they are lower."""
        if self.costs is not None:
            return self.chosen is not None and self.costs.report[self.chosen].high < 0
        return self.chosen is not None and self.candidates[self.chosen].report.verdict.kind in HELPFUL

    @property
    def method(self) -> PostHocMethod:
        """The chosen method, ready to use."""
        return self._chosen.method

    @property
    def comparison(self) -> Comparison:
        """Comparison before and after the chosen method, on the samples set aside."""
        return self._chosen.report

    @property
    def _chosen(self) -> Candidate:
        if self.chosen is None:
            raise InputError(
                f"the rule {self.rule} admits no method; see candidates for all fitted methods, or choose another rule"
            )
        return self.candidates[self.chosen]

    @cached_property
    def after(self) -> Predictions:
        """All given predictions, corrected by the chosen method; the scores are corrected logits."""
        scores = self.method.transform(self.before.scores, features=self.before.features)
        layer = dict.fromkeys(("weight", "bias", "margin_norms"))
        return replace(self.before, scores=scores, scores_kind="logits", y_pred=scores.argmax(axis=1), **layer)  # type: ignore[arg-type]

    @cached_property
    def head(self) -> tuple[Array, Array]:
        """The corrected last layer ``(weight, bias)``; an error says why there is none."""
        before = self.before
        if before.weight is None or before.features is None:
            raise InputError(
                "the predictions hold no last layer; fix needs features and the weight of the layer for it"
            )
        weight, bias = self.method.fold(before.weight, before.bias)
        other = float(((before.features @ weight.T + bias).argmax(axis=1) != self.after.y_pred).mean())
        if other > _ROUNDING:
            raise InputError(
                f"the corrected layer would predict another class than {self.chosen} for {other:.0%} of the samples, because the "
                "scores are not those of the layer (features · weight + bias); use the method on the scores, or fit it on the "
                "scores of the layer"
            )
        return weight, bias

    @property
    def prediction_sets(self) -> PredictionSets:
        """Sets that hold the true class in 90 % of the samples of every class, for ``method.transform(scores)`` if the method
        :attr:`helps`, otherwise, and with costs, for the given scores. The thresholds come from the samples set aside.
        """
        source = self.after if self.helps and self.costs is None else self.before
        assert source.scores is not None
        rows = self.report_rows
        return PredictionSets().fit(
            source.scores[rows],
            np.asarray(source.classes)[source.y_true[rows]],
            classes=np.asarray(source.classes),
            scores_kind=source.scores_kind,
        )

    @property
    def rejected(self) -> dict[str, str]:
        """Candidates that improve the samples set aside but were not chosen, with the reason."""
        if self.costs is not None:
            return {}
        return {
            label: rejection({n: c.selection for n, c in self.candidates.items()}, label, self.rule, self.overall)
            for label, candidate in self.candidates.items()
            if label != self.chosen and candidate.report.verdict.kind in HELPFUL
        }

    @property
    def frontier(self) -> list[tuple[float, Candidate]]:
        """The candidates of the gap dial, in order of their strength."""
        dials = [(c.method.strength_, c) for c in self.candidates.values() if isinstance(c.method, GapDial)]
        return sorted(dials, key=lambda pair: pair[0])

    @property
    def verdict(self) -> str:
        """Whether a method helps, and how much, as text."""
        return _verdict(self)

    @cached_property
    def note(self) -> str:
        """Why no ``head.safetensors`` is written although the predictions hold the last layer; otherwise empty."""
        if not self.helps or self.before.weight is None:
            return ""
        try:
            _ = self.head
        except InputError as error:
            return f"head.safetensors is not written: {error}."
        return ""

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text cells per method, with the columns ``COLUMNS``."""
        return _rows(self)

    def to_markdown(self) -> str:
        """All methods as a Markdown table, with an explanation."""
        counted = "mean over classes" if self.overall == "balanced" else "mean over samples"
        lines = [
            "# Fitted methods",
            "",
            "Differences from the uncorrected scores in points, with paired 95 % intervals; + and − mark intervals that exclude "
            '0. "cv" columns are cross-fitted; the rule uses them. The other columns are measured on '
            f"{len(self.report_rows):,} samples that were used neither to fit nor to choose a method; there, "
            '"hard" means the classes that were hard before, by the cross-fitted ranking. The verdict is corrected for '
            f"5 tests. Rule: {self.rule}. Overall: {counted}.",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "|" + "---|" * len(COLUMNS),
            *("| " + " | ".join(row) + " |" for row in self.rows()),
            "",
            self.verdict,
            "",
            *([note, ""] if (note := self.note) else []),
            *(f"Not fitted: {name} ({reason})." for name, reason in self.skipped.items()),
        ]
        return "\n".join(lines) + "\n"

    def save(self, folder: str | Path, *, source: str = "") -> Path:
        """Write the report, and the chosen method if it helps, to ``folder``; an earlier result there is replaced.

        The files are first written to a temporary folder and then take the place of the earlier result. Other files in ``folder``
        are kept.

        Args:
            source: Name of the prediction files, for the title of the page.
        """
        with replacing_entries(folder, WRITTEN) as temporary:
            _write(self, temporary, source)
        return Path(folder)


def _write(result: FixReport, folder: Path, source: str) -> None:
    from safetensors.numpy import save as as_safetensors

    from classgap.measure.render.folder import write_report
    from classgap.posthoc.figure import frontier

    write(folder / "methods.md", result.to_markdown())
    result.prediction_sets.save(folder / "prediction_sets.json")
    if result.chosen is None:
        return
    title = ": ".join(part for part in (source, f"{result.chosen}, on the samples set aside") if part)
    write_report(result.comparison, folder, title, more={"frontier": frontier(result)})
    if result.helps:
        _write_predictions(result, folder / "predictions.csv")
        save(result.method, folder / "method")
        if result.before.weight is not None and not result.note:
            layer = dict(zip(("weight", "bias"), map(np.ascontiguousarray, result.head), strict=True))
            write(folder / "head.safetensors", as_safetensors(layer))


def _write_predictions(result: FixReport, path: Path) -> None:
    before = result.before
    assert before.scores is not None
    names = np.asarray(before.classes)
    part = np.full(before.num_samples, "fit", dtype=object)
    part[result.report_rows] = "report"
    table = {"row": np.arange(before.num_samples), "part": part, "true": names[before.y_true]}
    table |= {} if before.ids is None else {"id": before.ids}
    table |= {"before": names[before.scores.argmax(axis=1)], "after": names[result.after.y_pred]}
    write_table({name: column.tolist() for name, column in table.items()}, path)


def _verdict(result: FixReport) -> str:
    from classgap.measure.render.plain import points
    from classgap.measure.statistics.metric_changes import many_small

    if result.costs is not None:
        return cost_sentence(result.costs, result.chosen)
    if result.chosen is None:
        return _with_rejected(f"The rule {result.rule} admits no method.", result)
    report = result.comparison
    hard, overall = report.groups["cross"]["hard"].delta, report.metrics[result.overall].delta
    numbers = (
        f"classes that were hard before {points(hard.value)} [{points(hard.low)}, {points(hard.high)}], "
        f"{result.overall} accuracy {points(overall.value)} [{points(overall.low)}, {points(overall.high)}]"
    )
    if many_small(report.per_class["support"][report.per_class["support"] > 0]):
        numbers += " (the samples set aside are too few to determine which classes are hard)"
    if result.helps:
        return f"Chosen by {result.rule}: {result.chosen}. On the samples set aside: {numbers}; {report.verdict.title}."
    reason = f'the verdict on the samples set aside is "{report.verdict.title}"'
    if hard.low > 0 or overall.low > 0:
        reason += ", because no gain is significant after correction for 5 tests"
    sentence = (
        f"No significant improvement: {result.rule} chose {result.chosen}, {numbers}; {reason}. No method was written."
    )
    return _with_rejected(sentence, result)


def _with_rejected(sentence: str, result: FixReport) -> str:
    """The sentence, and which methods improve the samples set aside but were not chosen, why, and what to do."""
    if not result.rejected:
        return sentence
    named = "; ".join(f"{label}: {reason}" for label, reason in list(result.rejected.items())[:3])
    return (
        f"{sentence} Methods that improve the samples set aside but were not chosen: {named}. To use one of them, pass another "
        "--rule (best_hard ignores the overall accuracy), or fit the method in Python (classgap.posthoc). Since these samples "
        "then influence the choice, confirm the improvement on new samples."
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
