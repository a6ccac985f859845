"""The result of an audit: :class:`AuditReport`, with every number as an :class:`Estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.render import notebook
from classgap.measure.render.plain import (
    columns_frame,
    confidence_level,
    escape,
    html_module,
    json_ready,
    markdown_table,
    percent,
    records,
)
from classgap.measure.render.sections import sections
from classgap.measure.statistics.groups import RANKINGS
from classgap.measure.statistics.metrics import label
from classgap.predictions import Confusion, Predictions

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from classgap.measure.diagnostics.bounds import Bounds
    from classgap.measure.diagnostics.calibration import Calibration
    from classgap.measure.diagnostics.causes.diagnosis import Diagnosis
    from classgap.measure.diagnostics.geometry.summary import Geometry
    from classgap.measure.diagnostics.margins import Margins
    from classgap.measure.diagnostics.prediction_sets import PredictionSetReport
    from classgap.measure.diagnostics.ranking import Ranking
    from classgap.measure.diagnostics.threshold import Threshold
    from classgap.measure.statistics.slices import Slices
    from classgap.measure.streaming import Sampling

SCHEMA_VERSION = 1
HEADLINES = ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_decile", "gap")
PAIRS_LISTED = 100


@dataclass(frozen=True)
class Estimate:
    """A number with its interval: ``low <= value <= high``; all are nan if there are no samples to estimate from."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Homogeneity:
    """Test of "all classes have the same accuracy"; with a small ``p_value``, sampling noise alone does not explain the gap."""

    statistic: float
    p_value: float
    method: str


@dataclass(frozen=True)
class MarginLevels:
    """Margins of the outputs and of the classifier, per third of the classes (MR² Table 4).

    Attributes:
        output: For ``average`` (all classes), ``easy``, ``medium`` and ``hard`` (own ranking): mean over the classes of the group
            of their mean output margin, the probability of the true class minus the largest probability of another class. The
            interval is over samples, with the groups as given. All nan without scores.
        classifier: Smallest angle in degrees between the weight vectors of two classes; nan without a head.
    """

    output: Mapping[str, Estimate]
    classifier: float


