"""The report page: one self-contained HTML file that opens from disk and needs no network.

The content security policy of the page forbids every request, so the browser enforces "no network".
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jinja2
import numpy as np
from markupsafe import Markup

import classgap
from classgap.measure.render import page_tables as tables
from classgap.measure.render import plot
from classgap.measure.render.page_samples import page_samples
from classgap.measure.render.plain import confidence_level, percent, points
from classgap.measure.render.sections import sections
from classgap.measure.statistics.groups import RANKINGS, THIRDS
from classgap.measure.statistics.metrics import METRICS
from classgap.writing import write

if TYPE_CHECKING:
    import altair as alt

    from classgap.measure.audit_report import AuditReport, Estimate
    from classgap.measure.comparison import Comparison
    from classgap.measure.diagnostics.causes.diagnosis import Cause

Charts: TypeAlias = "Mapping[str, alt.TopLevelMixin]"
_SAMPLES_NAMED = 12
_TILES = ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_decile", "gap")
_COMPARISON_FIGURES = {
    "frontier": (
        "Effect of each method",
        "Change of the classes that were hard before against change of the overall accuracy, on samples that were not used to "
        "fit or choose a method. s is the strength of the gap dial, lines are 95 % intervals, the ring marks the chosen method.",
    ),
}
_FIGURES = {
    "spread_accuracy": ("Spread against accuracy", "Each dot is a class. {correlation}"),
    "margins": (
        "Margin distributions",
        "Score of the true class minus the highest score of another class, in each third of classes. Samples left of 0 are "
        "misclassified.",
    ),
    "max_distances": (
        "Largest distances within classes",
        "Distance of a sample to the farthest sample of its class, divided by the length of the longest feature vector, in each "
        "third of classes (ELM's d_max). Compact classes are on the left.",
    ),
    "reliability": (
        "Reliability",
        "Accuracy against confidence. Points below the diagonal are over-confident; larger points contain more samples.",
    ),
    "precision_recall": (
        "Precision and recall",
        "Classes with the lowest average precision, each against all other classes, by the probability of the class. Large drops "
        "on the left are other classes that the model confuses with it confidently.",
    ),
    "embedding": (
        "The hardest classes and their most frequent errors",
        "Features in two dimensions by t-SNE: neighbourhoods are meaningful, distances between clusters are not. "
        "Crosses are misclassified samples.",
    ),
}
# Colour of the banner by the kind of the verdict.
_TONES = {"closed": "good", "better": "good", "better_hard": "good", "traded": "bad", "widened": "bad", "worse": "bad"}


def render_audit(
    report: AuditReport,
    path: Path | str | None = None,
    *,
    source: str = "",
    charts: Charts | None = None,
    below: float = 0.1,
) -> str:
    """The page of an audit; also written to ``path`` if one is given.

    Args:
        source: Name of the prediction files, shown under the verdict.
        charts: Figures that :func:`classgap.measure.render.plot.figures` has already created.
        below: Limit of the suspected labels, see :meth:`AuditReport.mislabelled`.
    """
    pairs, pairs_note = tables.pair_table(report.confusion, report.classes, report.per_class["group"].tolist())
    charts = plot.figures(report) if charts is None else charts
    has_pairs = bool(pairs["data"]["true"])
    has_diagnoses = any(d.causes for d in report.diagnoses)
    margins = tables.margin_table(report)
    samples = page_samples(report, below)
    more = sections(report)
    payload = {
        "tables": {
            "classes": tables.class_table(report),
            "groups": tables.group_table(report),
            "metrics": tables.metric_table(report),
        }
        | ({"pairs": pairs} if has_pairs else {})
        | ({} if margins is None else {"margins": margins})
        | samples.tables
        | {part.key: tables.section_table(part) for section in more for part in section.listings},
        "diagnoses": [
            {"name": d.name, "causes": [_cause(c, report) for c in d.causes]} for d in report.diagnoses if d.causes
        ],
    }
    return render_page(
        "audit.html.j2", payload, charts, path,
        title="classgap audit" + (f": {source}" if source else ""),
        report=report, **verdict_parts(report.verdict), hardest=_hardest(report),
        tone="bad" if report.homogeneity.p_value < 1 - report.confidence else "neutral",
        facts=([source] if source else []) + _sampled(report),
        tiles=[_tile(report.metrics, name) for name in _TILES if name in report.metrics],
        rankings=[(name, RANKINGS[name]) for name in report.groups],
        has_pairs=has_pairs, pairs_note=pairs_note, has_diagnoses=has_diagnoses, has_margins=margins is not None,
        drawn=plot.drawn_sentence(report.num_classes), more_figures=_figures(report, charts), samples=samples, sections=more,
        links=_links(slices=report.slices is not None, why=has_diagnoses, confusions=has_pairs, accuracy=True,
                     figures=any(name in charts for name in _FIGURES), mistakes="mistakes" in samples.tables,
                     labels="labels" in samples.tables),
        notes=(*report.notes, *samples.notes), confidence=report.confidence, seed=report.seed,
    )  # fmt: skip


def render_comparison(
    comparison: Comparison, path: Path | str | None = None, *, source: str = "", charts: Charts | None = None
) -> str:
    """The page of a comparison, with the arguments of :func:`render_audit`."""
    pairs, pairs_note = tables.pair_change_table(comparison)
    has_pairs = bool(pairs["data"]["true"])
    charts = plot.figures(comparison) if charts is None else charts
    payload = {
        "tables": {
            "classes": tables.change_table(comparison),
            "groups": tables.group_change_table(comparison),
            "metrics": tables.metric_change_table(comparison),
        }
        | ({"pairs": pairs} if has_pairs else {}),
        "diagnoses": [],
    }
    facts = ([source] if source else []) + (
        [f"{len(comparison.before)} runs before, {len(comparison.after)} after"] if comparison.several_runs else []
    )
    shown = min(plot.NAMED_CLASSES, comparison.num_classes)
    return render_page(
        "comparison.html.j2", payload, charts, path,
        title="classgap compare" + (f": {source}" if source else ""),
        comparison=comparison, **verdict_parts(comparison.verdict.sentence, comparison.verdict.headline), tone=_tone(comparison),
        facts=facts, significant_changes=_significant_changes(comparison),
        tiles=[_change_tile(comparison, name) for name in _TILES if name in comparison.metrics],
        more_figures=[(name, *words) for name, words in _COMPARISON_FIGURES.items() if name in charts],
        dumbbell_caption="All classes, largest gain first." if shown == comparison.num_classes
        else f"The {shown} of {comparison.num_classes:,} classes with the largest gains and losses.",
        rankings=[(name, RANKINGS[name]) for name in comparison.groups], drawn=plot.drawn_sentence(comparison.num_classes),
        has_pairs=has_pairs, pairs_note=pairs_note,
        links=_links(changes=True, confusions=has_pairs),
        notes=comparison.notes, confidence=comparison.confidence, seed=comparison.seed,
    )  # fmt: skip


# ---------------------------------------------------------------- parts


def _tone(comparison: Comparison) -> str:
    """Colour of the banner. With a significant loss, a good verdict becomes neutral and "no significant change" bad."""
    verdict = comparison.verdict
    if not verdict.losses:
        return _TONES.get(verdict.kind, "neutral")
    return "neutral" if _TONES.get(verdict.kind) == "good" else "bad"


def verdict_parts(sentence: str, title: str = "") -> dict[str, str]:
    """The verdict has the form "title: rest"; the page shows the two parts in different sizes."""
    title = title or sentence.partition(": ")[0]
    title, rest = (part.replace(" %", "\u00a0%") for part in (title, sentence[len(title) + 2 :]))
    return {"verdict_title": title, "verdict_rest": rest[:1].upper() + rest[1:]}


def _figures(report: AuditReport, charts: Charts) -> list[tuple[str, str, str]]:
    """Name, title and caption of the further figures; the caption of the spread contains the measured correlation."""
    found = _spread_correlation(report) if "spread_accuracy" in charts else ""
    found += plot.drawn_sentence(report.num_classes)
    return [
        (name, title, text.replace("{correlation}", found))
        for name, (title, text) in _FIGURES.items()
        if name in charts
    ]


def _spread_correlation(report: AuditReport) -> str:
    """Rank correlation of spread and accuracy over the classes, as a sentence."""
    from scipy.stats import spearmanr

    spread, accuracy = report.per_class["spread"], report.per_class["accuracy"]
    known = ~np.isnan(spread) & ~np.isnan(accuracy)
    if known.sum() < 5 or np.ptp(spread[known]) == 0 or np.ptp(accuracy[known]) == 0:
        return "There are too few different classes for a correlation of spread and accuracy."
    value, p_value = spearmanr(spread[known], accuracy[known])
    numbers = f"rank correlation {value:+.2f}, {'p < 0.001' if p_value < 0.001 else f'p = {p_value:.2g}'}"
    if p_value >= 1 - report.confidence:
        return f"Spread and accuracy are not significantly related here ({numbers})."
    return f"Classes with larger spread are {'less' if value < 0 else 'more'} accurate here ({numbers})."


def _hardest(report: AuditReport, count: int = 5) -> list[tuple[str, float]]:
    return [(str(row["name"]), float(row["accuracy"])) for row in report.hardest(count)]


def _sampled(report: AuditReport) -> list[str]:
    """Which rows the curves, causes and mistakes of a large table are from."""
    found = report.sampling
    if found is None:
        return []
    return [f"curves, causes and mistakes: sample of {found.rows:,} rows (seed {found.seed})"]


def _cause(cause: Cause, report: AuditReport) -> dict[str, Any]:
    ids = None if report.samples is None else report.samples.ids
    numbers = None if report.samples is None else report.samples.row_numbers
    rows = cause.samples[:_SAMPLES_NAMED]
    named = [f"row {row if numbers is None else numbers[row]}" if ids is None else str(ids[row]) for row in rows]
    more = ["…"] if len(cause.samples) > _SAMPLES_NAMED else []
    return {"title": cause.title, "sentence": cause.sentence, "remedies": cause.remedies, "samples": named + more}


def _tile(metrics: Mapping[str, Estimate], name: str) -> dict[str, Any]:
    metric = METRICS[name]
    return {"name": name, "label": metric.label, "meaning": metric.meaning, "estimate": metrics[name],
            "corrected": metrics.get(f"{name}_corrected")}  # fmt: skip


def _change_tile(comparison: Comparison, name: str) -> dict[str, Any]:
    metric, change = METRICS[name], comparison.metrics[name]
    title, meaning = metric.label, metric.meaning
    if name in THIRDS:  # the same classes and numbers as in the verdict
        change = comparison.groups["cross"][name]
        title = f"{name} before"
        meaning = f"mean accuracy of the classes that were {name} before (cross-fitted ranking)"
    better, worse = ("up", "down") if metric.higher_is_better else ("down", "up")
    tone = better if change.delta.low > 0 else worse if change.delta.high < 0 else ""
    return {"name": name, "label": title, "meaning": meaning, "change": change, "tone": tone}


def _significant_changes(comparison: Comparison) -> str:
    def names(rows: Any) -> str:
        listed = ", ".join(f"{row['name']} ({_page_points(row['delta'])})" for row in rows[:5])
        return listed + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")

    improved, worsened = comparison.improved, comparison.worsened
    first = (
        f"Classes that improved significantly: {names(improved)}."
        if len(improved)
        else "No class improved significantly."
    )
    second = (
        f"Classes that got worse significantly: {names(worsened)}."
        if len(worsened)
        else "No class got worse significantly."
    )
    return f"{first} {second}"


def _links(**present: bool) -> list[tuple[str, str]]:
    order = (
        "accuracy",
        "changes",
        "why",
        "mistakes",
        "labels",
        "slices",
        "classes",
        "confusions",
        "figures",
        "numbers",
    )
    return [(name, name.capitalize()) for name in order if present.get(name, name in ("classes", "numbers"))]


# ---------------------------------------------------------------- page


def render_page(template: str, payload: dict[str, Any], charts: Charts, path: Path | str | None,
          **context: Any) -> str:  # fmt: skip
    specs = {name: chart.to_dict() for name, chart in charts.items()}
    for spec in specs.values():
        spec.pop("config", None)
    payload |= {"figures": specs, "themes": {theme: plot.theme_config(theme) for theme in ("light", "dark")}}
    environment = _environment()
    context["confidence"] = confidence_level(context["confidence"])
    text = environment.get_template(template).render(
        payload=embed_json(payload), style=Markup(_asset("page.css")), script=_inline_script(_asset("page.js")),
        vega=_vega(), version=classgap.__version__, figures=frozenset(specs), **context,
    )  # fmt: skip
    if path is not None:
        write(path, text)
    return text


def embed_json(value: Any) -> Markup:
    """JSON for the inside of a ``<script>`` element: no text in it can end the element or begin a comment.

    Example:
        >>> embed_json({"name": "</script>"})
        Markup('{"name":"\\\\u003c/script\\\\u003e"}')
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _inline_script(source: str) -> Markup:
    # The function scope separates the names of the two scripts; a closing tag in a string is escaped.
    return Markup("(() => {" + source.replace("</script", "<\\/script") + "\n})();")


