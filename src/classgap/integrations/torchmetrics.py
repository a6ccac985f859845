"""``ClassGap``: the headline numbers of an audit as a torchmetrics ``Metric``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from classgap.checks import InputError, whole
from classgap.integrations.scalars import class_scalars
from classgap.losses.options import IGNORED


class ClassGap(Metric):
    """Accuracy of the thirds of the classes, worst class and gap, exact over batches and processes.

    Its state is three vectors of :math:`K` counts, whatever the number of samples; there is no :math:`K×K` matrix. A class
    without samples is left out of every number, and nan in :meth:`per_class`. The values are those of :func:`classgap.audit`.

    Args:
        num_classes: Number of classes :math:`K`.
        ignore_index: Target value of samples to leave out; None if there are none.
        kwargs: Further arguments of ``torchmetrics.Metric``.
    Example:
        >>> metric = ClassGap(num_classes=3)
        >>> metric.update(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2]))
        >>> metric.compute()["worst"]
        tensor(0.5000)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    support: Tensor
    right: Tensor
    predicted: Tensor

    def __init__(self, num_classes: int, *, ignore_index: int | None = IGNORED, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = whole("num_classes", num_classes, low=2)
        self.ignore_index = ignore_index
        for name in ("support", "right", "predicted"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch: ``preds`` are :math:`(N, K)` scores or :math:`(N,)` class indices, ``target`` :math:`(N,)` indices."""
        if preds.dim() == 2 and preds.shape[1] != self.num_classes:
            raise InputError(
                f"preds must have {self.num_classes} columns, one for each class, got {tuple(preds.shape)}"
            )
        labels = preds.argmax(1) if preds.dim() == 2 else preds
        if target.dim() != 1 or labels.shape != target.shape:
            raise InputError(
                f"target must be (N,) class indices with one entry for each prediction, got {tuple(target.shape)} and preds "
                f"{tuple(preds.shape)}; take argmax(1) of one-hot labels"
            )
        if self.ignore_index is not None:
            keep = target != self.ignore_index
            labels, target = labels[keep], target[keep]
        for name, values in (("preds", labels), ("target", target)):
            if values.is_floating_point():
                raise InputError(f"{name} must hold class indices, got {values.dtype}; call .long()")
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < self.num_classes:
                raise InputError(
                    f"{name} must hold class indices in [0, {self.num_classes}), got values from {int(values.min())} to "
                    f"{int(values.max())}"
                )
        self.support += self._count(target)
        self.right += self._count(target[labels == target])
        self.predicted += self._count(labels)

    def compute(self) -> dict[str, Tensor]:
        """``overall, balanced, easy, medium, hard, worst, worst_decile, gap`` as fractions; nan without samples."""
        values = class_scalars(self.right.cpu().numpy(), self.support.cpu().numpy())
        return {name: torch.tensor(value, device=self.support.device) for name, value in values.items()}

    def per_class(self) -> dict[str, Tensor]:
        """``(K,)`` vectors: ``accuracy`` and ``precision`` (nan where there is nothing to divide by) and ``support``.

        These are the counts of this process; call it inside ``with metric.sync_context():`` for those of all processes.
        """
        right = self.right.double()
        return {"accuracy": right / self.support, "precision": right / self.predicted, "support": self.support.clone()}

    def _count(self, labels: Tensor) -> Tensor:
        return torch.bincount(labels, minlength=self.num_classes)
