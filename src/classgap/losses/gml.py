"""GML: features of a teacher, stored in a queue by class, serve as keys by which the features of the student are classified."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.batchstats import gather_rows
from classgap.checks import InputError, number, whole
from classgap.heads import CosineHead
from classgap.losses.batch import LossBatch
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.options import LossOptions
from classgap.losses.projection import mlp_projection
from classgap.losses.taught import TaughtLoss
from classgap.losses.tensor_checks import check_num_features
from classgap.registry import Float, Int, method

# Score of a class without keys: so low that its softmax probability is 0, and finite so that gradients are finite.
_NO_KEY = -1e4
# Below this temperature similarities span more than float32 exponentials do.
_COLDEST = 0.025


def class_log_mean_exp(similarity: Tensor, labels: Tensor, usable: Tensor, num_classes: int) -> Tensor:
    r"""Log of the mean of :math:`e^{s}` over the usable keys of each class.

    Args:
        similarity: :math:`(N, M)` of rows to keys.
        labels: :math:`(M,)` class of each key.
        usable: :math:`(N, M)` or :math:`(M,)` mask.
    Shape:
        returns :math:`(N, K)`; a very low value for a class without usable key. Similarities of a row must lie within 80.
    Example:
        >>> class_log_mean_exp(torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([0, 0, 1]), torch.tensor([True] * 3), 2)
        tensor([[1., 5.]])
    """
    usable = usable.expand_as(similarity)
    peak = similarity.detach().masked_fill(~usable, _NO_KEY).amax(1, keepdim=True)
    terms = torch.where(usable, (similarity - peak).exp(), 0.0)
    # Sums over classes run along whole rows of the transposed matrix, which is many times faster than a scatter.
    total = terms.new_zeros(num_classes, len(similarity)).index_add(0, labels, terms.T).T
    count = terms.new_zeros(num_classes, len(similarity)).index_add(0, labels, usable.to(terms.dtype).T).T
    present = count > 0
    mean = torch.where(present, total, 1.0).clamp_min(1e-37) / count.clamp_min(1.0)
    return torch.where(present, mean.log() + peak, _NO_KEY)


def queue_sizes(class_counts: Tensor, size: int, least: int) -> Tensor:
    """Slots of each class: ``least`` for every class, the rest distributed by class frequency, ``size`` in total.

    Example:
        >>> queue_sizes(torch.tensor([90.0, 10.0]), 14, 2)
        tensor([11,  3])
    """
    share = class_counts.double() / class_counts.double().sum()
    ends = (
        (torch.arange(1, len(share) + 1) * least + (size - len(share) * least) * share.cumsum(0).cpu()).round().long()
    )
    return torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long))


class KeyQueue(nn.Module):
    """Past keys in slots that belong to classes. The oldest key is overwritten first; all ranks hold the same keys."""

    keys: Tensor
    key_index: Tensor
    filled: Tensor
    written: Tensor
    labels: Tensor
    sizes: Tensor
    starts: Tensor

    def __init__(self, sizes: Tensor, num_features: int) -> None:
        super().__init__()
        slots = int(sizes.sum())
        self.register_buffer("keys", torch.zeros(slots, num_features))
        self.register_buffer("key_index", torch.full((slots,), -1))
        self.register_buffer("filled", torch.zeros(slots, dtype=torch.bool))
        self.register_buffer("written", torch.zeros_like(sizes))
        layout = {
            "labels": torch.repeat_interleave(torch.arange(len(sizes)), sizes),
            "sizes": sizes,
            "starts": sizes.cumsum(0) - sizes,
        }
        for name, value in layout.items():
            self.register_buffer(name, value, persistent=False)

    @torch.no_grad()
    def store(self, keys: Tensor, labels: Tensor, index: Tensor) -> None:
        """Store the keys of all ranks."""
        keys, labels, index = (gather_rows(part.detach()) for part in (keys.to(self.keys.dtype), labels, index))
        rows, slots = len(labels), len(self.labels)
        same = labels[:, None] == labels[None]
        earlier = same.tril(-1).sum(1)
        surplus = same.sum(1) - self.sizes[labels]  # more samples of a class than slots: the last ones stay
        slot = self.starts[labels] + (self.written[labels] + earlier) % self.sizes[labels]
        slot = torch.where((earlier >= surplus) & torch.isfinite(keys).all(1), slot, slots)
        source = slot.new_full((slots + 1,), -1).scatter(0, slot, torch.arange(rows, device=slot.device))[:slots]
        new = source >= 0
        source = source.clamp_min(0)
        if rows:
            self.keys.copy_(torch.where(new[:, None], keys[source], self.keys))
            self.key_index.copy_(torch.where(new, index[source], self.key_index))
        self.filled.logical_or_(new)
        self.written.index_add_(0, labels, torch.ones_like(labels))


@method(
    "gml",
    kind="loss",
    family="contrast",
    paper="arXiv:2305.01160",
    needs=("features", "encoder_features", "cosine_head", "index", "class_counts", "teacher"),
    space={
        "alpha": Float(0.1, 4.0, default=1.0, log=True),
        "beta": Float(0.1, 4.0, default=1.0, log=True),
        "scale": Float(10.0, 64.0, default=30.0),
        "slots": Int(512, 65536, default=4096, log=True),
    },
)
class GMLLoss(TaughtLoss):
    r"""Mutual-information learning with a teacher: student features are classified by queued keys of the teacher.

    .. math:: L = \mathrm{CE}(s\cos + \ln\pi) + \beta\,[L_{\mathrm{con}} + L_{\mathrm{con}}^T] + \alpha\,\mathrm{KD}, \qquad
       L_{\mathrm{con}} = \mathrm{CE}\Big(\ln\tfrac1{|k|}\sum_{\mathrm{keys\ of\ }k} e^{q\cdot\mathrm{key}/T} + \ln\pi\Big)

    The teacher is frozen; its features fill a queue with slots for every class and pass a learned projection, as do the
    student's. :math:`L^T_{con}` leaves out a sample's own key and trains only the temperature :math:`T`.

    When to use: long-tailed data and a trained teacher, usually larger than the student.
    Expect: on balanced data the effect of distillation; on long tails what balanced softmax on cosines gives, and
    what a good teacher and different views add to it.
    Pitfalls: train the teacher first and pass it to ``bind_teacher``; the loop must call :meth:`observe` with the inputs
    of each batch; a teacher trained with plain cross-entropy passes on its preference for frequent classes; teacher and
    student see the same view here, where the release uses three, and its projections have BatchNorm; the parameters of the
    loss must be in the optimiser. Distillation at temperature 4 has four times the gradient of the cosines, which are large
    already: without normalisation layers in the network set ``optim.clip=1``.

    Args:
        num_features: Feature dimension of the student.
        teacher_features: Feature dimension of the teacher; the student's by default.
        alpha: Weight of the distillation at temperature 4.
        beta: Weight of the contrast.
        scale: Factor on the cosines, in the student and in a teacher whose cosine head has no scale.
        temperature: First value of :math:`T`, which is learned.
        projection_dim: Output width of the projections.
        slots: Size of the queue.
        least: Smallest number of slots of a class.
        base: The classification term; ``base="dbm", base_params={"variant": "bs", "s": 30}`` is DBM-GML.
        base_params: Its parameters.
    Reference: Suh & Seo, *Long-tailed recognition by mutual information maximization between latent features and ground-truth
    labels*, ICML 2023.
    """

    stop_gradient = True

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        *,
        teacher_features: int | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        scale: float = 30.0,
        temperature: float = 0.1,
        projection_dim: int = 32,
        slots: int = 4096,
        least: int = 2,
        base: str = "balanced_softmax",
        base_params: Mapping[str, Any] | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, base=base, base_params=base_params, class_counts=class_counts, **options)
        self.alpha, self.beta = number("alpha", alpha, low=0.0), number("beta", beta, low=0.0)
        self.scale = number("scale", scale, low=0.0, open_low=True)
        least = whole("least", least, low=1)
        slots = whole("slots", slots, low=1)
        if slots < least * num_classes:
            raise InputError(
                f"slots must be at least least × num_classes = {least * num_classes}, got {slots}; raise slots or lower least"
            )
        self.num_features = check_num_features(num_features, self.name)
        teacher_width = check_num_features(num_features if teacher_features is None else teacher_features, self.name)
        self.query_projection = mlp_projection(num_features, projection_dim)
        self.key_projection = mlp_projection(teacher_width, projection_dim)
        start = number("temperature", temperature, low=0.0, open_low=True)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start)))
        assert self.class_counts is not None
        self.queue = KeyQueue(queue_sizes(self.class_counts, slots, least), teacher_width)

    @staticmethod
    def teacher(params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and parameters of the loss a teacher is trained with, given those of this one.

        As in the release: the classification term alone, balanced softmax on scaled cosines, so that its distillation favours
        no class.
        """
        return "dbm", {"variant": "bs", "k_m": 0.0, "s": params.get("scale", 30.0)}

    def compute(self, batch: LossBatch) -> Tensor:
        logits, features, index, labels = batch.logits, batch.features, batch.index, batch.labels
        assert features is not None  # declared in needs, as are the two below
        assert index is not None
        assert self.log_prior is not None
        from_teacher = self.current_output(logits)
        if self.updating and from_teacher is not None:
            self.queue.store(from_teacher[1], labels, index)
            self._teacher_output = (
                from_teacher[0],
                from_teacher[1][:0],
            )  # keys are stored once; the second SAM pass may still read the logits
        prior = self.log_prior.to(logits.dtype)
        classification = self.base.loss(dataclasses.replace(batch, logits=self._for_base(logits)))
        contrast, tempered = self._contrasts(features, labels, index, prior)
        loss = classification + self.beta * (contrast + tempered).to(logits.dtype)
        if from_teacher is not None:
            loss = loss + self.alpha * self._distillation(logits, from_teacher[0].to(logits.dtype))
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return loss

    compute_empty = compute

    def _contrasts(self, features: Tensor, labels: Tensor, index: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        queue, dtype = self.queue, self.log_temperature.dtype
        query = F.normalize(self.query_projection(features.to(dtype)), dim=1)
        key = F.normalize(self.key_projection(queue.keys.to(dtype)), dim=1)
        cosines, temperature = query @ key.T, self.log_temperature.exp().clamp_min(_COLDEST)
        scores = class_log_mean_exp(cosines / temperature.detach(), queue.labels, queue.filled, self.num_classes)
        contrast = mean_cross_entropy(scores + prior.to(dtype), labels)
        others = queue.filled & (index[:, None] != queue.key_index)
        scores = class_log_mean_exp(cosines.detach() / temperature, queue.labels, others, self.num_classes)
        losses = F.cross_entropy(scores + prior.to(dtype), labels, reduction="none")
        # A sample whose class has no other key does not contribute.
        usable = (others & (queue.labels == labels[:, None])).any(1)
        return contrast, torch.where(usable, losses, 0.0).sum() / max(1, len(labels))

    def _distillation(self, logits: Tensor, teacher_logits: Tensor, temperature: float = 4.0) -> Tensor:
        head = getattr(self._teacher[0], "head", None)
        raw = isinstance(head, CosineHead) and head.scale is None
        teacher_scale = self.scale if raw else 1.0
        taught = F.log_softmax(teacher_logits * (teacher_scale / temperature), 1)
        learned = F.log_softmax(logits * (self.scale / temperature), 1)
        divergence = (taught.exp() * (taught - learned)).sum()
        return divergence * temperature**2 / max(1, len(logits))

    @property
    def ranks_by_output(self) -> bool:
        return self.base.ranks_by_output

    @property
    def cosine_scale(self) -> float:
        return self.base.cosine_scale if "cosine_head" in self.base.needs else self.scale

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """The base's."""
        return self.base.scores(self._for_base(logits), features)

    def _for_base(self, cosines: Tensor) -> Tensor:
        """The logits for the base: cosines if it needs them, otherwise scaled cosines."""
        return cosines if "cosine_head" in self.base.needs else self.scale * cosines

    def is_current(self, output: tuple[Tensor, ...], samples: int) -> bool:
        """Features are dropped as soon as they are stored as keys."""
        logits, features = output
        return len(logits) == samples and (not self.updating or len(features) == samples)
