"""Networks that were trained apart and decide together: the mean of what they say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from classgap.checks import InputError, one_of

Combination = Literal["probabilities", "logits"]
COMBINATIONS: tuple[Combination, ...] = ("probabilities", "logits")


def mean_scores(scores: Tensor, combine: Combination = "probabilities") -> Tensor:
    """One set of scores from those of several networks.

    Args:
        scores: Scores of each network, :math:`(M, N, K)`.
        combine: ``"probabilities"`` gives the logarithm of the mean softmax, whose softmax is the mean of the probabilities;
            ``"logits"`` the mean of the scores, which is the geometric mean of the probabilities up to a factor per sample.
    Example:
        >>> sure, unsure = torch.tensor([[[4.0, 0.0]], [[0.0, 1.0]]])
        >>> mean_scores(torch.stack([sure, unsure])).softmax(1)
        tensor([[0.6255, 0.3745]])
    """
    if combine == "logits":
        return scores.mean(0)
    return torch.logsumexp(scores.log_softmax(-1), 0) - math.log(len(scores))


class ClassAffine(nn.Module):
    """One factor and one offset per class, for scores ``(N, K)``; nothing changes until they are set."""

    scale: Tensor
    offset: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(num_classes))
        self.register_buffer("offset", torch.zeros(num_classes))

    def forward(self, scores: Tensor) -> Tensor:
        return scores * self.scale + self.offset


class Ensemble(nn.Module):
    """Networks side by side; their scores are averaged, their features concatenated.

    Args:
        members: Networks that return ``(scores (N, K), features (N, d))``.
        combine: What is averaged, see ``mean_scores``.
        correction: Applied to the averaged scores.
    """

    def __init__(
        self,
        members: Iterable[nn.Module],
        combine: Combination = "probabilities",
        correction: ClassAffine | None = None,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not len(self.members):
            raise InputError("members must hold at least one network, got none")
        self.combine = one_of("combine", combine, COMBINATIONS)
        self.correction = correction

    def log_probabilities(self, inputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Logarithms of the probabilities (N, K) of scores divided by ``temperature``, each member before the average."""
        scores = torch.stack([member(inputs)[0].float() for member in self.members])
        return mean_scores(scores / temperature, self.combine).log_softmax(-1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Combined scores (N, K) and all features (N, M · d)."""
        scores, features = zip(*(member(inputs) for member in self.members), strict=True)
        combined = mean_scores(torch.stack(scores), self.combine)
        return combined if self.correction is None else self.correction(combined), torch.cat(features, 1)
