"""The verdict of a comparison: its kind, its title with every significant loss, and the evidence in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from classgap.arrays import Float64s
from classgap.measure.audit_report import Estimate
from classgap.measure.comparison import Change, Verdict
from classgap.measure.render.plain import points
from classgap.measure.statistics.pooling import Pooled

TITLES = {
    "closed": "Gap reduced, no loss detected",
    "better": "Better on hard and easy classes",
    "better_hard": "Better on the hard classes, no loss detected",
    "traded": "Better on the hard classes, worse elsewhere",
    "likely_hard": "Better, probably on the hard classes too",
    "not_hard": "Better, but not shown on the hard classes",
    "elsewhere": "Better, shown on easier classes only",
    "widened": "Worse on the hard classes, better elsewhere",
    "worse": "Worse",
    "noise": "No significant change",
}
# The titles if single classes, the worst class or the gap got significantly worse; or if only single classes improved.
WITH_LOSSES = {
    "closed": "Gap reduced on average",
    "better": "Better on average",
    "better_hard": "Better on the hard classes on average",
    "noise": "No significant change on average",
}
ONE_RUN = "on these test predictions (one run per side does not judge the training method)"


def any_change(judged: Iterable[Pooled], q_values: Float64s, confidence: float) -> bool:
    """Whether anything changed: the overall accuracy, one of the thirds, or single classes, which are one test.

    All claims of a comparison depend on this Bonferroni-corrected test, so that two runs of the same model show none with the
    stated confidence.

    Args:
        q_values: p-values of the classes after Benjamini-Hochberg correction; the smallest one tests all classes (Simes).
    """
    judged = list(judged)
    level = (1 - confidence) / (len(judged) + 1)
    estimates = [pooled.at(1 - level) for pooled in judged]
    classes = float(np.nan_to_num(q_values, nan=1.0).min(initial=1.0))
    return classes <= level or any(estimate.low > 0 or estimate.high < 0 for estimate in estimates)


def judge(
    judged: Mapping[str, Pooled],
    narrowing: Pooled,
    metrics: Mapping[str, Change],
    per_class: Any,
    confidence: float,
    *,
    changed: bool,
    one_run: bool,
) -> Verdict:
    """One of :data:`TITLES`, from the overall accuracy and the cross-fitted thirds (``judged``).

    Without ``changed`` (:func:`any_change`) nothing is claimed. With it, the four means are tested at a quarter of the level:
    the next step of Holm's correction of the five tests. Once one of them is significant, a change in the opposite direction
    counts without correction. "No loss detected" refers to the thirds and the overall accuracy; the intervals in the sentence
    show how large an undetected loss can be. The title names significant losses of single classes, of the worst class and of
    the gap.
    """
    strict = 1 - (1 - confidence) / len(judged)
    shown = {name: pooled.at(confidence) for name, pooled in judged.items()}
    up = {name for name, pooled in judged.items() if changed and pooled.at(strict).low > 0}
    down = {name for name, pooled in judged.items() if changed and pooled.at(strict).high < 0}
    hard_improved, some_worsened = shown["hard"].low > 0, any(estimate.high < 0 for estimate in shown.values())
    if ("hard" in up and some_worsened) or (hard_improved and down):
        kind = "traded"
    elif "hard" in up:
        closed = narrowing.at(confidence).low > 0
        kind = "closed" if closed else "better" if "easy" in up else "better_hard"
    elif "hard" in down and up:
        kind = "widened"
    elif up and not down:
        elsewhere = "overall" not in up or shown["hard"].high < 0
        kind = "likely_hard" if hard_improved else "elsewhere" if elsewhere else "not_hard"
    else:
        kind = "worse" if down else "noise"
    short, long = _losses(metrics, per_class) if changed else ([], [])
    only_classes = kind == "noise" and bool(per_class["significant"].any())
    title = WITH_LOSSES.get(kind, TITLES[kind]) if short or only_classes else TITLES[kind]
    title += f"; {_joined(short)} got worse" if short else ""
    headline = f"{title} {ONE_RUN}" if one_run else title
    parts = [evidence(shown, sure=up | down), *long, _tally(per_class)]
    return Verdict(kind, title, f"{headline}: {'; '.join(parts)}.", tuple(long), headline)


def _losses(metrics: Mapping[str, Change], per_class: Any) -> tuple[list[str], list[str]]:
    """What got significantly worse: in a few words, and with numbers."""
    short, long = [], []
    lost = per_class[per_class["significant"] & (per_class["delta"] < 0)]
    if len(lost):
        largest = lost[np.argmin(lost["delta"])]
        name = str(largest["name"])
        short.append(f"class {name!r}" if len(lost) == 1 else f"{len(lost)} classes")
        which = (
            f"class {name!r}" if len(lost) == 1 else f"largest loss of the {len(lost)} classes that got worse: {name!r}"
        )
        long.append(f"{which} {_with_interval(largest)} (q = {largest['q_value']:.2g})")
    worst, gap = metrics["worst"].delta, metrics["gap"].delta
    if worst.high < 0:
        short.append("the worst class")
        long.append(f"lowest class accuracy {_with_interval(worst)}")
    if gap.low > 0:
        short.append("the gap")
        long.append(f"gap {_with_interval(gap)}")
    return short, long


def _with_interval(found: Any) -> str:
    """A difference with its interval, from an estimate or a record of a class."""
    if isinstance(found, Estimate):
        return f"{points(found.value)} points [{points(found.low)}, {points(found.high)}]"
    return f"{points(found['delta'])} points [{points(found['low'])}, {points(found['high'])}]"


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def evidence(shown: Mapping[str, Estimate], sure: set[str]) -> str:
    """The changes that decide, with their intervals; ``sure`` holds those significant after correction."""
    words = {
        "hard": "classes that were hard before",
        "easy": "classes that were easy before",
        "overall": "overall accuracy",
    }
    # the shown interval may exclude 0 although the widened interval, which decides, includes it
    doubt = {name for name, e in shown.items() if name not in sure and not e.low <= 0 <= e.high}
    parts = [
        f"{words[name]} {_with_interval(shown[name])}"
        + (" (not significant after correction for 5 tests)" if name in doubt else "")
        for name in words
        if not np.isnan(shown[name].value)
    ]
    return ", ".join(parts)


def _tally(per_class: Any) -> str:
    gained = int((per_class["significant"] & (per_class["delta"] > 0)).sum())
    lost = int((per_class["significant"] & (per_class["delta"] < 0)).sum())
    if gained + lost == 0:
        return "no single class changed significantly"
    return f"{gained} class{'' if gained == 1 else 'es'} improved and {lost} got worse significantly"
