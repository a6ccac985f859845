"""Find the columns of a table or the arrays of an archive, by option or by their usual names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from classgap.checks import InputError, did_you_mean, printable
from classgap.predictions.binary import single_score_column
from classgap.predictions.predictions import DESCRIBING

_ALIASES = {
    "true": "y_true true true_label label labels target targets gt ground_truth actual y class",
    "pred": "y_pred pred preds prediction predictions predicted predicted_label pred_label y_hat yhat",
    "scores": "scores logits probabilities probs proba",
    "features": "features feature embeddings embedding",
    "count": "n count counts",
    "weight": "weight head_weight head.weight fc.weight classifier.weight",
    "bias": "bias head_bias head.bias fc.bias classifier.bias",
    "margin_norms": "margin_norms",
    "train_counts": "train_counts class_counts",
    "class_names": "class_names classes names",
}
_PREFIXES = {"scores": ("score", "prob", "proba", "logit"), "features": ("feature", "feat", "emb", "embedding")}


@dataclass(frozen=True)
class Columns:
    """Names of the columns (tables) or arrays (archives) to read; None means: find it by its usual names.

    ``scores`` and ``features`` name a column of lists, a 2-D array, a column prefix (``"score_"``), a pattern (``"*_score"``),
    or several columns separated by commas. ``id`` names the column of sample ids, by which the rows of files in different order
    are matched; ``path`` and ``text`` name the columns of image files and of texts, by which a report shows a sample; ``by``
    names columns that define slices; ``sample_weight`` names the column of weights; ``count`` names the column with the number
    of samples that a row stands for, in a table that is already counted.
    """

    true: str | None = None
    pred: str | None = None
    scores: str | None = None
    features: str | None = None
    id: str | None = None
    path: str | None = None
    text: str | None = None
    by: tuple[str, ...] = ()
    sample_weight: str | None = None
    count: str | None = None


@dataclass(frozen=True)
class Found:
    """The columns of a table by role, per-sample columns by their name in ``Predictions.columns``, and the class names in the
    suffixes of the score columns."""

    true: str
    pred: str | None
    scores: list[str]
    features: list[str]
    samples: dict[str, str]
    spelled: list[str] | None
    count: str | None = None

    @property
    def numbered(self) -> bool:
        """Whether the score columns are numbered, so that numbers among the labels are positions."""
        ordered = all(name.endswith(str(k)) for k, name in enumerate(self.scores))
        return self.spelled is None and len(self.scores) > 1 and ordered

    @property
    def named_by_numbers(self) -> bool:
        """Whether numbers are names of score columns (1, 2, 10), so that numbers among the labels are names."""
        names = self.spelled or []
        return any(re.fullmatch(r"(0|-?[1-9][0-9]*)(\.0+)?", name) for name in names) and not _counted_up(names)


def find_columns(available: Sequence[str], columns: Columns, place: str) -> Found:
    """The columns of a table by role; ``place`` is the name of the table in error messages."""
    true, pred = pick_labels(columns, available)
    samples = pick_samples(columns, available)
    free = without_named(available, columns)
    scores, spelled = pick_wide("scores", columns.scores, free)
    if pred is None and not scores and (single := single_score_column(free)) is not None:
        scores = [single]
    features, _ = pick_wide("features", columns.features, free)
    require_labels(true is not None, pred is not None or bool(scores), place, available)
    refuse_true_labels([str(true)], pred=[pred], scores=scores, features=features)
    count = _pick_count(columns, available, [str(true), str(pred), *samples.values()])
    return Found(str(true), pred, scores, features, samples, spelled, count)


def without_described(available: Sequence[str], columns: Columns) -> list[str]:
    """The columns without those that the user named as ids, paths, texts or weights of the samples."""
    named = [pick(role, getattr(columns, role), available) for role in DESCRIBING if getattr(columns, role)]
    return [name for name in available if name not in named]


def without_named(available: Sequence[str], columns: Columns) -> list[str]:
    """The columns that may hold scores or features: the user named them as nothing else, or one by one as these."""
    described = without_described(available, columns)
    others = {columns.true, columns.pred, columns.count, *columns.by}
    wanted = [
        part.strip() for names in (columns.scores, columns.features) if names for part in (names, *names.split(","))
    ]
    return [name for name in described if name not in others or name in wanted]


def pick_labels(columns: Columns, available: Sequence[str]) -> tuple[str | None, str | None]:
    """The columns of true and of predicted labels; scores that the user named ``predictions`` are no predicted labels."""
    scores = {
        part.strip() for names in (columns.scores, columns.features) if names for part in (names, *names.split(","))
    }
    free = available if columns.pred else [name for name in available if name not in scores]
    return pick("true", columns.true, available), pick("pred", columns.pred, free)


def _pick_count(columns: Columns, available: Sequence[str], others: Sequence[str]) -> str | None:
    """The column of counts; without an option only in a table that holds nothing but two labels, slices and a count.

    A column with another role, one of ``others``, is no column of counts.
    """
    if columns.count is not None:
        return pick("count", columns.count, available)
    if len(available) != 3 + len(columns.by):
        return None
    return pick("count", None, [name for name in available if name not in others])


def pick_samples(columns: Columns, available: Sequence[str]) -> dict[str, str]:
    """The per-sample columns: name in ``Predictions.columns`` → name of the column."""
    describing = {role: pick(role, getattr(columns, role), available) for role in DESCRIBING if getattr(columns, role)}
    slices = {printable(name): pick("by", name, available) for name in columns.by}
    for name in slices:
        if name in DESCRIBING:
            raise InputError(f"the column {name!r} cannot define slices under this name; rename it in the file")
    return {name: column for name, column in (describing | slices).items() if column is not None}


def require_labels(has_true: bool, has_predictions: bool, place: object, available: Sequence[str]) -> None:
    """Reject a table or archive without recognisable labels or predictions."""
    holds = f"{place} has the columns {', '.join(map(repr, available)) or 'none'}"
    if len(available) == 1:
        holds += "; the columns of a CSV file must be separated by commas, semicolons or tabs"
    if not has_true:
        raise InputError(
            f"no column has a usual name for true labels; name it with --true or Columns(true=…) ({holds})"
        )
    if not has_predictions:
        raise InputError(
            "no column has a usual name for predictions or scores; name it with --pred or --scores, in Python with "
            f"Columns(pred=…) or Columns(scores=…) ({holds})"
        )


def refuse_true_labels(true: Sequence[str], **others: Sequence[str | None]) -> None:
    """Refuse true labels that are also named as predictions, scores or features: every sample would be correct."""
    for role, names in others.items():
        if both := sorted(set(true) & set(names)):
            raise InputError(
                f"{both[0]!r} holds the true labels, and cannot also be --{role}; name another column or array with --{role}"
            )


_IDS = ("id", "ids")  # `classgap predict` writes a column id and an array ids; one name serves for both


def pick(role: str, wanted: str | None, available: Sequence[str]) -> str | None:
    """The column for ``role`` among ``available``; None if the user named none and no column has a usual name.

    Example:
        >>> pick("true", None, ["file", "Label", "prediction"]), pick("true", None, ["Ground Truth", "prediction"])
        ('Label', 'Ground Truth')
    """
    if wanted is not None:
        if role == "id" and wanted in _IDS and wanted not in available:
            wanted = next((name for name in _IDS if name in available), wanted)
        if wanted not in available:
            raise InputError(did_you_mean(wanted, available, what=f"column for --{role.replace('_', '-')}"))
        return wanted
    known = _ALIASES[role].split()
    found = [name for name in available if re.sub(r"[\s-]+", "_", name.strip().lower()) in known]
    if len(found) > 1:
        raise InputError(
            f"columns {' and '.join(map(repr, found))} could both be meant by --{role}; name one of them with --{role}"
        )
    return found[0] if found else None


def pick_wide(role: str, wanted: str | None, available: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Columns that together form a matrix, and the class names in their suffixes (None if these are 0, 1, 2 …).

    Example:
        >>> pick_wide("scores", None, ["label", "score_1", "score_0"])
        (['score_0', 'score_1'], None)
        >>> pick_wide("scores", None, ["label", "score_10", "score_2"])
        (['score_10', 'score_2'], ['10', '2'])
        >>> pick_wide("scores", "p_cat,p_dog", ["p_cat", "p_dog"])
        (['p_cat', 'p_dog'], None)
        >>> pick_wide("scores", "2,0,1", ["label", "2", "0", "1"])
        (['0', '1', '2'], None)
        >>> pick_wide("scores", "p_", ["p_cat", "p_dog"])
        (['p_cat', 'p_dog'], ['cat', 'dog'])
        >>> pick_wide("scores", "P(", ["P(cat)", "P(dog)"])
        (['P(cat)', 'P(dog)'], ['cat', 'dog'])
    """
    if wanted is not None and wanted not in available:
        if "," in wanted:
            listed = [pick(role, part.strip(), available) or "" for part in wanted.split(",")]
            # pandas calls columns without names 0, 1, 2 …: these are the classes of these numbers, in whatever order
            numbered = all(re.fullmatch(r"[0-9]{1,18}", name) for name in listed)
            return _in_order(role, listed, 0) if numbered else (listed, None)
        start, _, end = wanted.partition("*")
        found = [n for n in available if n.startswith(start) and n.endswith(end) and len(n) >= len(start) + len(end)]
        if not found:
            raise InputError(did_you_mean(wanted, available, what=f"column or prefix for --{role}"))
        return _in_order(role, found, len(start), len(end or _bracket(start, found)))
    single = pick(role, wanted, available)
    if single is not None:
        return [single], None
    for prefix in _PREFIXES[role]:
        found = [name for name in available if re.match(rf"{prefix}s?[_.:\-]?\d+$", name, re.IGNORECASE)]
        named = [name for name in available if name.lower().startswith(f"{prefix}_")]
        if len(found) > 1:
            if role == "scores" and (others := [name for name in named if name not in found]):
                raise _partly_numbered(found, others, found[0][: len(prefix) + 1])
            return _in_order(role, found, re.match(r"\D+", found[0]).end())  # type: ignore[union-attr]
        if len(named) > 1:
            return _in_order(role, named, len(prefix) + 1)
    return [], None


