"""The rows that a batch may form pairs with: its own, those of other ranks, and stored features of each class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from classgap.batchstats import gather_rows, gather_with_gradient, is_distributed


class FeatureQueue(nn.Module):
    """The last ``slots`` features of each class, detached, with their index in the training set.

    With them, classes that are rare in a batch have partners too. The oldest entry is overwritten first; all ranks hold the
    same entries.
    """

    memory: Tensor
    memory_index: Tensor
    written: Tensor

    def __init__(self, num_classes: int, slots: int, num_features: int) -> None:
        super().__init__()
        self.slots = slots
        self.register_buffer("memory", torch.zeros(num_classes, slots, num_features))
        self.register_buffer("memory_index", torch.full((num_classes, slots), -1))
        self.register_buffer("written", torch.zeros(num_classes, dtype=torch.long))

    def stored(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, labels and indices stored for the classes in ``target``."""
        classes = torch.unique(target)
        filled = torch.arange(self.slots, device=target.device) < self.written[classes, None]
        labels = classes[:, None].expand(-1, self.slots)[filled]
        return self.memory[classes][filled], labels, self.memory_index[classes][filled]

    @torch.no_grad()
    def store(self, features: Tensor, target: Tensor, index: Tensor | None) -> None:
        """Store the batches of all ranks. Entries without an index count as different from every later sample."""
        if index is None:
            index = target.new_full(target.shape, -1)
        features, target, index = (gather_rows(part) for part in (features.detach(), target, index))
        finite = torch.isfinite(features).all(1)
        features, target, index = features[finite], target[finite], index[finite]
        labels, order = torch.sort(target, stable=True)
        run_start = torch.searchsorted(labels, labels)
        run_stop = torch.searchsorted(labels, labels, right=True)
        position = torch.arange(labels.shape[0], device=target.device)
        newest = run_stop - position <= self.slots  # more samples of a class than slots: the last ones are kept
        slot = (self.written[labels] + position - run_start) % self.slots
        labels, slot, rows = labels[newest], slot[newest], order[newest]
        self.memory[labels, slot] = features[rows].to(self.memory.dtype)
        self.memory_index[labels, slot] = index[rows]
        self.written.index_add_(0, target, torch.ones_like(target))


class Partners(NamedTuple):
    """A batch and all rows it may form pairs with."""

    features: Tensor
    labels: Tensor
    sample_index: Tensor | None
    anchors: tuple[int, int]
    """First and last row (exclusive) of the batch of this rank."""
    batch: int
    """Number of rows that come from the batches of the ranks; the rows after them come from the queue."""


def collect_partners(
    features: Tensor,
    labels: Tensor,
    index: Tensor | None,
    *,
    gather: bool,
    queue: FeatureQueue | None = None,
    store: bool = False,
) -> Partners:
    """Rows of all ranks, with gradients, if ``gather``; then what ``queue`` holds of the classes in the batch.

    With ``store`` the batch is stored in the queue afterwards.
    """
    batch, start = (features, labels, index), 0
    if gather and is_distributed():
        features, start = gather_with_gradient(features)
        labels = gather_rows(labels)
        index = None if index is None else gather_rows(index)
    anchors, rows = (start, start + batch[0].shape[0]), labels.shape[0]
    if queue is not None:
        past, past_labels, past_index = queue.stored(batch[1])
        features, labels = torch.cat((features, past.to(features.dtype))), torch.cat((labels, past_labels))
        index = None if index is None else torch.cat((index, past_index))
        if store:
            queue.store(*batch)
    return Partners(features, labels, index, anchors, rows)


def gathered(features: Tensor, labels: Tensor, across_ranks: bool) -> tuple[Tensor, Tensor]:
    """The rows of all ranks if asked for, with gradients, so that pairs form as on one device; otherwise the given rows."""
    if not across_ranks:
        return features, labels
    return gather_with_gradient(features)[0], gather_rows(labels)
