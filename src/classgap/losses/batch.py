"""What a loss is computed from, as one value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

_PRECISE = (torch.float32, torch.float64)


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

    def at_least_float32(self) -> LossBatch:
        """The batch with logits and features in float32, unless they have that precision or more."""
        logits, features = self.logits, self.features
        if logits.dtype in _PRECISE and (features is None or features.dtype in _PRECISE):
            return self
        features = None if features is None else _at_least_float32(features)
        return dataclasses.replace(self, logits=_at_least_float32(logits), features=features)

    def expert(self, number: int) -> LossBatch:
        """What one of several experts made of the samples."""
        features = None if self.features is None else self.features[:, number]
        return dataclasses.replace(self, logits=self.logits[:, number], features=features)

    def per_label(self) -> tuple[LossBatch, Tensor]:
        """Every sample once for each label it may have, with hard labels, and the probability of each."""
        rows, labels = self.target.nonzero(as_tuple=True)
        return dataclasses.replace(self.rows(rows), target=labels), self.target[rows, labels]


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in _PRECISE else tensor.float()
