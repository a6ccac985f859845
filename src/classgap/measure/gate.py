"""Conditions for continuous integration: ``--fail-if "hard < 0.60"``.

A condition has the form ``NAME OPERATOR NUMBER``. Names are paths in the JSON of the report or comparison:

    hard                     the value; also hard.low, hard.high
    gap_corrected.low        any metric by name
    groups.cross.hard.low    a group under a ranking
    class[cat].accuracy      a class by name
    hard.delta.high          in a comparison: before, after (the default) or delta
    verdict == worse         in a comparison: the kind of verdict
    any class worsened       in a comparison: a class got worse significantly (Benjamini-Hochberg correction over the
                             classes), or "any class lost"; also "any class improved"
    slices.worst             in an audit with slices: the lowest accuracy of a class within a slice
    slice[site=B].difference a slice by name: accuracy minus that of the other slices of the same classes
    label[cat].recall        in an audit of multi-label data: a label by name (its F1 if nothing follows); also macro_f1,
                             recall.worst.low, precision.gap; in a comparison "any label worsened"
    any slice worse          a slice, or a class within a slice, is significantly less accurate than the other slices

Numbers may be written ``60%``. Nothing is evaluated as code.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from classgap.checks import InputError, did_you_mean, one_of
from classgap.measure.audit_report import AuditReport, looks_like_a_regression
from classgap.measure.comparison import Comparison
from classgap.measure.multi_label_compare import TITLES as LABEL_TITLES
from classgap.measure.multi_label_compare import MultiLabelComparison
from classgap.measure.multi_label_report import MultiLabelReport
from classgap.measure.verdict import TITLES

Measured = AuditReport | Comparison | MultiLabelReport | MultiLabelComparison
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_WORDS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least", "==": "equal to", "!=": "other than"}
# A class name may contain operators and brackets, so it extends to the last "]" before a dot or an operator.
_CONDITION = re.compile(
    r"\s*(?P<name>(?:class|label|slice)\[.*\](?:\.\w+)*|[\w.]+)\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<bound>\S+)\s*"
)
_CLASS = re.compile(r"(?:class|label)\[(?P<class>.*)\](?P<rest>(?:\.\w+)*)")
_SLICE = re.compile(r"slice\[(?P<slice>.+=.*)\](?P<rest>(?:\.\w+)*)")
_ANY_SLICE = re.compile(r"\s*any\s+slice\s+worse\s*")
_ANY_CLASS = re.compile(r"\s*any\s+(?P<kind>class|label)\s+(?P<what>worsened|lost|improved|gained)\s*")
_CHANGES = {"lost": "worsened", "gained": "improved"}  # other words for the same
_ENTRIES = ("", "value", "low", "high", "before", "after", "delta")
# Numbers of known range, by the last part of their name: from 0 to 1, from -1 to 1, and at least 0.
_SHARE = re.compile(
    r"(accuracy|precision|recall|specificity|f1|auc|average_precision)(_low|_high|_before|_after)?|(\w+_)?ece|(\w+_)?coverage|"
    r"[pq]_value|mean_auc|mean_average_precision|negative_share|confidence|threshold(_before|_after)?|worst(_decile)?(_corrected)?"
)
_CHANGE = re.compile(r"difference(_low|_high)?|overconfidence|output_margin(_balanced)?")
_AMOUNT = re.compile(
    r"num_\w+|support|predicted|gained|lost|train_count|statistic|log_loss|brier|(common|class)_set_size"
)
_DEFAULTS = ("value", "after", "kind")  # the entry that an incomplete name means


@dataclass(frozen=True)
class Condition:
    """A parsed ``--fail-if``; ``bound`` is text only for verdicts and for ``any class worsened`` (operator "any")."""

    text: str
    name: str
    operator: str
    bound: float | str


@dataclass(frozen=True)
class Outcome:
    """Whether a condition is true, so that the gate fails, and why."""

    condition: str
    failed: bool
    sentence: str


def parse(text: str) -> Condition:
    """Read one condition.

    Example:
        >>> parse("worst.low < 40%")
        Condition(text='worst.low < 40%', name='worst.low', operator='<', bound=0.4)
    """
    if (found := _ANY_CLASS.fullmatch(text)) is not None:
        what = _CHANGES.get(found["what"], found["what"])
        return Condition(text.strip(), f"any {found['kind']} {what}", "any", what)
    if _ANY_SLICE.fullmatch(text) is not None:
        return Condition(text.strip(), "any slice worse", "any", "slice")
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InputError(
            f"cannot read the condition {text!r}; write NAME OPERATOR NUMBER, e.g. 'hard < 0.60', 'worst.low < 0.4' "
            "or 'class[cat].accuracy < 50%'; in a comparison also 'any class worsened', in an audit with slices "
            "'slices.worst < 0.5' and 'any slice worse'"
        )
    return Condition(text.strip(), match["name"], match["operator"], _bound(text, match["operator"], match["bound"]))


def _bound(text: str, sign: str, bound: str) -> float | str:
    try:
        number = float(bound.removesuffix("%")) / (100 if bound.endswith("%") else 1)
    except ValueError:
        if sign in ("==", "!=") and bound.isidentifier():
            return bound
        raise InputError(f"the right side of {text!r} must be a number, got {bound!r}") from None
    if not math.isfinite(number):
        raise InputError(f"the right side of {text!r:.80} must be a finite number, got {bound!r:.80}")
    return number


def check(result: Measured, conditions: Sequence[str]) -> tuple[Outcome, ...]:
    """The outcome of every condition. The gate fails if one of them ``failed``; an undefined number fails too."""
    parsed = [parse(text) for text in conditions]
    if reason := _not_judged(result):
        return tuple(Outcome(c.text, True, f"failed: {c.text!r} cannot be judged. {reason}") for c in parsed)
    tree = result.to_dict() if parsed else {}
    return tuple(_judge(tree, condition) for condition in parsed)


def _not_judged(result: Measured) -> str:
    """Why no condition can be judged: all predictions are wrong, or the labels do not look like classes; or ""."""
    if isinstance(result, MultiLabelReport):
        return result.verdict if result.metrics["micro_f1"].value == 0 else ""
    if not isinstance(result, AuditReport):
        return ""
    return result.verdict if result.overall.value == 0 else looks_like_a_regression(result.confusion, result.classes)


def _judge(tree: Mapping[str, Any], condition: Condition) -> Outcome:
    if condition.operator == "any":
        return _judge_any(tree, condition)
    value = look_up(tree, condition.name)
    bound = condition.bound
    if isinstance(bound, str):
        _check_verdict(tree, condition)
    else:
        _check_reachable(tree, condition.text, condition.name, condition.operator, bound)
    if value is None:
        reason = f"{condition.name} is undefined here (there are no samples to measure it)"
        return Outcome(condition.text, True, f"failed: {reason}, so {condition.text!r} cannot be ruled out")
    if isinstance(value, str) != isinstance(bound, str):
        wanted = "text, e.g. 'verdict == worse'" if isinstance(value, str) else "a number"
        raise InputError(f"the right side of {condition.text!r} must be {wanted}, got {bound!r}")
    failed = _OPERATORS[condition.operator](value, bound)
    shown, limit = (v if isinstance(v, str) else f"{v:.4g}" for v in (value, bound))
    relation = f"{'' if failed else 'not '}{_WORDS[condition.operator]} {limit}"
    return Outcome(
        condition.text, failed, f"{'failed' if failed else 'passed'}: {condition.name} is {shown}, {relation}"
    )


def _check_reachable(tree: Mapping[str, Any], text: str, name: str, sign: str, bound: float) -> None:
    """A condition on a number of known range must be able to fire."""
    low, high = _range(tree, name)
    never = {
        "<": bound <= low,
        "<=": bound < low,
        ">": bound >= high,
        ">=": bound > high,
        "==": not low <= bound <= high,
    }
    if never.get(sign, False):
        where = f"lies between {low:g} and {high:g}; write 0.6 or 60% for 60 percent"
        raise InputError(
            f"{text!r} can never be true, since {name} {where if high < math.inf else f'is at least {low:g}'}"
        )


def _range(tree: Mapping[str, Any], name: str) -> tuple[float, float]:
    """The lowest and highest value that a number can have: a share lies between 0 and 1, its change between -1 and 1."""
    is_row = name.startswith(("class[", "label[", "slice["))
    parts = (name.rpartition("]")[2] if is_row else name).strip(".").split(".")
    # "low" and the like belong to what stands before them; alone, to the accuracy or F1 of a row
    leaf = next((part for part in reversed(parts) if part not in _ENTRIES), "")
    if (
        not leaf
        and name.startswith(("class[", "label["))
        and "delta" in _rows(tree)[0][0]
        and parts[-1] in ("low", "high")
    ):
        return -1, 1  # the interval of the change
    measured = not leaf or (not is_row and parts[0] in {*tree.get("groups", {}), *tree["metrics"], "groups", "metrics"})
    if measured or _SHARE.fullmatch(leaf):
        return (-1 if "delta" in parts else 0), 1
    if _CHANGE.fullmatch(leaf):
        return -1, 1
    return (0 if _AMOUNT.fullmatch(leaf) else -math.inf), math.inf


def _check_verdict(tree: Mapping[str, Any], condition: Condition) -> None:
    """A condition on text must be able to fire: only the kind of verdict of a comparison has known words."""
    if condition.name not in ("verdict", "verdict.kind"):
        raise InputError(f"the right side of {condition.text!r} must be a number, got {condition.bound!r}")
    if not isinstance(tree["verdict"], Mapping):
        raise InputError(
            f"{condition.text!r} needs a comparison, but this is the audit of one model, whose verdict is a sentence; "
            "write e.g. 'gap_corrected.low > 0.1' or 'homogeneity.p_value < 0.05'"
        )
    kinds = LABEL_TITLES if "per_label" in tree else TITLES
    one_of(f"the right side of {condition.text!r}", str(condition.bound), kinds)


def _judge_any(tree: Mapping[str, Any], condition: Condition) -> Outcome:
    """Whether any class got worse (or improved) significantly."""
    if condition.bound == "slice":
        return _judge_slices(_slices(tree, condition.text), condition)
    rows, noun = _rows(tree)
    if not rows or "significant" not in rows[0]:
        raise InputError(
            f"{condition.text!r} needs a comparison, but this is the audit of one model; use classgap compare"
        )
    sign = -1 if condition.bound == "worsened" else 1
    names = [str(row["name"]) for row in rows if row["significant"] and sign * row["delta"] > 0]
    shown = ", ".join(map(repr, names[:5])) + (" …" if len(names) > 5 else "")
    change = "got worse" if condition.bound == "worsened" else "improved"
    reason = f"{len(names)} of {len(rows)} {noun} {change} significantly" + (f" ({shown})" if names else "")
    return Outcome(condition.text, bool(names), f"{'failed' if names else 'passed'}: {reason}")


def _rows(tree: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The records of the classes or labels, and what they are."""
    return (tree["per_label"], "labels") if "per_label" in tree else (tree["per_class"], "classes")


