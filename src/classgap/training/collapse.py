"""Whether the features of all samples have become nearly the same, so that nothing is learned any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

_GONE, _REDUCED = 0.2, 0.5  # of the scatter at the first step
_EPOCHS = 3
_LEARNED = 0.1  # of the way from chance to perfect accuracy


def has_collapsed(history: Sequence[Mapping[str, Any]], start: float | None, class_counts: NDArray[Any]) -> bool:
    """Whether features have collapsed by the end of this log: two conditions, each of which alone is harmless.

    The scatter of the features around the mean of their batch is less than a fifth of what it was at the first step, or less than
    half of it for three epochs; and training accuracy is hardly above that of always predicting the most frequent class. Losses
    that draw samples of a class together reduce the scatter as well, but then classes are told apart.

    Args:
        history: Records of the epochs so far.
        start: Scatter of the features in the first batch of the training; None if it was not measured.
        class_counts: Training samples of each class.
    """
    if start is None or not start > 0:
        return False
    chance = float(class_counts.max() / class_counts.sum())
    wrong = chance + _LEARNED * (1 - chance)

    def below(record: Mapping[str, Any], share: float) -> bool:
        scatter = record.get("features", {}).get("scatter")
        return scatter is not None and scatter < share * start and record["train"]["accuracy"] < wrong

    last = history[-_EPOCHS:]
    return below(history[-1], _GONE) or (len(last) == _EPOCHS and all(below(record, _REDUCED) for record in last))


def warning(record: Mapping[str, Any], start: float, class_counts: NDArray[Any], way_out: str) -> str:
    """What to tell the user."""
    chance = float(class_counts.max() / class_counts.sum())
    return (
        f"warning: the features have collapsed: in epoch {record['epoch'] + 1} their scatter is "
        f"{record['features']['scatter'] / start:.2g} times that of the first batch, and training accuracy is "
        f"{record['train']['accuracy']:.1%} (always predicting the most frequent class gives {chance:.1%}). All samples have "
        f"nearly the same features, so the network does not learn. {way_out}"
    )


def way_out(method: str, params: Mapping[str, Any], hint: str) -> str:
    """What to change: what the loss says, otherwise what helps in general."""
    if hint:
        return f"Stop the run; {hint}"
    weights = [f"method.{name}" for name in ("lam", "weight") if name in params]
    lower = f"lower {' and '.join(weights)}, the weight of a term of {method}, or " if weights else ""
    return f"Stop the run; {lower}lower optim.lr, set schedule.warmup, or set optim.clip"
