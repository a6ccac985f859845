"""Thresholds of the labels of multi-label data: fitted for the highest F1, saved as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap.checks import InputError, did_you_mean, in_unit_range, number, unique_keys, whole
from classgap.named import columns_in_order
from classgap.posthoc.selection import fold_numbers
from classgap.predictions.multi_label import MultiLabelPredictions, score_limits
from classgap.writing import write

Flags = NDArray[np.bool_]
Kind = Literal["auto", "logits", "probabilities"]
FEWEST = 10  # samples with a label below which it shares the threshold of all labels
_FOLDS = 5


class LabelThresholds:
    """One threshold per label, for the highest F1 on held-out scores.

    The best threshold of a few samples is erratic, so each threshold is the median of the best ones in five folds, and a label
    with fewer than ``fewest`` samples gets the threshold that is best for the mean F1 of all labels.

    Args:
        per_label: False gives all labels that common threshold.
        fewest: Samples with a label from which it gets a threshold of its own.
        seed: Random seed of the folds.
    Attributes:
        labels_: Names of the labels.
        thresholds_: ``(L,)`` probabilities from which a label is predicted, also for logits.
        common_: The common threshold.
        scores_kind_: Kind of the scores.
    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = rng.random((2000, 2)) < [0.5, 0.1]
        >>> p = 1 / (1 + np.exp(-(3 * y - 1.5 + rng.normal(size=y.shape) - [0, 2])))
        >>> found = LabelThresholds().fit(p, y)
        >>> bool(found.thresholds_[1] < found.thresholds_[0])
        True
    """

    labels_: tuple[str, ...]
    thresholds_: NDArray[np.float64]
    common_: float
    scores_kind_: str

    def __init__(self, *, per_label: bool = True, fewest: int = FEWEST, seed: int = 0) -> None:
        self.per_label, self.fewest, self.seed = per_label, fewest, seed

    def fit(
        self,
        scores: ArrayLike,
        y_true: ArrayLike,
        *,
        label_names: Sequence[str] | None = None,
        scores_kind: Kind = "auto",
    ) -> LabelThresholds:
        """Fit on scores of samples that the model was not trained on; ``y_true`` is ``(n, L)`` of 0 and 1."""
        whole("fewest", self.fewest, low=1)
        found = MultiLabelPredictions.from_arrays(
            y_true, scores=scores, scores_kind=scores_kind, label_names=label_names
        )
        return self.fit_predictions(found)

    def fit_predictions(self, found: MultiLabelPredictions) -> LabelThresholds:
        """Fit on multi-label predictions with scores."""
        probability, true = probabilities(found), found.y_true
        self.labels_, self.scores_kind_ = found.labels, str(found.scores_kind)
        fold = fold_numbers(rarest_label(true), _FOLDS, self.seed)
        parts = [fold != k for k in range(_FOLDS) if true[fold != k].any()] or [np.ones(len(true), dtype=bool)]
        self.common_ = float(np.median([_best_common(probability[part], true[part]) for part in parts]))
        self.thresholds_ = np.full(found.num_labels, self.common_)
        if self.per_label:
            for k in np.flatnonzero(true.sum(0) >= self.fewest):
                order = np.argsort(-probability[:, k], kind="stable")  # once for all folds
                values, has = probability[order, k], true[order, k]
                best = [_best_of_sorted(values[part[order]], has[part[order]]) for part in parts]
                self.thresholds_[k] = float(np.median(best))
        return self

    def predict(self, scores: ArrayLike) -> Flags:
        """``(n, L)`` booleans: the labels whose probability reaches their threshold."""
        if not hasattr(self, "thresholds_"):
            raise InputError("these thresholds are not fitted; call fit(scores, y_true) first, or load saved ones")
        matrix = np.asarray(columns_in_order("scores", scores, self.labels_), dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != len(self.thresholds_):
            raise InputError(
                f"scores must have shape (n, {len(self.thresholds_)}), one column per label, got {matrix.shape}"
            )
        outside = bool(matrix.size and not in_unit_range(matrix))
        if self.scores_kind_ == "probabilities" and outside:
            raise InputError(
                "these thresholds were fitted on probabilities, but the scores have values outside [0, 1]; pass probabilities"
            )
        if self.scores_kind_ == "logits" and not outside and len(matrix) >= _FOLDS:
            raise InputError("these thresholds were fitted on logits, but all scores lie in [0, 1]; pass logits")
        return np.asarray(matrix >= score_limits(self.thresholds_, self.scores_kind_))

    def save(self, path: str | Path) -> Path:
        """Write the thresholds as JSON; :meth:`load` reads them, and ``classgap audit --thresholds`` uses them."""
        settings = {
            "thresholds": dict(zip(self.labels_, self.thresholds_.tolist(), strict=True)),
            "common": self.common_,
            "scores_kind": self.scores_kind_,
            "per_label": self.per_label,
            "fewest": self.fewest,
            "seed": self.seed,
        }
        return write(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> LabelThresholds:
        """The thresholds that :meth:`save` wrote."""
        try:
            settings: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            found = cls(per_label=settings["per_label"], fewest=settings["fewest"], seed=settings["seed"])
            named: Mapping[str, float] = settings["thresholds"]
            found.labels_ = tuple(named)
            found.thresholds_ = np.array([number(f"threshold of {k!r}", v, low=0, high=1) for k, v in named.items()])
            found.common_, found.scores_kind_ = float(settings["common"]), str(settings["scores_kind"])
        except OSError as error:
            raise _unreadable(path, error) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} holds no saved thresholds ({error!r}); write it with LabelThresholds.save"
            ) from None
        return found

    def only(self, kept: Flags, other: float | NDArray[np.float64]) -> LabelThresholds:
        """A copy with the threshold ``other`` for all labels that are not ``kept``."""
        copy = LabelThresholds(per_label=self.per_label, fewest=self.fewest, seed=self.seed)
        copy.labels_, copy.scores_kind_, copy.common_ = self.labels_, self.scores_kind_, self.common_
        copy.thresholds_ = np.where(kept, self.thresholds_, other)
        return copy


def _unreadable(path: str | Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            f"there is no file of thresholds {path}; classgap fix writes one only if it found an improvement"
        )
    return InputError(f"the file of thresholds {path} cannot be read ({error.strerror})")


def read_thresholds(path: Path) -> dict[str, float]:
    """Thresholds by label, from a file that :meth:`LabelThresholds.save` wrote or a JSON object ``{label: threshold}``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_keys)
    except OSError as error:
        raise _unreadable(path, error) from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} must be a JSON object from label to threshold; it cannot be read as JSON") from None
    if isinstance(found, dict) and isinstance(found.get("thresholds"), dict):
        found = found["thresholds"]
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path} must be a JSON object from label to threshold")
    return {str(name): number(f"the threshold of {name!r}", value, low=0, high=1) for name, value in found.items()}


