"""The frontier of the gap dial against that of its rough forerunner: gain of the hard third at equal overall accuracy."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from classgap.measure.render import plot
from classgap.suites.tables import mean_interval

IMAGE = Path(__file__).resolve().parents[1] / "docs" / "images" / "posthoc_frontier.svg"
DIALS = {"gap_dial": "#e8703a", "rough dial": "#5c6773"}
SETTING = re.compile(rf"({'|'.join(DIALS)}) \(([\d.]+)\)")
HEADS = {"linear": "linear", "mlp": "one hidden layer"}
AT = {"balanced": (-0.1, -0.3, -0.5, -1.0, -1.5, -2.0), "long-tailed": (7.0, 6.5, 6.0, 5.5, 5.0)}

Line = Mapping[str, Any]
Point = tuple[float, float]  # change overall and of the hard third (or the worst ten classes), in points


def curve(lines: Sequence[Line], dial: str, metric: str = "hard") -> dict[float, Point]:
    """What each strength of one dial does on one head, from off (no change) upwards."""
    found = {0.0: (0.0, 0.0)}
    for line in lines:
        match = SETTING.fullmatch(line["method"])
        if match and match[1] == dial:
            found[float(match[2])] = 100 * line["overall"]["delta"], 100 * line[metric]["delta"]
    return dict(sorted(found.items()))


def reached(points: Sequence[Point], overall: float) -> float:
    """Largest gain with overall no lower than this, on straight lines between strengths; nan if there is none."""
    gains = [hard for at, hard in points if at >= overall]
    for (a, gain), (b, next_gain) in itertools.pairwise(points):
        if min(a, b) < overall < max(a, b):
            gains.append(gain + (next_gain - gain) * (overall - a) / (b - a))
    return max(gains, default=math.nan)


def table(lines: Sequence[Line]) -> str:
    """Both dials at equal overall accuracy as Markdown: means over seeds, and paired differences with their t intervals."""
    sides = ("gap dial", "rough dial", "difference")
    columns = (
        "head",
        "training set",
        "overall",
        *(f"{what}: {side}" for what in ("hard", "worst ten") for side in sides),
    )
    out = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for (head, task), seeds in _by_seed(lines).items():
        for overall in AT[task]:
            cells = [HEADS[head], task, f"{overall:+.1f}"]
            for metric in ("hard", "worst_decile"):
                ours, rough = (
                    np.array([reached(list(curve(seed, dial, metric).values()), overall) for seed in seeds])
                    for dial in DIALS
                )
                cells += [_mean(ours), _mean(rough), _difference(ours - rough)]
            out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def figure(lines: Sequence[Line]) -> None:
    """Both dials, means over seeds, with what the default rule chose."""
    rows = list(_rows(lines))
    base = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("overall:Q", title="change overall, points", scale=alt.Scale(zero=False))
    y = alt.Y("hard:Q", title="change of the hard third, points", scale=alt.Scale(zero=False))
    colour = alt.Color(
        "dial:N",
        title=None,
        scale=alt.Scale(domain=list(DIALS), range=list(DIALS.values())),
        legend=alt.Legend(orient="top"),
    )
    path = base.transform_filter("datum.strength != null").encode(x, y, colour, order="strength:Q")
    ring = base.transform_filter("datum.strength == null").mark_point(size=180, strokeWidth=2).encode(x, y, colour)
    layers = alt.layer(path.mark_line(), path.mark_point(filled=True, size=35, opacity=1), ring, width=300, height=230)
    chart = layers.facet(alt.Facet("panel:N", title=None, sort=None), columns=2)
    plot.save(chart.resolve_scale(x="independent", y="independent"), IMAGE)


def _by_seed(lines: Sequence[Line]) -> dict[tuple[str, str], list[list[Line]]]:
    """Lines of each head and training set, seed by seed."""
    keys = [(head, task) for task in AT for head in HEADS]
    here = {key: [line for line in lines if (line["head"], line["task"]) == key] for key in keys}
    return {
        key: [[line for line in found if line["seed"] == seed] for seed in sorted({line["seed"] for line in found})]
        for key, found in here.items()
    }


def _rows(lines: Sequence[Line]) -> Any:
    for (head, task), seeds in _by_seed(lines).items():
        panel = f"{task}, {HEADS[head]} head" if head == "linear" else f"{task}, {HEADS[head]}"
        chosen = [line for seed in seeds for line in seed if line["method"] == "gap_dial (chosen)"]
        means = [(None, [[100 * line[m]["delta"] for m in ("overall", "hard")] for line in chosen], "gap_dial")]
        for dial in DIALS:
            curves = [curve(seed, dial) for seed in seeds]
            means += [(s, [c[s] for c in curves], dial) for s in curves[0] if s > 0]
        for strength, points, dial in means:
            overall, hard = np.mean(points, axis=0)
            yield {"panel": panel, "dial": dial, "strength": strength, "overall": overall, "hard": hard}


def _mean(gains: np.ndarray) -> str:
    return (
        f"{gains.mean():+.1f}"
        if not np.isnan(gains).any()
        else f"not reached ({np.isnan(gains).sum()} of {len(gains)})"
    )


def _difference(gains: np.ndarray) -> str:
    if np.isnan(gains).any():
        return ""
    mean, half = mean_interval(list(gains))
    text = f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
    return f"**{text}**" if abs(mean) > half else text
