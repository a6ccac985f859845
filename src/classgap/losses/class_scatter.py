"""How far apart the rows of a class lie in a batch, in time linear in the size of the batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from classgap.batchstats import BatchClasses, batch_classes, centred_rows, squared_norms
from classgap.batchstats.backend import as_array, as_tensor
from classgap.batchstats.collectives import gather_rows
from classgap.losses.terms import Term, weighted_sum


def within_class_scatter(
    rows: Tensor,
    target: Tensor,
    *,
    class_weight: Tensor | None = None,
    column_weight: Tensor | None = None,
    across_ranks: bool = False,
) -> Tensor:
    r"""Half the mean squared distance of a row from the other rows of its class, averaged over the batch.

    .. math:: \frac1N \sum_i \frac{w_{y_i}}{2(b_i-1)} \sum_{j\ne i,\,y_j=y_i} \sum_c v_c (z_{ic}-z_{jc})^2

    where :math:`b_i` rows have the label of row :math:`i`; the only row of a class counts 0. Computed as
    :math:`\tfrac{b}{b-1}\|z_i-m\|^2` with the mean :math:`m` of the class. No gradient has to pass through the mean: its
    part of the gradient is zero.

    Args:
        class_weight: :math:`w`, :math:`(K,)`; by default 1.
        column_weight: :math:`v`, :math:`(d,)`; by default 1.
        across_ranks: Take means over the batches of all ranks.
    Shape:
        rows :math:`(N, d)`, target :math:`(N,)`; returns a scalar.
    Example:
        >>> within_class_scatter(torch.tensor([[0.0], [2.0], [9.0], [9.0]]), torch.tensor([0, 0, 1, 2]))
        tensor(1.)
    """
    if across_ranks or torch.compiler.is_compiling():
        return _by_tables(rows, target, class_weight, column_weight, across_ranks)
    scatter = BatchScatter.of(rows, batch_classes(target), class_weight, column_weight)
    return weighted_sum(
        (1.0, Term(scatter.value, rows, lambda weight: scatter.add_gradient(torch.zeros_like(rows), weight)))
    )


class BatchScatter(NamedTuple):
    """:func:`within_class_scatter` of a batch, and what its gradient is made of."""

    value: Tensor
    position: Tensor
    """Rows of a class with at least two rows; all other rows have no gradient."""
    slope: Tensor
    """Their deviations from the mean of their class, times the weight of each column."""
    weight: Tensor

    @classmethod
    def of(
        cls,
        rows: Tensor,
        present: BatchClasses,
        class_weight: Tensor | None = None,
        column_weight: Tensor | None = None,
    ) -> BatchScatter:
        centred = centred_rows(rows.detach(), present)
        weight = centred.size / ((centred.size - 1) * len(present.slot))
        if class_weight is not None:
            weight = weight * as_array(class_weight)[present.classes[centred.slot]]
        weight = as_tensor(weight, rows)
        if column_weight is None:
            norms = as_tensor(squared_norms(centred.values), rows)
            return cls(torch.dot(norms, weight), centred.position, centred.values, weight)
        slope = centred.values * column_weight.to(rows.dtype)
        return cls(torch.dot((slope * centred.values).sum(1), weight), centred.position, slope, weight)

    def add_gradient(self, total: Tensor, factor: Tensor | float) -> Tensor:
        """``total`` plus the gradient times ``factor``, in place."""
        return total.index_add_(0, self.position, self.slope * (self.weight * (2 * factor))[:, None])


def _by_tables(
    rows: Tensor, target: Tensor, class_weight: Tensor | None, column_weight: Tensor | None, across_ranks: bool
) -> Tensor:
    """The same with shapes that do not depend on the labels, and over ranks."""
    target = target.contiguous()  # searchsorted warns otherwise
    values, labels = rows.detach(), target
    if across_ranks:
        values, labels = gather_rows(values), gather_rows(labels)
    # A class is numbered by its first place in the sorted batch: tables are as long as the batch, however many classes there are.
    ordered = labels.sort().values
    number = torch.searchsorted(ordered, labels)
    sums = torch.zeros_like(values).index_add_(0, number, values)
    counts = values.new_zeros(values.shape[0]).index_add_(0, number, values.new_ones(values.shape[0]))
    own = torch.searchsorted(ordered, target)
    size = counts.index_select(0, own)
    mean = sums.index_select(0, own) / size[:, None]
    squared = (rows - mean).square()
    if column_weight is not None:
        squared = squared * column_weight.to(squared.dtype)
    losses = squared.sum(1) * (size / (size - 1).clamp_min(1))
    if class_weight is not None:
        losses = losses * class_weight.to(losses.dtype).index_select(0, target)
    return losses.sum() / max(1, rows.shape[0])