def _partly_numbered(numbered: Sequence[str], others: Sequence[str], prefix: str) -> InputError:
    """The error for score columns of which only some are numbered: the others may be classes, too."""
    return InputError(
        f"columns {numbered[0]!r} … {numbered[-1]!r} are numbered, but {others[0]!r} is not; say which of them are scores: "
        f"--scores {prefix} or Columns(scores={prefix!r}) for all of them, or their names, separated by commas"
    )


def _bracket(prefix: str, found: Sequence[str]) -> str:
    """The bracket that closes the one at the end of ``prefix``, if all columns end with it."""
    closing = {"(": ")", "[": "]", "{": "}", "<": ">"}.get(prefix[-1:], "")
    return closing if all(name.endswith(closing) for name in found) else ""


def _in_order(role: str, found: list[str], prefix_length: int, ending: int = 0) -> tuple[list[str], list[str] | None]:
    """The columns, sorted by their number if they are numbered 0 … K-1, and otherwise the class names in their suffixes."""
    suffixes = [name[prefix_length : len(name) - ending] for name in found]
    if not all(re.fullmatch(r"[0-9]{1,18}", s) for s in suffixes):
        return found, suffixes
    if not _counted_up(suffixes):
        if role == "scores":  # classes named by numbers, e.g. 1, 2 and 10
            return found, suffixes
        numbers = sorted(map(int, suffixes))
        raise InputError(
            f"columns {found[0]!r} … {found[-1]!r} must be numbered 0 … {len(found) - 1} without gaps, "
            f"got {numbers[0]} … {numbers[-1]}"
        )
    order = sorted(range(len(found)), key=lambda k: int(suffixes[k]))
    plain = all(suffix == str(int(suffix)) for suffix in suffixes)
    return [found[k] for k in order], None if plain else [suffixes[k] for k in order]


def _counted_up(suffixes: Sequence[str]) -> bool:
    """Whether these are the numbers 0 … K-1 in any order, also as 00, 01, 02 …"""
    return all(re.fullmatch(r"[0-9]{1,18}", s) for s in suffixes) and (
        sorted(map(int, suffixes)) == list(range(len(suffixes)))
    )
