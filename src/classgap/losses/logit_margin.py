"""Margins between classes, added to the logits of a linear head: what all margin losses are made of."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from classgap.losses.options import Reduction, reduce


def margin_ce(logits: Tensor, target: Tensor, margins: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    r"""Cross-entropy in which class :math:`j` must lose by a margin: what all margin losses here are made of.

    .. math:: \ell_i = \ln\Big[1 + \sum_{j\ne y_i}\exp(\Delta_{ij} - \Delta_{iy_i} + z_{ij} - z_{iy_i})\Big]

    Args:
        margins: :math:`\Delta`; only differences from the entry of the target matter. :math:`-\infty` takes a class out of the
            comparison (never the target).
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, margins :math:`(K,)` or :math:`(N, K)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> margin_ce(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.0, 1.0]))
        tensor(1.3133)

    Reference: Jitkrittum et al., arXiv:2204.13208, eq. (3).
    """
    return reduce(F.cross_entropy(logits + margins.to(logits.dtype), target, reduction="none"), reduction)


def replace_at(matrix: Tensor, target: Tensor, values: Tensor) -> Tensor:
    """A copy of ``matrix`` with ``values`` at the target of each row.

    Example:
        >>> replace_at(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([5.0]))
        tensor([[0., 5.]])
    """
    return matrix.scatter(1, target[:, None], values[:, None])
