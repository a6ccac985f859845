"""How far the rows of a class lie apart in a batch, in time linear in the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from classgap.stats.collectives import gather_rows


def within_class_scatter(rows: Tensor, target: Tensor, *, across_ranks: bool = False) -> Tensor:
    r"""Half the mean squared distance of each row from the others of its class.

    .. math:: \ell_i = \frac{1}{2(b-1)} \sum_{j\ne i,\,y_j=y_i} \|z_i-z_j\|^2

    summed over a class of :math:`b` rows, which is how it is computed: as :math:`\tfrac{b}{b-1}\|z_i-m\|^2` about the mean
    :math:`m` of the class. The gradient does not pass through :math:`m`, since its share of the sum is zero.

    Args:
        across_ranks: Take means over the batches of all ranks.
    Shape:
        rows :math:`(N, d)`, target :math:`(N,)`; returns :math:`(N,)`, 0 for the only row of a class. Single values differ from
        the formula; their sum over a class does not.
    Example:
        >>> within_class_scatter(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
        tensor([2., 2., 0.])
    """
    values, labels = rows.detach(), target
    if across_ranks:
        values, labels = gather_rows(values), gather_rows(labels)
    # A class is numbered by its first place in the sorted batch: tables are as long as the batch, however many classes there are.
    ordered = labels.sort().values
    number = torch.searchsorted(ordered, labels)
    sums = torch.zeros_like(values).index_add_(0, number, values)
    counts = values.new_zeros(values.shape[0]).index_add_(0, number, values.new_ones(values.shape[0]))
    own = torch.searchsorted(ordered, target) if across_ranks else number
    size = counts.index_select(0, own)
    mean = sums.index_select(0, own) / size[:, None]
    return (rows - mean).square().sum(1) * (size / (size - 1).clamp_min(1))
