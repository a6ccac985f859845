"""What every loss shares: one signature, the checks, soft targets, reductions, and state that behaves as in BatchNorm."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, get_args

import torch
from torch import Tensor, nn

from classgap.batchstats import is_distributed
from classgap.batchstats.backend import is_transformed
from classgap.checks import InputError, number, one_of, whole
from classgap.losses.batch import LossBatch
from classgap.losses.options import IGNORED, Reduction, check_weight, in_all_rows, kept_rows, smoothed_target
from classgap.losses.recomputation import is_repeated_forward
from classgap.losses.tensor_checks import (
    check_cosines,
    check_counts,
    check_experts,
    check_features,
    check_finite,
    check_index,
    check_logits,
    check_target,
    check_tensors,
    check_width,
)
from classgap.registry import Method

TrainingPass = Callable[[], Iterator[LossBatch]]
_TINY = torch.finfo(torch.float32).tiny


class ClassLoss(nn.Module):
    """Base of all losses.

    A subclass implements ``per_sample(batch)``, which returns the loss of each sample for hard labels; soft targets, checks and
    the mean follow. A loss that is not a mean over samples overrides ``compute(batch)`` instead. Both get the arguments of the
    call as one :class:`LossBatch`. Running state is held in buffers and written only while :attr:`updating`.

    Args:
        num_classes: Number of classes :math:`K`.
        class_counts: Training samples of each class, where the method uses them.
        weight: :math:`(K,)` class weights, as in ``torch.nn.CrossEntropyLoss``: ``"mean"`` then divides by the sum of the
            weights of the labels (by the number of samples for soft targets). Only for losses that are a mean over samples and
            have no class weights of their own.
        reduction: ``"mean"``, ``"sum"`` (the mean times the number of samples, where a loss is more than a sum over samples),
            or ``"none"``, which gives one loss per sample and exists only for losses that are a mean over samples.
        ignore_index: Samples with this label are left out: value, gradients and state are those of the batch without them. A
            batch of only such samples gives 0, not nan as in torch. ``None`` leaves out nothing, and saves reading the labels on
            an accelerator at every step. Inside ``torch.compile`` nothing is left out.
        label_smoothing: Share of each target spread evenly over all classes; for losses that take soft targets. Most losses are
            then computed for every class of every sample, at :math:`K` times the cost.
    """

    method: ClassVar[Method]
    """The declaration made by ``@method``."""

    stop_gradient: ClassVar[bool] = False
    """Whether the value contains weights that are, by design, not differentiated."""

    shared_options: ClassVar[tuple[str, ...]] = ("weight", "reduction", "ignore_index", "label_smoothing")
    """What a subclass accepts by passing ``**options`` on."""

    weights_classes: ClassVar[bool] = False
    """Whether the loss has class weights of its own."""

    if_collapsed: ClassVar[str] = ""
    """What to change where all features become the same in training, as the end of a sentence; empty for the usual advice."""

    views: int = 1
    """Views of each sample that a batch must hold, for a loss that declares ``views`` in its needs."""

    experts: int = 1
    """Networks whose outputs a batch must hold, for a loss that declares ``experts`` in its needs."""

    num_features: int | None = None
    """Columns the features must have; None where the loss takes any number of them."""

    class_counts: Tensor | None
    log_prior: Tensor | None
    class_weight: Tensor | None

    def __init__(
        self,
        num_classes: int,
        *,
        class_counts: Sequence[float] | Tensor | None = None,
        weight: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = IGNORED,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes = whole("num_classes", num_classes, low=2)
        self.last: dict[str, Tensor] = {}
        self._frozen = self._alone = False
        counts = None if class_counts is None else check_counts(class_counts, num_classes)
        if counts is None and "class_counts" in self.needs:
            raise InputError(f"{self.name} needs class_counts, the number of training samples of each class")
        self.register_buffer("class_counts", None if counts is None else counts.float(), persistent=False)
        prior = None if counts is None else (counts / counts.sum()).log().float()
        self.register_buffer("log_prior", prior, persistent=False)
        self.reduction: Reduction = one_of("reduction", reduction, get_args(Reduction))
        self.ignore_index = (
            None if ignore_index is None else whole("ignore_index", ignore_index, low=-(2**63), high=2**63 - 1)
        )
        self.label_smoothing = number("label_smoothing", label_smoothing, low=0.0, high=1.0)
        self._check_options(weighted=weight is not None)
        weights = None if weight is None else check_weight(weight, num_classes)
        self.register_buffer("class_weight", weights, persistent=False)

    @classmethod
    def from_counts(cls, class_counts: Sequence[float] | Tensor, **params: Any) -> ClassLoss:
        """The loss for a training set with these class counts."""
        return cls(len(class_counts), class_counts=class_counts, **params)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Statistics, counts and class weights stay in float32 in ``loss.half()``: sums of squares overflow float16."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            owner, _, key = name.rpartition(".")
            module, now = self.get_submodule(owner), self.get_buffer(name)
            narrowed = buffer.is_floating_point() and now.dtype.itemsize < min(4, buffer.dtype.itemsize)
            if narrowed and not isinstance(module, nn.modules.batchnorm._NormBase):
                setattr(module, key, buffer.to(now.device))
        return self

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
        return self.has_sample_losses

    @property
    def has_sample_losses(self) -> bool:
        """Whether the loss of a batch is a mean, perhaps a weighted one, of :meth:`per_sample` and of nothing else."""
        return type(self).compute is ClassLoss.compute

    @property
    def ranks_by_output(self) -> bool:
        """Whether :meth:`scores` are the output of the model, or cosines at the scale of the loss, and nothing else."""
        return type(self).scores is ClassLoss.scores

    @property
    def balanced(self) -> bool:
        """Whether all classes have the same training count, or no counts were given."""
        return self.class_counts is None or bool((self.class_counts == self.class_counts[0]).all())

    @property
    def updating(self) -> bool:
        """Whether this call may write state: in training mode, with gradients enabled, not inside :meth:`frozen`, and not
        when activation checkpointing repeats the forward pass."""
        return self.training and not self._frozen and torch.is_grad_enabled() and not is_repeated_forward()

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
        if logits is None or target is None:
            raise InputError(f"{self.name} needs logits and target, got None")
        check_tensors(logits=logits, target=target, features=features, index=index)
        batch = LossBatch(logits, target, features, index, epoch)
        return self._transformed(batch) if is_transformed() else self.loss(batch)

    def _transformed(self, batch: LossBatch) -> Tensor:
        """The loss inside a transform of ``torch.func``, which lets no operation of torch write into a buffer."""
        try:
            return self.loss(batch)
        except RuntimeError as error:
            if "mutate a captured Tensor" in str(error):
                raise InputError(
                    f"{self.name} writes running state in training mode, which torch.func.grad does not allow; call "
                    "criterion.eval() first, or compute the loss inside criterion.frozen()"
                ) from error
            if "_TransformedGradients" in str(error):
                raise InputError(
                    f"{self.name} has first derivatives in backward mode only (torch.func.grad, vjp, jacrev), not those of "
                    "jacfwd, jvp and hessian; use a loss whose gradient torch computes, e.g. cross_entropy"
                ) from error
            raise

    def loss(self, batch: LossBatch) -> Tensor:
        """The loss of a batch whose arguments are in one value: checks, float32, state from the labels, :meth:`compute`."""
        keep = kept_rows(batch, self.ignore_index, self.views)
        if keep is not None:
            batch = batch.rows(keep)
            self.leave_out(keep)
        ignored = keep is not None and len(batch) == 0 and not is_distributed()
        if not ignored:
            self.check(batch)
        # Exponentials, distances and statistics are float32 whatever autocast says.
        with _float32_only(batch.logits):
            batch = batch.in_working_types()
            if ignored:  # as if there had been no call
                return self._nothing(ClassLoss.compute_empty(self, batch), batch, keep)
            if self.updating:
                self.update_from_labels(batch.target)
            return self._reduced(batch, keep)

    def _reduced(self, batch: LossBatch, keep: Tensor | None) -> Tensor:
        hard, batch = batch.target, self.smoothed(batch)
        if self.reduction == "mean" and self.class_weight is None:
            return self.compute(batch) if len(batch) else self.compute_empty(batch)
        if not len(batch):
            return self._nothing(self.compute_empty(batch), batch, keep)
        if not self.has_sample_losses:
            return self.compute(batch) * (len(batch) // self.views)
        losses = self.sample_losses(batch)
        if self.reduction == "none":
            return in_all_rows(losses, keep)
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / self.divisor(hard).clamp_min(_TINY)  # the weights of these classes may all be 0

    def divisor(self, target: Tensor) -> Tensor:
        """What ``"mean"`` divides the sum over samples by: their number, or the sum of the weights of their labels.

        Samples with the label ``ignore_index`` do not count. With several batches per step, ``loss * divisor / (sum of the
        divisors)`` of each batch adds up to the loss of all their samples, for losses that are a mean over samples.
        """
        if target.dim() == 1 and self.ignore_index is not None and not torch.compiler.is_compiling():
            target = target[target != self.ignore_index]
        if target.dim() == 1 and self.class_weight is not None:
            return self.class_weight[target.long().clamp(0, self.num_classes - 1)].sum()  # forward refuses other labels
        return torch.tensor(float(len(target)), device=target.device)

    def _nothing(self, loss: Tensor, batch: LossBatch, keep: Tensor | None) -> Tensor:
        """The loss of no samples: a scalar, or zeros for all rows that were left out."""
        return in_all_rows(batch.logits.flatten(1).sum(1), keep) if self.reduction == "none" else loss

    def compute(self, batch: LossBatch) -> Tensor:
        """Mean of :meth:`per_sample`; for soft targets the expectation over the label."""
        if batch.target.dim() == 1:
            return self.per_sample(batch).mean()
        single, probability = batch.per_label()
        return (self.per_sample(single) * probability).sum() / len(batch)

    def sample_losses(self, batch: LossBatch) -> Tensor:
        """:math:`(N,)` losses with their class weights; for soft targets the expectation over the label."""
        soft = batch.target.dim() == 2
        single, probability = batch.per_label() if soft else (batch, None)
        losses = self.per_sample(single)
        if self.class_weight is not None:
            losses = losses * self.class_weight.to(losses.dtype)[single.target]
        if probability is None:
            return losses
        rows = batch.target.nonzero()[:, 0]
        return losses.new_zeros(len(batch)).index_add(0, rows, losses * probability.to(losses.dtype))

    def smoothed(self, batch: LossBatch) -> LossBatch:
        """The batch with smoothed targets; unchanged in a loss that smooths them itself."""
        if not self.label_smoothing:
            return batch
        target = smoothed_target(batch.target, self.num_classes, self.label_smoothing, batch.logits.dtype)
        return dataclasses.replace(batch, target=target)

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

    def leave_out(self, keep: Tensor) -> None:
        """Hook: only these rows of the batch are used. A loss that stored something in :meth:`observe` drops the others."""

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
        logits, features, needs = batch.logits, batch.features, self.needs
        for need, value in (("features", features), ("index", batch.index), ("epoch", batch.epoch)):
            if value is None and need in needs:
                raise InputError(f"{self.name} needs {need}: call criterion(logits, target, {need}=…)")
        samples = logits.shape[0] if logits.dim() else 0
        if "experts" in needs:
            check_experts(logits, features, self.experts, self.name)
            logits, features = logits.flatten(0, 1), None if features is None else features.flatten(0, 1)
        check_logits(logits, self.num_classes)
        if samples == 0 and not is_distributed():
            raise InputError("logits is an empty batch of 0 samples; skip the step or use drop_last=True")
        declared = getattr(type(self), "method", None)
        soft = declared.soft_targets if declared is not None else True
        check_target(batch, self.num_classes, soft_allowed=soft, method=self.name)
        if features is not None:
            check_features(features, logits.shape[0])
            check_width(features, self.num_features)
            self.check_values(features)
        check_index(batch.index, samples)
        if batch.epoch is not None and not torch.compiler.is_compiling():
            whole("epoch", batch.epoch, low=0)
        if "cosine_head" in needs:
            check_cosines(logits, self.name)

    def _check_options(self, *, weighted: bool) -> None:
        """Refuse options that mean nothing for this loss."""
        declared = getattr(type(self), "method", None)
        if self.label_smoothing and declared is not None and not declared.soft_targets:
            raise InputError(
                f"{self.name} needs hard labels, got label_smoothing={self.label_smoothing:g}; leave it at 0"
            )
        if weighted and self.weights_classes:
            raise InputError(
                f"{self.name} has class weights of its own; leave weight out, or choose cross_entropy with weight"
            )
        if self.has_sample_losses:
            return
        why = f"{self.name} is more than a mean over samples (it has terms of the whole batch)"
        if weighted:
            raise InputError(f"{why}, so its samples cannot be weighted by weight; leave weight out")
        if self.reduction == "none":
            raise InputError(f"{why}, so there is no loss of a single sample; set reduction to 'mean' or 'sum'")

    def check_values(self, features: Tensor) -> None:
        """Refuse features that are not finite, before any state is written."""
        check_finite(features)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}"


def _float32_only(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
