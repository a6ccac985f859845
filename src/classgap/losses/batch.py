"""What a loss is computed from, as one value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from classgap.batchstats.backend import Array, as_array

_WORKING = (torch.float32, torch.float64, torch.int64)


@dataclass(frozen=True, eq=False)
class LossBatch:
    """The arguments of a call of a loss, already checked.

    ``features``, ``index`` and ``epoch`` are None where the call did not give them. A loss that declares one of them in
    ``needs`` always gets it.

    Attributes:
        logits: :math:`(N, K)`, or :math:`(N, M, K)` for a loss of :math:`M` experts.
        target: :math:`(N,)` class indices, or :math:`(N, K)` probabilities.
        features: :math:`(N, d)`, or :math:`(N, M, d)`.
        index: :math:`(N,)` position of each sample in the training set.
        epoch: 0-based epoch.
    """

    logits: Tensor
    target: Tensor
    features: Tensor | None = None
    index: Tensor | None = None
    epoch: int | None = None

    def __len__(self) -> int:
        """Number of samples."""
        return self.logits.shape[0]

    @property
    def labels(self) -> Tensor:
        """:math:`(N,)` class indices; a soft target counts for its most likely class."""
        return self.target if self.target.dim() == 1 else self.target.argmax(1)

    @cached_property
    def label_range(self) -> tuple[Array, Array]:
        """Smallest and largest of at least one class index."""
        labels = as_array(self.target)
        return labels.min(), labels.max()

    def rows(self, which: Tensor | slice) -> LossBatch:
        """The chosen samples.

        Example:
            >>> LossBatch(torch.eye(3), torch.arange(3)).rows(slice(1, 3)).target
            tensor([1, 2])
        """
        return dataclasses.replace(
            self,
            logits=self.logits[which],
            target=self.target[which],
            features=None if self.features is None else self.features[which],
            index=None if self.index is None else self.index[which],
        )

    def in_working_types(self) -> LossBatch:
        """The batch with logits and features in at least float32, and labels and positions in int64, as indices of torch."""
        given = (self.logits, self.target, self.features, self.index)
        if all(tensor is None or tensor.dtype in _WORKING for tensor in given):
            return self
        return dataclasses.replace(
            self,
            logits=_working(self.logits),
            target=_working(self.target),
            features=None if self.features is None else _working(self.features),
            index=None if self.index is None else _working(self.index),
        )

    def expert(self, number: int) -> LossBatch:
        """What one of several experts made of the samples."""
        features = None if self.features is None else self.features[:, number]
        return dataclasses.replace(self, logits=self.logits[:, number], features=features)

    def per_label(self) -> tuple[LossBatch, Tensor]:
        """Every sample once for each label it may have, with hard labels, and the probability of each."""
        rows, labels = self.target.nonzero(as_tuple=True)
        return dataclasses.replace(self.rows(rows), target=labels), self.target[rows, labels]


def _working(tensor: Tensor) -> Tensor:
    if tensor.dtype in _WORKING:
        return tensor
    return tensor.float() if tensor.is_floating_point() else tensor.long()
