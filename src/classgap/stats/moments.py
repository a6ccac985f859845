"""Running class moments: how large and how spread out the features of each class are."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from classgap._checks import InputError, number, one_of
from classgap.stats.sums import ClassScatter, class_scatter

Spread = Literal["pooled", "ratio", "moments", "batch"]
SPREADS: tuple[Spread, ...] = get_args(Spread)

# Buffers of each estimator, in the order the update receives them.
_STATE: dict[Spread, tuple[str, ...]] = {
    "pooled": ("second", "seen", "pooled"),
    "ratio": ("second", "seen", "pooled", "scatter", "freedom"),
    "moments": ("second", "seen", "mean", "scatter", "weight", "weight_sq"),
    "batch": ("second", "seen", "scatter"),
}


class ClassMoments(nn.Module):
    r"""Running per-class :math:`a_k = E\|\phi\|_p^2` and mean within-class spread :math:`\bar s = \frac1K\sum_k\|s_k\|^2`.

    State is in buffers of fixed shape, the same on every rank, and decays once for each step in which a class appears, so
    that rare classes are not forgotten. A step costs :math:`O(N d)` plus the classes it touches.

    Args:
        num_classes: Number of classes :math:`K`.
        p: Norm of the second moment, any :math:`p \ge 1` or ``inf``. Spread is always Euclidean.
        decay: Share of the old value kept at each appearance.
        spread: Estimator of :math:`\|s_k\|^2`.

            - ``"pooled"``: one within-class sum of squares over its degrees of freedom, for balanced data; no per-class state.
            - ``"ratio"``: the same for each class; a class without two samples in any batch takes the pooled value.
            - ``"moments"``: decayed mean and centred second moment; works even when a class never has two samples in a batch,
              but includes the drift of the mean. Keeps :math:`K \times d` numbers and needs ``num_features``.
            - ``"batch"``: mean squared deviation within the batch, counting singletons as 0, as the authors' release does. Too
              small by about :math:`1 - 1/b` for :math:`b` samples of a class in the batch; for replication only.
        num_features: Feature dimension :math:`d`, for ``"moments"``.
    """

    second: Tensor
    seen: Tensor
    pooled: Tensor
    scatter: Tensor
    freedom: Tensor
    mean: Tensor
    weight: Tensor
    weight_sq: Tensor
    width: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        p: float = 2.0,
        decay: float = 0.9,
        spread: Spread = "pooled",
        num_features: int | None = None,
    ) -> None:
        super().__init__()
        if not (isinstance(p, (int, float)) and p >= 1):
            raise InputError(f"p must be a norm order of at least 1 (or inf), got {p!r}")
        if spread == "moments" and num_features is None:
            raise InputError(
                "spread='moments' keeps a mean for each class and needs num_features, the feature dimension"
            )
        self.num_classes = num_classes
        self.p = float(p)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        one_of("spread", spread, SPREADS)
        self.spread: Spread = spread
        shapes: dict[str, tuple[int, ...]] = {"pooled": (2,), "mean": (num_classes, num_features or 0)}
        for name in _STATE[spread]:
            dtype = torch.long if name == "seen" else torch.float32
            self.register_buffer(name, torch.zeros(shapes.get(name, (num_classes,)), dtype=dtype))
        self.register_buffer("width", torch.tensor(num_features or 0))
        self._width: int | None = None

    def forward(self, features: Tensor, target: Tensor) -> None:
        """Take in a batch while in training mode."""
        if self.training:
            self.update(features, target)

    @torch.no_grad()
    def update(self, features: Tensor, target: Tensor) -> None:
        """Take in the batches of all ranks. A collective: every rank calls it, also one without samples."""
        state = [getattr(self, name) for name in _STATE[self.spread]]
        features = features.detach().to(self.second.dtype)
        if torch.compiler.is_compiling():
            torch.ops.classgap.update_moments(state, features, target, self.p, self.decay, self.spread)
            return
        self._check_width(features.shape[1])
        update_moments(state, features, target, self.p, self.decay, self.spread)

    @property
    def class_spread(self) -> Tensor:
        r""":math:`(K,)` estimates of :math:`\|s_k\|^2`; nan where a class has no estimate yet."""
        seen = self.seen > 0
        if self.spread == "pooled":
            values = self._pooled_spread().expand(self.num_classes)
        elif self.spread == "batch":
            values = self.scatter
        elif self.spread == "ratio":
            values = torch.where(self.freedom > 0, self.scatter / self.freedom, self._pooled_spread())
        else:
            # Decayed weights w: Σw = weight, Σw² = weight_sq; 1 − Σw²/(Σw)² corrects the bias of a weighted variance.
            correction = 1 - self.weight_sq / self.weight.square()
            values = torch.where(correction > 1e-6, self.scatter / self.weight / correction, torch.nan)
        return torch.where(seen, values, torch.nan)

    @property
    def sbar(self) -> Tensor:
        r""":math:`\bar s`, the mean of :math:`\|s_k\|^2` over classes with an estimate; 0 before there is one."""
        if self.spread == "pooled":
            return torch.nan_to_num(self._pooled_spread(), nan=0.0)
        return torch.nan_to_num(self.class_spread.nanmean(), nan=0.0)

    def _pooled_spread(self) -> Tensor:
        return self.pooled[0] / self.pooled[1]

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
    state: list[Tensor], features: Tensor, target: Tensor, p: float, decay: float, spread: Spread
) -> None:
    """Write one batch into the buffers ``state`` (see :class:`ClassMoments`); only rows of touched classes are visited."""
    buffers = dict(zip(_STATE[spread], state, strict=True))
    batch = class_scatter(features, target, p=p)
    classes, counts = batch.classes, batch.counts
    first = buffers["seen"][classes] == 0
    buffers["seen"].index_add_(0, classes, counts.long())
    _average(buffers["second"], classes, batch.second / counts, first, decay)
    if spread == "batch":
        _average(buffers["scatter"], classes, batch.scatter / counts, first, decay)
    elif spread == "moments":
        _decayed_moments(buffers, batch, decay)
    else:
        freedom = counts - 1
        buffers["pooled"].mul_(decay).add_(torch.stack((batch.scatter.sum(), freedom.sum())))
        if spread == "ratio":
            buffers["scatter"][classes] = buffers["scatter"][classes] * decay + batch.scatter
            buffers["freedom"][classes] = buffers["freedom"][classes] * decay + freedom


def _average(buffer: Tensor, classes: Tensor, value: Tensor, first: Tensor, decay: float) -> None:
    """Exponential average of touched rows; the first value is taken as it is."""
    buffer[classes] = torch.where(first, value, torch.lerp(value, buffer[classes], decay))


def _decayed_moments(buffers: dict[str, Tensor], batch: ClassScatter, decay: float) -> None:
    """Welford's update with forgetting: centred sums never cancel, however large the mean."""
    classes, counts = batch.classes, batch.counts
    old = buffers["weight"][classes] * decay
    new = old + counts
    shift = batch.means - buffers["mean"][classes]
    between = old * counts / new * shift.square().sum(1)
    buffers["scatter"][classes] = buffers["scatter"][classes] * decay + batch.scatter + between
    buffers["mean"][classes] += (counts / new)[:, None] * shift
    buffers["weight"][classes] = new
    buffers["weight_sq"][classes] = buffers["weight_sq"][classes] * decay**2 + counts


# torch.compile cannot look inside (the number of classes in a batch depends on the data), so it sees one opaque step.
@torch.library.custom_op("classgap::update_moments", mutates_args=("state",))
def _update_moments_op(
    state: list[Tensor], features: Tensor, target: Tensor, p: float, decay: float, spread: str
) -> None:
    update_moments(state, features, target, p, decay, cast("Spread", spread))


@_update_moments_op.register_fake
def _(state: list[Tensor], features: Tensor, target: Tensor, p: float, decay: float, spread: str) -> None:
    return None