def _slices(tree: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    slices: Mapping[str, Any] | None = tree.get("slices")
    if slices is None:
        raise InputError(f"{text!r} needs an audit with slices; name their column with --by (by= in Python)")
    return slices


def _judge_slices(slices: Mapping[str, Any], condition: Condition) -> Outcome:
    """Whether any slice, or class within a slice, is significantly worse than the other slices."""
    names = slices["worse"]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    count = "no slice or class within a slice is" if not names else f"{len(names)} slices or classes within slices are"
    reason = f"{count} significantly less accurate than the other slices" + (f" ({shown})" if names else "")
    return Outcome(condition.text, bool(names), f"{'failed' if names else 'passed'}: {reason}")


def look_up(tree: Mapping[str, Any], name: str) -> float | str | None:
    """The number (or text) called ``name`` in the JSON tree of a report; None where it is undefined."""
    found, path = _start(tree, name)
    for part in path:
        if not isinstance(found, Mapping) or part not in found:
            known = found if isinstance(found, Mapping) else ()
            raise InputError(did_you_mean(part, map(str, known), what=f"part of {name!r}:"))
        found = found[part]
    while isinstance(found, Mapping):
        default = next((key for key in _DEFAULTS if key in found), None)
        if default is None:
            raise InputError(
                f"{name!r} must be a single number, but it has several entries; add one of {', '.join(map(str, found))}"
            )
        found = found[default]
    if isinstance(found, list):
        raise InputError(f"{name!r} is a list; for a single class use class[NAME].COLUMN")
    leaf: float | str | None = found
    return leaf


def _start(tree: Mapping[str, Any], name: str) -> tuple[Any, list[str]]:
    """The subtree where the path begins, and the remaining parts of the path."""
    if match := _CLASS.fullmatch(name):
        records, noun = _rows(tree)
        rows = {str(row["name"]): row for row in records}
        if match["class"] not in rows:
            raise InputError(did_you_mean(match["class"], rows, what="class" if noun == "classes" else "label"))
        row, parts = rows[match["class"]], match["rest"].split(".")[1:]
        return row, parts or [next(key for key in ("after", "accuracy", "f1") if key in row)]
    if match := _SLICE.fullmatch(name):
        found = _slice_row(_slices(tree, name)["columns"], match["slice"])
        return found, match["rest"].split(".")[1:] or ["accuracy"]
    first, *rest = name.split(".")
    if first == "slices":
        return _slices(tree, name), rest
    scopes = {**tree["groups"], **tree["metrics"], **tree}
    if first not in scopes:
        numbers = [key for key, entry in scopes.items() if isinstance(entry, (Mapping, int, float))]
        named = "label[NAME]" if "per_label" in tree else "class[NAME]"
        raise InputError(did_you_mean(first, [*numbers, named], what="name in a condition:"))
    return scopes[first], rest


def _slice_row(columns: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """The record of the slice ``column=name``; both names may contain ``=``."""
    fitting = [column for column in columns if text.startswith(f"{column}=")]
    if not fitting:
        raise InputError(did_you_mean(text.partition("=")[0], columns, what="column of slices"))
    rows = {f"{column}={row['name']}": row for column in fitting for row in columns[column]["per_slice"]}
    if text not in rows:
        names = [str(row["name"]) for row in columns[fitting[0]]["per_slice"]]
        raise InputError(did_you_mean(text.removeprefix(f"{fitting[0]}="), names, what="slice"))
    found: Mapping[str, Any] = rows[text]
    return found