def check_labels(thresholds: Mapping[str, float], labels: Sequence[str]) -> None:
    """Refuse thresholds that do not name every label: one that is forgotten would silently be 0.5."""
    for name in labels:
        if name not in thresholds:
            raise InputError(did_you_mean(name, thresholds, what="label, for which the file has no threshold:"))


def best_threshold(probability: NDArray[Any], true: Flags) -> float:
    """The threshold with the highest F1: in the middle between two probabilities; 0.5 if no sample has the label.

    Example:
        >>> best_threshold(np.array([0.1, 0.2, 0.6, 0.8]), np.array([False, True, False, True]))
        0.15000000000000002
    """
    order = np.argsort(-probability, kind="stable")
    return _best_of_sorted(np.asarray(probability[order], dtype=np.float64), true[order])


def _best_of_sorted(values: NDArray[np.float64], true: Flags) -> float:
    """:func:`best_threshold` of probabilities in descending order: F1 is highest if the samples up to some end are predicted."""
    if not true.any():
        return 0.5
    ends = np.append(np.flatnonzero(np.diff(values) < 0), len(values) - 1)  # between two different probabilities
    f1 = 2 * np.cumsum(true)[ends] / (true.sum() + ends + 1)
    last = int(ends[int(np.argmax(f1))])
    below = values[last + 1] if last + 1 < len(values) else 0.0
    return float((values[last] + below) / 2)


def _best_common(probability: NDArray[Any], true: Flags) -> float:
    """The one threshold with the highest mean F1 over the labels that have samples, on a grid of 99 quantiles and 0.5."""
    used = true.any(0)
    grid = np.unique(np.append(np.quantile(probability[:, used], np.linspace(0.01, 0.999, 99)), 0.5))
    total = np.zeros(len(grid))
    for k in np.flatnonzero(used):
        column = np.sort(probability[:, k])
        positive = np.sort(probability[true[:, k], k])
        said = len(column) - np.searchsorted(column, grid, side="left")
        hits = len(positive) - np.searchsorted(positive, grid, side="left")
        total += 2 * hits / (len(positive) + said)
    return float(grid[int(np.argmax(total))])


def probabilities(found: MultiLabelPredictions) -> NDArray[np.float64]:
    """The scores as probabilities in float64."""
    if found.scores is None:
        raise InputError("thresholds need scores, one column per label; pass scores= (--scores)")
    values = np.asarray(found.scores, dtype=np.float64)
    if found.scores_kind != "logits":
        return values
    from scipy.special import expit

    return np.asarray(expit(values))


def rarest_label(true: Flags) -> NDArray[np.int64]:
    """For each sample the rarest label that it has, or L: folds that are even in these hold every label."""
    rank = np.argsort(np.argsort(true.sum(0), kind="stable"), kind="stable")
    return np.asarray(np.where(true, rank, true.shape[1]).min(axis=1), dtype=np.int64)
