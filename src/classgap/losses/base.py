"""What every loss shares: one signature, the checks, soft targets, reductions, and state that behaves as in BatchNorm."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from classgap.batchstats import is_distributed
from classgap.checks import InputError
from classgap.losses.batch import LossBatch, at_least_float32
from classgap.losses.tensor_checks import (
    check_cosines,
    check_counts,
    check_experts,
    check_features,
    check_finite,
    check_logits,
    check_target,
)
from classgap.registry import Method

Reduction = Literal["mean", "sum", "none"]
TrainingPass = Callable[[], Iterator[LossBatch]]


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """``"mean"`` divides by the number of samples, never by a sum of weights; no samples give 0."""
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" and values.shape[0] else values.sum()


class ClassLoss(nn.Module):
    """Base of all losses.

    A subclass implements ``per_sample(batch)``, which returns the loss of each sample for hard labels; soft targets, checks and
    the mean follow. A loss that is not a mean over samples overrides ``compute(batch)`` instead. Both get the arguments of the
    call as one :class:`LossBatch`. Running state is held in buffers and written only while :attr:`updating`.

    Args:
        num_classes: Number of classes :math:`K`.
        class_counts: Training samples of each class, where the method uses them.
    """

    method: ClassVar[Method]
    """The declaration made by ``@method``."""

    stop_gradient: ClassVar[bool] = False
    """Whether the value contains weights that are, by design, not differentiated."""

    views: int = 1
    """Views of each sample that a batch must hold, for a loss that declares ``views`` in its needs."""

    experts: int = 1
    """Networks whose outputs a batch must hold, for a loss that declares ``experts`` in its needs."""

    class_counts: Tensor | None
    log_prior: Tensor | None

    def __init__(self, num_classes: int, *, class_counts: Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise InputError(f"num_classes must be a whole number of at least 2, got {num_classes!r}")
        self.num_classes = num_classes
        self.last: dict[str, Tensor] = {}
        self._frozen = self._alone = False
        counts = None if class_counts is None else check_counts(torch.as_tensor(class_counts), num_classes)
        if counts is None and "class_counts" in self.needs:
            raise InputError(f"{self.name} needs class_counts, the number of training samples of each class")
        self.register_buffer("class_counts", None if counts is None else counts.float(), persistent=False)
        prior = None if counts is None else (counts / counts.sum()).log().float()
        self.register_buffer("log_prior", prior, persistent=False)

    @classmethod
    def from_counts(cls, class_counts: Sequence[float] | Tensor, **params: Any) -> ClassLoss:
        """The loss for a training set with these class counts."""
        return cls(len(class_counts), class_counts=class_counts, **params)

    @property
    def name(self) -> str:
        """Registered name, or the class name."""
        declared = getattr(type(self), "method", None)
        return declared.name if declared is not None else type(self).__name__

    @property
    def needs(self) -> frozenset[str]:
        """What :meth:`forward` must be given beyond logits and target."""
        declared = getattr(type(self), "method", None)
        return declared.needs if declared is not None else frozenset()

    @property
    def is_mean_of_samples(self) -> bool:
        """Whether the loss of a batch is the plain mean of :meth:`per_sample`, so that a wrapper may weight the samples.

        A loss that overrides :meth:`compute` and still is such a mean says so by overriding this.
        """
        return type(self).compute is ClassLoss.compute

    @property
    def balanced(self) -> bool:
        """Whether all classes have the same training count, or no counts were given."""
        return self.class_counts is None or bool((self.class_counts == self.class_counts[0]).all())

    @property
    def updating(self) -> bool:
        """Whether this call may write state: in training mode, with gradients enabled and not inside :meth:`frozen`."""
        return self.training and not self._frozen and torch.is_grad_enabled()

    @property
    def across_ranks(self) -> bool:
        """Whether this call forms one batch with the other ranks, which all must make it: in a training forward only.

        Calls in evaluation mode, without gradients and inside :meth:`frozen` may come from one rank alone.
        """
        return self.training and not self._alone and torch.is_grad_enabled()

    @contextlib.contextmanager
    def frozen(self, *, across_ranks: bool = False) -> Iterator[None]:
        """Within this block state is read, not written: re-evaluation of a batch, second SAM pass.

        Args:
            across_ranks: Whether all ranks enter the block and form pairs across ranks as in training, as in the second
                pass of SAM (:meth:`classgap.optim.SAM.perturbed` does so). Otherwise a single rank may enter it.
        """
        before = self._frozen, self._alone
        self._frozen, self._alone = True, not across_ranks
        try:
            yield
        finally:
            self._frozen, self._alone = before

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        features: Tensor | None = None,
        index: Tensor | None = None,
        epoch: int | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            logits: :math:`(N, K)` raw scores (cosines in [-1, 1] for losses that need a cosine head).
            target: :math:`(N,)` class indices, or :math:`(N, K)` probabilities (mixup, smoothing).
            features: :math:`(N, d)`, exactly the tensor fed to the last linear layer; behind a cosine head the unit vectors it
                compares with the classes, for losses that need ``encoder_features`` those before they are normalised.
            index: :math:`(N,)` position of each sample in the training set.
            epoch: 0-based epoch.
        """
        return self.loss(LossBatch(logits, target, features, index, epoch))

    def loss(self, batch: LossBatch) -> Tensor:
        """The loss of a batch whose arguments are in one value: checks, float32, state from the labels, :meth:`compute`."""
        self.check(batch)
        # Exponentials, distances and statistics are float32 whatever autocast says.
        with _float32_only(batch.logits):
            batch = dataclasses.replace(
                batch,
                logits=at_least_float32(batch.logits),
                features=None if batch.features is None else at_least_float32(batch.features),
            )
            if self.updating:
                self.update_from_labels(batch.target)
            return self.compute(batch) if len(batch) else self.compute_empty(batch)

    def compute(self, batch: LossBatch) -> Tensor:
        """Mean of :meth:`per_sample`; for soft targets the expectation over the label."""
        if batch.target.dim() == 1:
            return self.per_sample(batch).mean()
        single, probability = batch.per_label()
        return (self.per_sample(single) * probability).sum() / len(batch)

    def per_sample(self, batch: LossBatch) -> Tensor:
        """:math:`(N,)` losses for hard labels."""
        raise NotImplementedError(f"{type(self).__name__} must implement per_sample or compute")

    def update_from_labels(self, target: Tensor) -> None:
        """Hook: write running state that follows from the labels alone, before the loss of the batch is computed.

        Called while :attr:`updating`, also on a rank without samples, so it may reduce over ranks.
        """

    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        """Hook called by the training loop before each epoch.

        ``training_pass()`` iterates over the training set, one :class:`LossBatch` at a time, in evaluation mode and without
        gradient; a loss that needs no such pass does not call it, and nothing is computed.
        """

    def observe(self, inputs: Tensor) -> None:
        """Hook called by the training loop with the inputs of each batch, before :meth:`forward`: a teacher sees them here."""

    @property
    def cosine_scale(self) -> float:
        """What the loss multiplies cosines by before its softmax; 1 for a loss on plain logits. See ``cosine_head``."""
        return 1.0

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """What to rank classes by at test time, :math:`(N, K)`: the model output, cosines at the scale of the loss, unless a
        method says otherwise."""
        return logits if self.cosine_scale == 1 else self.cosine_scale * logits

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        """The logits with the scale and the margin of this loss, before any class prior, for hard labels.

        A loss built around this one compares predictions on them, as NCL does in its distillation. A loss that changes the logit
        of the true class overrides this; for all others they are the logits themselves.
        """
        return logits

    def compute_empty(self, batch: LossBatch) -> Tensor:
        """The loss of a rank without samples: 0, with a graph. A loss with collectives must take part in them here."""
        return batch.logits.sum() + (0.0 if batch.features is None else batch.features.sum())

    def check(self, batch: LossBatch) -> None:
        """Refuse a batch that this loss cannot be computed from, before any state is written."""
        logits, features = batch.logits, batch.features
        given = {"features": features, "index": batch.index, "epoch": batch.epoch}
        for need, value in given.items():
            if need in self.needs and value is None:
                raise InputError(f"{self.name} needs {need}: call criterion(logits, target, {need}=…)")
        samples = logits.shape[0]
        if "experts" in self.needs:
            check_experts(logits, features, self.experts, self.name)
            logits, features = logits.flatten(0, 1), None if features is None else features.flatten(0, 1)
        check_logits(logits, self.num_classes)
        if samples == 0 and not is_distributed():
            raise InputError("logits is an empty batch of 0 samples; skip the step or use drop_last=True")
        declared = getattr(type(self), "method", None)
        soft = declared.soft_targets if declared is not None else True
        check_target(batch.target, samples, self.num_classes, soft_allowed=soft, method=self.name)
        if features is not None:
            check_features(features, logits.shape[0])
            self.check_values(features)
        if "cosine_head" in self.needs:
            check_cosines(logits, self.name)

    def check_values(self, features: Tensor) -> None:
        """Refuse features that are not finite, before any state is written."""
        check_finite(features, features)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}"


def _float32_only(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
