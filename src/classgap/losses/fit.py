"""How well a batch is classified, as a weight for terms that must wait until the network fits its training data."""

from __future__ import annotations

from torch import Tensor

from classgap.batchstats.backend import as_array
from classgap.batchstats.collectives import all_reduce_sum

FIT_POWER = 4.0


def fit_weight(
    logits: Tensor, label: Tensor, power: float, *, offset: Tensor | None = None, across_ranks: bool = False
) -> Tensor | float:
    """The accuracy on the batch, as training sees it, to a power; 1 for the power 0.

    Args:
        offset: Added to the logits before they are compared, e.g. the log-prior of the classes.
        across_ranks: Over the batches of all processes.
    Example:
        >>> fit_weight(torch.eye(4), torch.tensor([0, 1, 2, 0]), 2.0)
        0.5625
    """
    if not power:
        return 1.0
    scores = logits.detach() if offset is None else logits.detach() + offset
    # Of equal logits, as those of a head that starts at 0, the first one counts. NumPy finds it ten times as fast.
    right = (as_array(scores).argmax(1) == as_array(label)).sum()
    if across_ranks:
        total, samples = all_reduce_sum(*(label.new_tensor(int(count)) for count in (right, len(label))))
        return (total / samples).to(logits.dtype) ** power
    share = right / max(1, len(label))
    return share**power if isinstance(share, Tensor) else float(share**power)