@functools.cache
def _vega() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script; building it takes seconds, so it is stored in the user's cache folder."""
    import vl_convert

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "classgap"
    kept = folder / f"vega-{version('vl-convert-python')}.js"
    try:
        return Markup(kept.read_text(encoding="utf-8"))
    except OSError:
        script = _inline_script(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its type stub omits the default
    with contextlib.suppress(OSError):  # without a writable cache folder, the script is built again next time
        write(kept, script)
    return script


def _asset(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "percent": _page_percent, "points": _page_points, "unit": lambda v: f"{min(1.0, max(0.0, v)):.4f}",
        "interval": lambda e: f"{_page_percent(e.low)[:-2]} – {_page_percent(e.high)[:-2]}" if math.isfinite(e.low) else "",
        "points_interval": lambda e: f"{_page_points(e.low)} to {_page_points(e.high)}" if math.isfinite(e.low) else "",
    }  # fmt: skip
    environment.tests["known"] = lambda e: math.isfinite(e.value) and math.isfinite(e.low) and math.isfinite(e.high)
    return environment


def _page_percent(share: float) -> str:
    """:func:`percent` with a space that does not break the line."""
    return percent(share).replace(" ", "\u00a0")


def _page_points(share: float) -> str:
    """:func:`points` with a typographic minus."""
    return points(share).replace("-", "−")
