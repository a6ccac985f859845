"""Running class moments: how large and how spread out the features of each class are."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from classgap.batchstats.backend import Array, as_array, as_tensor, library
from classgap.batchstats.collectives import gather_rows, is_distributed
from classgap.batchstats.pairs import BatchClasses, ClassPairs, batch_classes, centred_rows
from classgap.batchstats.sums import squared_norms
from classgap.checks import InputError, number, one_of

Spread = Literal["pooled", "ratio", "ema"]
SPREADS: tuple[Spread, ...] = get_args(Spread)

# Columns of the per-class sums; the pooled estimator keeps no scatter of single classes.
_NORM, _COUNT, _SCATTER, _FREEDOM = range(4)
_LARGEST = torch.finfo(torch.float32).max


class ClassMoments(nn.Module):
    r"""Running per-class :math:`a_k = E\|\phi\|_p^2` and mean within-class spread :math:`\bar s = \frac1K\sum_k\|s_k\|^2`.

    Decayed sums and counts are stored and quotients are taken when read, so a class not seen yet is nan. The sums of a class
    decay only in steps in which it appears, so that rare classes keep their statistics. A step costs :math:`O(N d)` plus the
    classes it touches, and leaves the same state on every rank.

    Args:
        num_classes: Number of classes :math:`K`.
        p: Norm of the second moment, any :math:`p \ge 1` or ``inf``. Spread is always Euclidean.
        decay: Share of the old sums kept at each appearance.
        spread: Estimator of :math:`\|s_k\|^2`, or None to keep second moments only, at a fraction of the cost.

            - ``"pooled"``: within-class sum of squares of all classes over its degrees of freedom; for balanced data.
            - ``"ratio"``: the same for each class; a class without two samples in any batch takes the pooled value.
            - ``"ema"``: exponential moving averages of each batch's mean squared norm and mean squared deviation, started by
              the first batch of a class; what section 3 of the MR² paper describes. A batch with :math:`b` samples of a class
              gives a deviation that is too small by the factor :math:`1 - 1/b`, and 0 for a single sample.
    """

    sums: Tensor
    pooled: Tensor
    width: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        p: float = 2.0,
        decay: float = 0.9,
        spread: Spread | None = "pooled",
    ) -> None:
        super().__init__()
        if not (isinstance(p, (int, float)) and p >= 1):
            raise InputError(f"p must be a norm order of at least 1 (or inf), got {p!r}")
        if spread is not None:
            one_of("spread", spread, SPREADS)
        self.num_classes = num_classes
        self.p = float(p)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        self.spread: Spread | None = spread
        self.register_buffer("sums", torch.zeros(num_classes, 2 if spread in (None, "pooled") else 4))
        self.register_buffer("pooled", torch.zeros(2))
        self.register_buffer("width", torch.tensor(0))
        self._width: int | None = None

    def forward(self, features: Tensor, target: Tensor) -> None:
        """Add a batch while in training mode."""
        if self.training:
            self.update(features, target)

    def update(
        self,
        features: Tensor,
        target: Tensor,
        *,
        norms: Array | None = None,
        present: BatchClasses | None = None,
        pairs: ClassPairs | None = None,
    ) -> None:
        """Add the batches of all ranks. A collective: every rank calls it, also one without samples.

        ``norms``, ``present`` and ``pairs`` of this batch save passes over it where the caller has them already.
        """
        state = [self.sums, self.pooled]
        if self.spread is not None and pairs is None:
            features = features.to(state[0].dtype)
        features = features.detach()
        norms = squared_norms(features, self.p) if norms is None else norms
        if torch.compiler.is_compiling():
            torch.ops.classgap.update_moments(state, features, target, norms, self.decay, self.spread)
            return
        self._check_width(features.shape[1])
        update_moments(state, features, target, norms, self.decay, self.spread, present, pairs)

    @property
    def second(self) -> Tensor:
        r""":math:`(K,)` running :math:`a_k = E\|\phi\|_p^2`; nan for a class not seen yet."""
        return as_tensor(self.second_array(), self.sums)

    def second_array(self) -> Array:
        """The values of :attr:`second`."""
        sums = as_array(self.sums)
        count = sums[:, _COUNT]
        return sums[:, _NORM] / library(count).where(count > 0, count, torch.nan)

    @property
    def class_spread(self) -> Tensor:
        r""":math:`(K,)` estimates of :math:`\|s_k\|^2`; nan where a class has no estimate yet."""
        count, pooled = self.sums[:, _COUNT], self.pooled[0] / self.pooled[1]
        if self.spread in (None, "pooled"):
            return torch.where(count > 0, pooled, torch.nan)
        scatter, freedom = self.sums[:, _SCATTER], self.sums[:, _FREEDOM]
        if self.spread == "ema":
            return torch.where(count > 0, scatter, torch.nan)
        return torch.where(count > 0, torch.where(freedom > 0, scatter / freedom, pooled), torch.nan)

    @property
    def sbar(self) -> Tensor:
        r""":math:`\bar s`, the mean of :math:`\|s_k\|^2` over classes with an estimate; 0 before there is one."""
        return as_tensor(self.sbar_array(), self.pooled)

    def sbar_array(self) -> Array:
        """The value of :attr:`sbar`."""
        if self.spread not in (None, "pooled"):
            return as_array(self.class_spread.nanmean().nan_to_num_(nan=0.0))
        scatter, freedom = as_array(self.pooled)
        return scatter / (freedom + (freedom == 0))

    def _check_width(self, width: int) -> None:
        if self._width is None:
            if not int(self.width):
                self.width.fill_(width)
            self._width = int(self.width)
        if width != self._width:
            raise InputError(
                f"features must keep their {self._width} columns, got {width}; use a new loss for a new model"
            )

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._width = None

    def extra_repr(self) -> str:
        return f"{self.num_classes}, p={self.p:g}, decay={self.decay:g}, spread={self.spread!r}"


def update_moments(
    state: list[Tensor],
    features: Tensor,
    target: Tensor,
    norms: Array,
    decay: float,
    spread: str | None,
    present: BatchClasses | None = None,
    pairs: ClassPairs | None = None,
) -> None:
    """Write one batch into the buffers of :class:`ClassMoments`, unless it holds values that are not finite.

    Only rows of touched classes are visited.
    """
    if is_distributed():  # statistics are those of the one batch that all ranks form together
        target, norms, present, pairs = gather_rows(target), as_array(gather_rows(torch.as_tensor(norms))), None, None
        features = features if spread is None else gather_rows(features)
    if present is None:
        present = batch_classes(target) if pairs is None else pairs.present
    sums, pooled = as_array(state[0]), as_array(state[1])
    total = library(sums).bincount(present.slot, norms, len(present.classes))
    scatter = None if spread is None else _scatter(features, present, pairs)
    scattered = 0.0 if scatter is None else scatter.sum()
    if not float(total.sum() + scattered) < _LARGEST:
        return  # one batch with an overflow, or with nan, must not remain in the statistics
    if spread == "ema":
        touched = _moving_averages(sums[present.classes], total / present.size, scatter / present.size, decay)
    else:
        touched = sums[present.classes] * decay
        touched[:, _NORM] += total
        touched[:, _COUNT] += present.size
    if spread == "ratio":
        touched[:, _SCATTER] += scatter
        touched[:, _FREEDOM] += present.size - 1
    if scatter is not None:
        pooled *= decay
        pooled[0] += scattered
        pooled[1] += len(present.slot) - len(present.size)  # each class has one degree of freedom less than samples
    sums[present.classes] = touched
    if state[0].dtype is torch.bfloat16:  # NumPy has no view of it, only a copy
        state[0].copy_(as_tensor(sums, state[0]))
        state[1].copy_(as_tensor(pooled, state[1]))


def _scatter(features: Tensor, present: BatchClasses, pairs: ClassPairs | None) -> Array:
    """Sum of squared deviations from the class mean in the batch, for each class of the batch."""
    if pairs is not None:  # Σ‖φ − m‖² = Σ of squared distances over pairs / b
        slot, values, divisor = present.slot[pairs.first], pairs.squared_distance, present.size
        return library(values).bincount(slot, values, len(present.size)) / divisor
    centred = centred_rows(features, present)
    return library(present.size).bincount(centred.slot, squared_norms(centred.values), len(present.size))


def _moving_averages(old: Array, second: Array, deviation: Array, decay: float) -> Array:
    """Rows of :attr:`ClassMoments.sums` as plain moving averages, whose counts are 1 once a class was seen."""
    new = library(old).zeros_like(old)
    new[:, _NORM], new[:, _SCATTER] = second, deviation
    new[:, _COUNT] = new[:, _FREEDOM] = 1
    keep = decay * old[:, _COUNT]  # 0 for a class that was not seen before
    return keep[:, None] * old + (1 - keep)[:, None] * new


# The number of pairs in a batch depends on the data, which torch.compile cannot trace: for it this is one opaque operation.
@torch.library.custom_op("classgap::update_moments", mutates_args=("state",))
def _update_moments_op(
    state: list[Tensor], features: Tensor, target: Tensor, norms: Tensor, decay: float, spread: str | None
) -> None:
    update_moments(state, features, target, as_array(norms), decay, spread)


@_update_moments_op.register_fake
def _(state: list[Tensor], features: Tensor, target: Tensor, norms: Tensor, decay: float, spread: str | None) -> None:
    return None