def looks_like_a_regression(confusion: Confusion, classes: tuple[str, ...]) -> str:
    """Why the labels may be a measured quantity: many whole numbers, few samples of each, nearly all predictions wrong; or ""."""
    few = confusion.support.sum() < 10 * len(classes)
    wrong = confusion.correct.sum() < 0.1 * confusion.support.sum()
    if not (len(classes) > 50 and few and wrong and all(name.lstrip("-").isdecimal() for name in classes)):
        return ""
    return (
        f"{len(classes)} whole numbers with few samples each, of which nearly none is predicted exactly: check that the "
        "labels are classes and not the target of a regression"
    )


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Which classes fail, and whether the gap is real. Created by :func:`classgap.audit`; the methods are views of it.

    Attributes:
        classes: Class names; index ``k`` means ``classes[k]`` everywhere.
        confusion: The K×K count matrix.
        metrics: Every aggregate by name (:data:`classgap.measure.statistics.metrics.METRICS` explains each).
        groups: ``groups[ranking][group]``: mean class accuracy of a group of classes. Rankings are ``own``, ``cross``
            and, where given, ``reference`` and ``frequency`` (:data:`classgap.measure.statistics.groups.RANKINGS`).
        per_class: Structured array with one record per class: ``name, support, accuracy, low, high, precision, f1, group``, and
            further columns if scores, features or a head were given.
        homogeneity: Test of whether the differences between classes exceed sampling noise.
        verdict: The result of this test in one sentence.
        margin_levels: Output margins of the thirds and the angle of the classifier; None without scores and without a head.
        ranking: With scores: area under the ROC curve and average precision of each class against all others.
        prediction_sets: With scores: how often sets of probable classes hold the true class, and how large they are.
        threshold: Of two classes with scores: accuracy of both by threshold.
        slices: Accuracy per class and slice for every column given as ``by``; None without one.
        samples: The audited predictions (of a table that was measured in batches, the sample); None if only counts were given.
        sampling: Size and seed of the sample of a table that was measured in batches; None otherwise.
        notes: Remarks, e.g. that a class has no samples.
    """

    classes: tuple[str, ...]
    num_samples: int
    confidence: float
    seed: int
    confusion: Confusion
    metrics: Mapping[str, Estimate]
    groups: Mapping[str, Mapping[str, Estimate]]
    per_class: NDArray[np.void]
    homogeneity: Homogeneity
    verdict: str
    margins: Margins | None = None
    calibration: Calibration | None = None
    ranking: Ranking | None = None
    prediction_sets: PredictionSetReport | None = None
    geometry: Geometry | None = None
    bounds: Bounds | None = None
    margin_levels: MarginLevels | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    threshold: Threshold | None = None
    slices: Slices | None = None
    samples: Predictions | None = None
    sampling: Sampling | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return notebook.audit_line(self)

    def _repr_html_(self) -> str:
        return notebook.audit_html(self)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def overall(self) -> Estimate:
        """Share of samples that are predicted correctly."""
        return self.metrics["overall"]

    @property
    def balanced(self) -> Estimate:
        """Mean class accuracy."""
        return self.metrics["balanced"]

    @property
    def easy(self) -> Estimate:
        """Mean accuracy of the best third of classes, by their accuracy here (own ranking)."""
        return self.metrics["easy"]

    @property
    def medium(self) -> Estimate:
        """Mean accuracy of the middle third (own ranking)."""
        return self.metrics["medium"]

    @property
    def hard(self) -> Estimate:
        """Mean accuracy of the worst third (own ranking)."""
        return self.metrics["hard"]

    @property
    def worst(self) -> Estimate:
        """Lowest observed class accuracy; ``metrics["worst_corrected"]`` is corrected for sampling noise."""
        return self.metrics["worst"]

    @property
    def worst_decile(self) -> Estimate:
        """Mean accuracy of the worst tenth of classes."""
        return self.metrics["worst_decile"]

    @property
    def gap(self) -> Estimate:
        """Highest minus lowest observed class accuracy; ``metrics["gap_corrected"]`` is corrected for sampling noise."""
        return self.metrics["gap"]

    def mistakes(self, class_name: str | None = None, n: int | None = 20) -> pl.DataFrame:
        """The misclassified samples, worst first, as a polars table.

        Columns: ``row`` (from 0), ``id``, ``true``, ``predicted``, ``margin`` (probability of the true class minus the largest
        probability of another class), ``cause`` (kind of the suspected cause in ``diagnoses``; empty if there is none),
        ``probability_true``, ``probability_predicted``, ``path`` and ``text``; what was not given is left out. They are sorted
        by margin, or without scores by the accuracy of their class.

        Args:
            class_name: Only samples of this true class.
            n: At most this many; None means all.
        Example:
            >>> from classgap import audit
            >>> report = audit(["cat", "cat", "dog"], ["cat", "dog", "dog"], ids=["a.png", "b.png", "c.png"])
            >>> report.mistakes().row(0)
            (1, 'b.png', 'cat', 'dog', '')
        """
        from classgap.measure.samples import mistakes

        return mistakes(self, class_name, n)

    def mislabelled(self, below: float = 0.1) -> pl.DataFrame:
        """The samples whose label is probably wrong, most suspicious first, as a polars table; needs scores of held-out data.

        Columns: ``row`` (from 0), ``id``, ``label``, ``suggested`` (the class of which the model is confident instead),
        ``probability_label``, ``probability_suggested``, ``path`` and ``text``; what was not given is left out.

        Args:
            below: A label is suspect if the model gives it at most this share of the mean probability for its class, and
                gives another class at least ``1 - below`` of the mean probability for that class. A larger value lists more of
                the wrong labels (recall) but also more correct ones (precision); ``docs/audit.md`` has both rates.
        """
        from classgap.measure.samples import mislabelled

        return mislabelled(self, below)

    @cached_property
    def suspects(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of :meth:`mislabelled` and the suggested class of each; computed once, empty without scores."""
        from classgap.measure.samples import suspects

        return suspects(self)

    def hardest(self, n: int | None = None) -> NDArray[np.void]:
        """Records of the ``n`` classes with the lowest accuracy, lowest first; classes without samples, or without weight, are
        left out.
        """
        known = self.per_class[~np.isnan(self.per_class["accuracy"])]
        return np.asarray(known[np.argsort(known["accuracy"], kind="stable")[:n]])

    @property
    def weighted(self) -> bool:
        """Whether the accuracies use sample weights."""
        return "effective_support" in (self.per_class.dtype.names or ())

    def more_test_samples(self, half_width: float = 0.05, *, more: int = 100) -> NDArray[np.void]:
        """What more test samples would do to the interval of each class, widest interval first.

        Args:
            half_width: ``needed`` is the number of further samples of the class for an interval of this half-width at the
                observed accuracy; ``needed_at_most`` allows any accuracy within the present interval.
            more: ``half_width_with_more`` is the expected half-width with this many further samples of the class.
        """
        from classgap.checks import InputError, number, whole
        from classgap.measure.statistics.planning import plan

        number("half_width", half_width, low=0.001, high=0.5)
        whole("more", more, low=1)
        rows = self.per_class
        if self.weighted:
            raise InputError("more_test_samples does not support sample weights; audit without sample_weight")
        accuracy, support = rows["accuracy"], rows["support"]
        return plan(rows["name"], accuracy, support, wanted=half_width, more=more, confidence=self.confidence)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON (nan is None). ``docs/audit.md`` describes every key."""
        from classgap import __version__

        headlines = {name: asdict(self.metrics[name]) for name in HEADLINES}
        sections = {
            name: section.summary() if (section := getattr(self, name)) is not None else None
            for name in ("margins", "calibration", "ranking", "prediction_sets", "geometry", "bounds")
        }
        tree: dict[str, Any] = json_ready(
            {
                **headlines,
                "schema_version": SCHEMA_VERSION,
                "classgap_version": __version__,
                "num_samples": self.num_samples,
                "num_classes": self.num_classes,
                "confidence": self.confidence,
                "seed": self.seed,
                "verdict": self.verdict,
                "homogeneity": asdict(self.homogeneity),
                "metrics": {name: asdict(estimate) for name, estimate in self.metrics.items()},
                "groups": {
                    ranking: {group: asdict(estimate) for group, estimate in groups.items()}
                    for ranking, groups in self.groups.items()
                },
                "per_class": records(self.per_class),
                "confused_pairs": [
                    asdict(pair) | {"true": self.classes[pair.true], "predicted": self.classes[pair.predicted]}
                    for pair in self.confusion.worst_pairs(PAIRS_LISTED)
                ],
                "diagnoses": [asdict(diagnosis) for diagnosis in self.diagnoses],
                **sections,
                "threshold": None if self.threshold is None else self.threshold.to_dict(),
                "test_samples": [] if self.weighted else records(self.more_test_samples()),
                "slices": None if self.slices is None else self.slices.to_dict(),
                "margin_levels": None if self.margin_levels is None else asdict(self.margin_levels),
                "sampling": None if self.sampling is None else self.sampling.to_dict(),
                "notes": list(self.notes),
            }
        )
        return tree

    def to_markdown(self, *, classes: int = 10) -> str:
        """The report as Markdown: verdict, main numbers, hardest classes, confusions, causes, notes."""
        level = confidence_level(self.confidence)
        headline = [
            (label(name), percent(estimate.value), f"{percent(estimate.low)} – {percent(estimate.high)}")
            for name, estimate in self.metrics.items()
            if name in HEADLINES or name in ("worst_corrected", "gap_corrected")
        ]
        parts = [
            f"## Class audit: {self.num_classes} classes, {self.num_samples:,} samples",
            f"**{escape(self.verdict)}**",
            markdown_table(("", "accuracy", f"{level} interval"), headline),
            *self._markdown_rankings(),
            *self._markdown_margins(),
            f"### Hardest {len(self.hardest(classes))} classes",
            self._markdown_hardest(classes),
        ]
        pairs = self.confusion.worst_pairs(classes)
        if pairs:
            rows = [(self.classes[p.true], self.classes[p.predicted], str(p.count), percent(p.share)) for p in pairs]
            parts += [
                "### Most frequent confusions",
                markdown_table(("true", "predicted", "samples", "share of the true class"), rows),
            ]
        if self.diagnoses:
            parts += [
                "### Causes",
                "\n".join(
                    f"- **{escape(diagnosis.name)}**: {escape(diagnosis.sentence)}"
                    for diagnosis in self.diagnoses[:classes]
                ),
            ]
        parts += self._markdown_sections()
        if self.notes:
            parts += ["### Notes", "\n".join(f"- {escape(note)}" for note in self.notes)]
        return "\n\n".join(parts) + "\n"

    def _markdown_rankings(self) -> list[str]:
        rows = [
            (ranking, *(percent(groups[group].value) for group in groups), RANKINGS[ranking])
            for ranking, groups in self.groups.items()
            if "easy" in groups
        ]
        parts = ["### Thirds by ranking", markdown_table(("ranking", "easy", "medium", "hard", "meaning"), rows)]
        if "frequency" in self.groups:
            row = [tuple(str(estimate) for estimate in self.groups["frequency"].values())]
            parts += ["### Groups by number of training samples", markdown_table(tuple(self.groups["frequency"]), row)]
        return parts

    def _markdown_sections(self) -> list[str]:
        parts = []
        for section in sections(self):
            parts += [f"### {escape(section.title)}", " ".join(map(escape, section.text))]
            for table in section.listings:
                parts += [f"**{escape(table.title)}**", markdown_table(table.headings, table.cells)]
                parts += [table.remark] if table.remark else []
        return parts

    def _markdown_margins(self) -> list[str]:
        if self.margin_levels is None:
            return []
        levels = self.margin_levels
        head = ("", *levels.output, "classifier angle")
        cells = [f"{estimate.value:.3f}" for estimate in levels.output.values()] + [f"{levels.classifier:.1f}°"]
        row = ("mean output margin", *("–" if cell.startswith("nan") else cell for cell in cells))
        return ["### Margins by third", markdown_table(head, [row])]

    def _markdown_hardest(self, count: int) -> str:
        rows = [
            (str(r["name"]), str(r["support"]), percent(r["accuracy"]), f"{percent(r['low'])} – {percent(r['high'])}")
            for r in self.hardest(count)
        ]
        return markdown_table(("class", "samples", "accuracy", f"{confidence_level(self.confidence)} interval"), rows)

    def to_pandas(self) -> pd.DataFrame:
        """The classes as a data frame with one row per class, indexed by name."""
        return columns_frame(self.per_class)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page and return its path."""
        html_module().render_audit(self, path)
        return Path(path)
