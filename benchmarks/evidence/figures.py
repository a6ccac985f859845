"""The pictures of docs/evidence.md, drawn from the committed results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from classgap.measure.render import plot
from classgap.measure.statistics.groups import THIRDS
from classgap.suites import Result, Suite
from classgap.suites.tables import TaskTables

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
COMPACT, REFERENCE, CONSTANT = "compact logits", "cross_entropy", "compact logits, constant pull"
DEFAULT_WEIGHT = 0.02
WEIGHT = re.compile(rf"{CONSTANT}, λ=([\d.]+)")
AUTHORS_SCALING = re.compile(r"scaling of the authors' code, λ=([\d.]+)")
MARGIN = re.compile(r"γ only, c̄=([\d.]+)")
MEASURES = {"overall": "#3f8fd2", "hard third": "#e8703a"}
Found = Sequence[tuple[Suite, Mapping[str, Result], list[TaskTables]]]
Records = list[dict[str, Any]]


def draw(found: Found, superseded: Found) -> list[tuple[str, str]]:
    """Write every picture that there are results for; returns the file name and the caption of each."""
    made = (
        ("evidence_weight", _curve(_points(found, WEIGHT), "λ, pull between logits"), WEIGHT_CAPTION),
        (
            "evidence_authors_scaling",
            _curve(_points(superseded, AUTHORS_SCALING), "λ, scaling of the authors' code"),
            SCALING_CAPTION,
        ),
        ("evidence_margin", _curve(_points(found, MARGIN), "mean margin c̄, no pull"), MARGIN_CAPTION),
        ("evidence_spread_effect", _effect(_class_changes(found)), EFFECT_CAPTION),
        ("evidence_spread_course", _course(_spread_courses(found)), COURSE_CAPTION),
    )
    kept = []
    for name, chart, caption in made:
        if chart is not None:
            plot.save(chart, IMAGES / f"{name}.svg")
            kept.append((f"{name}.svg", caption))
    return kept


WEIGHT_CAPTION = (
    "**Compact logits with a constant pull: weight of the pull.** Difference to cross-entropy in points, with its 95 % "
    "interval, against λ. `CompactLogitsLoss(num_classes)` has λ=0.02 and scales the pull by (batch accuracy)⁴. Hard third: "
    "cross-fitted ranking."
)
SCALING_CAPTION = (
    "**Representation margin with the scaling of the authors' code: its weight.** The pull between features with exponent / 10d, "
    "factor d/10 and a mean over classes; c̄=1. Superseded runs (see the end of [evidence_runs.md](evidence_runs.md))."
)
MARGIN_CAPTION = (
    "**MR² with λ=0: mean logit margin.** The same against c̄, without the representation margin. At c̄=2 a uniform temperature "
    "of 2 gives nearly the same numbers ([evidence_runs.md](evidence_runs.md))."
)
EFFECT_CAPTION = (
    "**Which classes improve with compact logits?** Change of the accuracy of each class against the spread of its features "
    "under cross-entropy, relative to the mean class; r is the correlation of spread with *accuracy* under cross-entropy. "
    "Margins from spread can favour hard classes only where r is clearly negative."
)
COURSE_CAPTION = (
    "**Spread of the features during training**, by third of the classes, ranked on validation data in each epoch; "
    "mean over seeds."
)


def draw_situations(rows: Records) -> str:
    """Write the picture of what to do by situation; returns the name of the file.

    Each row has ``situation``, ``action``, ``measure``, ``value``, ``low`` and ``high``, the last three in points.
    """
    colours = {name: colour for name, colour in plot.GROUPS.items() if name != "medium"}
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    ticks = [-5, -2, 0, 2, 5, 10, 20]
    axis = alt.Axis(values=ticks, title="change of the accuracy in points", grid=True)
    across = {"scale": alt.Scale(type="symlog", constant=3), "axis": axis}
    base = alt.Chart().encode(
        alt.Y("action:N", sort=None, title=None, axis=alt.Axis(labelLimit=430, labelPadding=8)),
        alt.YOffset("measure:N", sort=list(colours)),
        alt.Color("measure:N", scale=scale, sort=list(colours), legend=alt.Legend(title=None)),
    )
    layers = (
        alt.Chart().mark_rule(strokeDash=[4, 4]).encode(x=alt.datum(0)),
        base.mark_rule(strokeWidth=2.5, opacity=0.6).encode(alt.X("low:Q", **across), alt.X2("high:Q")),
        base.mark_circle(size=55, opacity=1).encode(alt.X("value:Q", **across)),
    )
    chart = alt.layer(*layers).properties(width=330, height=alt.Step(11))
    chart.data = alt.InlineData(values=rows)
    header = alt.Header(title=None, labelOrient="top", labelAnchor="start", labelFontWeight="bold")
    order = list(dict.fromkeys(row["situation"] for row in rows))
    facets = chart.facet(row=alt.Row("situation:N", sort=order, header=header), spacing=10)
    name = "evidence_situations.svg"
    plot.save(facets.resolve_scale(y="independent"), IMAGES / name)
    return name


def _setting(name: str, pattern: re.Pattern[str]) -> float | None:
    if pattern is WEIGHT and name == CONSTANT:
        return DEFAULT_WEIGHT
    match = pattern.fullmatch(name)
    return float(match[1]) if match else None


def _points(found: Found, pattern: re.Pattern[str]) -> Records:
    rows: Records = []
    for title, task in _tasks(found):
        values = {name: _setting(name, pattern) for name in task.comparisons}
        settings = {name: value for name, value in values.items() if value is not None}
        if len(settings) < 3:
            continue
        for name, value in settings.items():
            comparison = task.comparisons[name]
            deltas = {"overall": comparison.metrics["overall"], "hard third": comparison.groups["cross"]["hard"]}
            rows += [
                {"task": title, "setting": value, "measure": measure}
                | {key: round(100 * getattr(d.delta, key), 3) for key in ("value", "low", "high")}
                for measure, d in deltas.items()
            ]
    return rows


def _tasks(found: Found) -> Iterator[tuple[str, TaskTables]]:
    for suite, _, tables in found:
        for task in tables:
            yield f"{suite.name}: {task.task.name}", task


def _runs(suite: Suite, results: Mapping[str, Result], task: str, variant: str) -> list[Result]:
    """The runs of a variant, found by their configuration."""
    wanted = (job.key for job in suite.jobs() if (job.task, job.variant) == (task, variant))
    return [results[key] for key in wanted if key in results and not results[key].diverged]


def _curve(rows: Records, title: str) -> alt.TopLevelMixin | None:
    if not rows:
        return None
    colour = alt.Color(
        "measure:N",
        scale=alt.Scale(domain=list(MEASURES), range=list(MEASURES.values())),
        legend=alt.Legend(title=None),
    )
    across = alt.X("setting:Q", scale=alt.Scale(type="log", nice=False), title=title)
    axis = alt.Y("value:Q", title="points against cross-entropy")
    base = alt.Chart().encode(across, colour)
    zero = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    layers = (
        zero,
        base.mark_rule(strokeWidth=2, opacity=0.5).encode(y="low:Q", y2="high:Q"),
        base.mark_line(opacity=0.6).encode(axis),
        base.mark_circle(size=60, opacity=1).encode(axis),
    )
    return _side_by_side(alt.layer(*layers), rows)


def _side_by_side(chart: Any, rows: Records, *, height: int = 200) -> alt.TopLevelMixin:
    """One panel for each task, each with its own scale."""
    sized = chart.properties(width=230, height=height)
    sized.data = alt.InlineData(values=rows)
    facets = sized.facet(facet=alt.Facet("task:N", title=None, sort=None), columns=3)
    return facets.resolve_scale(y="independent", x="independent")  # type: ignore[no-any-return]


def _class_changes(found: Found) -> Records:
    rows: Records = []
    for suite, results, tables in found:
        for task in tables:
            if COMPACT not in task.comparisons:
                continue
            runs = [
                r for r in results.values() if (r.task, r.variant) == (task.task.name, REFERENCE) and r.class_spread
            ]
            if not runs:
                continue
            spread = np.mean([np.asarray(run.class_spread, float) for run in runs], axis=0)
            table = task.comparisons[COMPACT].per_class
            table = table[table["support"] > 0]
            r = float(np.corrcoef(spread, table["before"])[0, 1])
            title = f"{suite.name}: {task.task.name} (r = {r:+.2f})"
            rows += [
                {"task": title, "spread": round(float(s / spread.mean()), 4), "change": round(100 * float(c), 3)}
                for s, c in zip(spread, table["delta"], strict=True)
            ]
    return rows


def _effect(rows: Records) -> alt.TopLevelMixin | None:
    if not rows:
        return None
    points = (
        alt.Chart()
        .mark_circle(size=36, opacity=0.75, color=MEASURES["overall"])
        .encode(
            alt.X("spread:Q", title="spread, 1 = mean class", scale=alt.Scale(zero=False)),
            alt.Y("change:Q", title="change in points"),
        )
    )
    zero = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    return _side_by_side(alt.layer(zero, points), rows)


def _spread_courses(found: Found) -> Records:
    rows: Records = []
    for suite, results, tables in found:
        for task in tables:
            for variant in (REFERENCE, COMPACT):
                runs = _runs(suite, results, task.task.name, variant)
                for third in THIRDS:
                    curves = [r.curve[f"spread_{third}"] for r in runs if f"spread_{third}" in r.curve]
                    if not curves:
                        continue
                    mean = np.mean(np.asarray(curves, float), axis=0)
                    rows += [
                        {"task": f"{suite.name}: {task.task.name}", "variant": variant, "third": third}
                        | {"epoch": epoch, "spread": round(float(value), 4)}
                        for epoch, value in enumerate(mean, 1)
                    ]
    return rows


def _course(rows: Records) -> alt.TopLevelMixin | None:
    if not rows:
        return None
    lines = (
        alt.Chart()
        .mark_line()
        .encode(
            alt.X("epoch:Q"),
            alt.Y("spread:Q", title="‖s‖", scale=alt.Scale(zero=False)),
            alt.Color(
                "third:N", scale=alt.Scale(domain=list(plot.GROUPS), range=list(plot.GROUPS.values())), title=None
            ),
            alt.StrokeDash("variant:N", sort=None, title=None),
        )
    )
    return _side_by_side(lines, rows)
