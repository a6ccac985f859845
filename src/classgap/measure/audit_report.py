"""What an audit returns: :class:`AuditReport`, and the :class:`Estimate` every number in it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.render import notebook
from classgap.measure.render.plain import (
    columns_frame,
    escape,
    html_module,
    json_ready,
    markdown_table,
    percent,
    records,
)
from classgap.measure.statistics.groups import RANKINGS
from classgap.measure.statistics.metrics import label
from classgap.predictions import Confusion, Predictions

if TYPE_CHECKING:
    import pandas as pd

    from classgap.measure.diagnostics.bounds import Bounds
    from classgap.measure.diagnostics.calibration import Calibration
    from classgap.measure.diagnostics.causes.diagnosis import Diagnosis
    from classgap.measure.diagnostics.geometry.summary import Geometry
    from classgap.measure.diagnostics.margins import Margins

SCHEMA_VERSION = 1
HEADLINES = ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_decile", "gap")
_PAIRS_LISTED = 100


@dataclass(frozen=True)
class Estimate:
    """A number with its interval: ``low <= value <= high``, all nan when there is nothing to estimate from."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Homogeneity:
    """Test of "all classes have the same accuracy": a small ``p_value`` says the gap is not sampling noise."""

    statistic: float
    p_value: float
    method: str


@dataclass(frozen=True)
class MarginLevels:
    """Margins at the output and at the classifier, by third of the classes (MR² Table 4).

    Attributes:
        output: For ``average`` (all classes), ``easy``, ``medium`` and ``hard`` (own ranking): mean over the classes of the group
            of their mean output margin, the probability of the true class minus the largest other one. The interval is
            over samples, with the groups taken as they are. All nan without scores.
        classifier: Smallest angle in degrees between the weight vectors of two classes; nan without a head.
    """

    output: Mapping[str, Estimate]
    classifier: float


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Which classes fail, and whether it is real. Made by :func:`classgap.audit`; views are methods.

    Attributes:
        classes: Class names; index ``k`` means ``classes[k]`` everywhere.
        confusion: The K×K count matrix.
        metrics: Every aggregate by name (:data:`classgap.measure.statistics.metrics.METRICS` explains each).
        groups: ``groups[ranking][group]``: mean class accuracy of a group of classes. Rankings are ``own``, ``cross``
            and, where given, ``reference`` and ``frequency`` (:data:`classgap.measure.statistics.groups.RANKINGS`).
        per_class: Structured array, one record a class: ``name, support, accuracy, low, high, precision, f1, group`` and
            whatever the scores, features and head allow.
        homogeneity: Whether the differences between classes exceed sampling noise.
        verdict: The same in one sentence.
        margin_levels: Output margins of the thirds and the angle of the classifier; None without scores and without a head.
        samples: The predictions audited; None when only counts were given.
        notes: What a reader must know, e.g. that a class has no samples.
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
    geometry: Geometry | None = None
    bounds: Bounds | None = None
    margin_levels: MarginLevels | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    samples: Predictions | None = None
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
        """Share of samples that are right."""
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
        """Lowest class accuracy, as observed; ``metrics["worst_corrected"]`` removes the luck of being lowest."""
        return self.metrics["worst"]

    @property
    def worst_decile(self) -> Estimate:
        """Mean accuracy of the worst tenth of classes."""
        return self.metrics["worst_decile"]

    @property
    def gap(self) -> Estimate:
        """Highest minus lowest class accuracy, as observed; ``metrics["gap_corrected"]`` removes sampling noise."""
        return self.metrics["gap"]

    def suspected_labels(self, below: float = 0.1) -> NDArray[np.int64]:
        """Rows of the samples whose label is probably wrong, most suspicious first; needs scores of held-out data.

        Args:
            below: A label is suspect if the model gives it at most this share of the probability that is usual for its class,
                while another class gets at least ``1 - below`` of its own. Larger finds more wrong labels, among more right ones;
                ``docs/audit.md`` has both rates.
        """
        from classgap.checks import InputError
        from classgap.measure.diagnostics.causes.mislabelled import suspected_labels

        samples = self.samples
        if samples is None or samples.scores is None:
            raise InputError("suspected_labels needs scores; audit with scores= (logits or probabilities)")
        kind: Any = samples.scores_kind
        return suspected_labels(samples.scores, samples.y_true, self.num_classes, kind, below=below)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON (nan is None). ``docs/audit.md`` describes every key."""
        from classgap import __version__

        headlines = {name: asdict(self.metrics[name]) for name in HEADLINES}
        sections = {
            name: section.summary() if (section := getattr(self, name)) is not None else None
            for name in ("margins", "calibration", "geometry", "bounds")
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
                    for pair in self.confusion.worst_pairs(_PAIRS_LISTED)
                ],
                "diagnoses": [asdict(diagnosis) for diagnosis in self.diagnoses],
                **sections,
                "margin_levels": None if self.margin_levels is None else asdict(self.margin_levels),
                "notes": list(self.notes),
            }
        )
        return tree

    def to_markdown(self, *, classes: int = 10) -> str:
        """The report for a pull request or a terminal: verdict, headline numbers, hardest classes, confusions, notes."""
        level = f"{self.confidence:.0%}"
        headline = [
            (label(name), percent(estimate.value), f"{percent(estimate.low)} – {percent(estimate.high)}")
            for name, estimate in self.metrics.items()
            if name in HEADLINES or name in ("worst_corrected", "gap_corrected")
        ]
        parts = [
            f"## Class audit: {self.num_classes} classes, {self.num_samples:,} samples",
            f"**{self.verdict}**",
            markdown_table(("", "accuracy", f"{level} interval"), headline),
            *self._markdown_rankings(),
            *self._markdown_margins(),
            f"### Hardest {min(classes, self.num_classes)} classes",
            self._markdown_hardest(classes),
        ]
        pairs = self.confusion.worst_pairs(classes)
        if pairs:
            rows = [(self.classes[p.true], self.classes[p.predicted], str(p.count), percent(p.share)) for p in pairs]
            parts += [
                "### Most frequent confusions",
                markdown_table(("true", "called", "samples", "of the class"), rows),
            ]
        if self.diagnoses:
            parts += [
                "### Why",
                "\n".join(
                    f"- **{escape(diagnosis.name)}**: {diagnosis.sentence}" for diagnosis in self.diagnoses[:classes]
                ),
            ]
        if self.notes:
            parts += ["### Notes", "\n".join(f"- {note}" for note in self.notes)]
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
            parts += ["### By training samples", markdown_table(tuple(self.groups["frequency"]), row)]
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
        present = self.per_class[self.per_class["support"] > 0]
        hardest = present[np.argsort(present["accuracy"], kind="stable")[:count]]
        rows = [
            (str(r["name"]), str(r["support"]), percent(r["accuracy"]), f"{percent(r['low'])} – {percent(r['high'])}")
            for r in hardest
        ]
        return markdown_table(("class", "samples", "accuracy", f"{self.confidence:.0%} interval"), rows)

    def to_pandas(self) -> pd.DataFrame:
        """The classes as a data frame, one row each, indexed by name."""
        return columns_frame(self.per_class)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page and return where."""
        html_module().render_audit(self, path)
        return Path(path)
