"""Running class moments: how large and how spread out the features of each class are."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from classgap._checks import InputError, number, one_of
from classgap.stats.collectives import gather_rows, is_distributed
from classgap.stats.pairs import ClassPairs, class_runs

Spread = Literal["pooled", "ratio", "moments", "batch"]
SPREADS: tuple[Spread, ...] = get_args(Spread)

# Columns of the per-class sums; the pooled estimator keeps no scatter of single classes.
_NORM, _COUNT, _SCATTER, _FREEDOM = range(4)


class ClassMoments(nn.Module):
    r"""Running per-class :math:`a_k = E\|\phi\|_p^2` and mean within-class spread :math:`\bar s = \frac1K\sum_k\|s_k\|^2`.

    What is kept are decayed sums and counts; quotients are taken when read, so a class not seen yet is nan. A class decays
    once for each step in which it appears: rare classes are not forgotten. A step costs :math:`O(N d)` plus the classes it
    touches, and leaves the same state on every rank.

    Args:
        num_classes: Number of classes :math:`K`.
        p: Norm of the second moment, any :math:`p \ge 1` or ``inf``. Spread is always Euclidean.
        decay: Share of the old sums kept at each appearance.
        spread: Estimator of :math:`\|s_k\|^2`.

            - ``"pooled"``: within-class sum of squares of all classes over its degrees of freedom; for balanced data.
            - ``"ratio"``: the same for each class; a class without two samples in any batch takes the pooled value.
            - ``"moments"``: decayed mean and centred second moment; works even when a class never has two samples in a
              batch, but includes the drift of the mean. Keeps :math:`K \times d` numbers and needs ``num_features``.
            - ``"batch"``: mean squared deviation within the batch, counting singletons as 0, as the authors' release does.
              Too small by about :math:`1 - 1/b` for :math:`b` samples of a class in the batch; for replication only.
        num_features: Feature dimension :math:`d`, for ``"moments"``.
    """

    sums: Tensor
    pooled: Tensor
    mean: Tensor
    drift: Tensor
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
        one_of("spread", spread, SPREADS)
        self.num_classes = num_classes
        self.p = float(p)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        self.spread: Spread = spread
        self.register_buffer("sums", torch.zeros(num_classes, 2 if spread == "pooled" else 4))
        self.register_buffer("pooled", torch.zeros(2))
        moments = num_features is not None and spread == "moments"
        self.register_buffer("mean", torch.zeros(num_classes, num_features or 0) if moments else None)
        self.register_buffer("drift", torch.zeros(num_classes, 2) if moments else None)
        self.register_buffer("width", torch.tensor(num_features or 0))
        self._width: int | None = None

    def forward(self, features: Tensor, target: Tensor) -> None:
        """Take in a batch while in training mode."""
        if self.training:
            self.update(features, target)

    @torch.no_grad()
    def update(self, features: Tensor, target: Tensor, pairs: ClassPairs | None = None) -> None:
        """Take in the batches of all ranks. A collective: every rank calls it, also one without samples.

        ``pairs`` of this batch, where they are at hand, spare a pass over the features.
        """
        features = features.detach().to(self.sums.dtype)
        state = [self.sums, self.pooled] if self.mean is None else [self.sums, self.pooled, self.mean, self.drift]
        if torch.compiler.is_compiling():
            torch.ops.classgap.update_moments(state, features, target, self.p, self.decay, self.spread)
            return
        self._check_width(features.shape[1])
        if self.mean is not None:
            pairs = None  # the means are wanted, not only the scatter
        update_moments(state, features, target, self.p, self.decay, self.spread, pairs)

    @property
    def second(self) -> Tensor:
        r""":math:`(K,)` running :math:`a_k = E\|\phi\|_p^2`; nan for a class not seen yet."""
        return self.sums[:, _NORM] / self.sums[:, _COUNT]

    @property
    def class_spread(self) -> Tensor:
        r""":math:`(K,)` estimates of :math:`\|s_k\|^2`; nan where a class has no estimate yet."""
        count, pooled = self.sums[:, _COUNT], self.pooled[0] / self.pooled[1]
        if self.spread == "pooled":
            return torch.where(count > 0, pooled, torch.nan)
        scatter, freedom = self.sums[:, _SCATTER], self.sums[:, _FREEDOM]
        if self.spread == "batch":
            return scatter / freedom
        if self.spread == "moments":
            # Decayed weights w with Σw = count and Σw² = drift[1]: 1 − Σw²/(Σw)² corrects a weighted variance.
            correction = 1 - self.drift[:, 1] / count.square()
            return torch.where(correction > 1e-6, (scatter + self.drift[:, 0]) / count / correction, torch.nan)
        return torch.where(count > 0, torch.where(freedom > 0, scatter / freedom, pooled), torch.nan)

    @property
    def sbar(self) -> Tensor:
        r""":math:`\bar s`, the mean of :math:`\|s_k\|^2` over classes with an estimate; 0 before there is one."""
        value = self.pooled[0] / self.pooled[1] if self.spread == "pooled" else self.class_spread.nanmean()
        return value.nan_to_num_(nan=0.0)

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
    p: float,
    decay: float,
    spread: str,
    pairs: ClassPairs | None = None,
) -> None:
    """Write one batch into the buffers of :class:`ClassMoments`; only rows of touched classes are visited."""
    sums, pooled, *means = state
    norms = torch.linalg.vector_norm(features, ord=p, dim=1).square_()
    if is_distributed():  # statistics are those of the one batch that all ranks form together
        features, target, norms, pairs = gather_rows(features), gather_rows(target), gather_rows(norms), None
    runs = class_runs(target) if pairs is None else pairs.runs
    share = runs.size.to(norms.dtype).reciprocal_()
    if means:
        rows = features[runs.order]
        mean = rows.new_zeros(rows.shape).index_add_(0, runs.start, rows * share[:, None])[runs.start]
        _update_means(sums, means[0], means[1], mean, runs.labels, share, decay)
        scatter, member = rows.sub_(mean).square_().sum(1), runs.position
    elif pairs is None:
        member = (runs.size > 1).nonzero().squeeze(1)  # single samples have no deviation
        rows = features[runs.order[member]]
        start = torch.searchsorted(member, runs.start[member])
        mean = torch.zeros_like(rows).index_add_(0, start, rows).mul_(share[member, None])
        scatter = rows.sub_(mean[start]).square_().sum(1)
    else:  # Σ‖φ − m‖² = Σ of squared distances over pairs / b
        member = pairs.second_sorted
        scatter = pairs.squared_distance.to(share.dtype) * share.index_select(0, member)
    if spread == "batch":  # every appearance counts once, whatever its number of samples
        freedom, scatter = share, scatter * share.index_select(0, member)
    else:
        freedom = 1 - share  # of each sample: b − 1 in a class of b
    # Every row of a class writes the same decayed value.
    sums.index_copy_(0, runs.labels, sums.index_select(0, runs.labels).mul_(decay))
    columns = [norms.index_select(0, runs.order), torch.ones_like(share)]
    if sums.shape[1] == 4:
        columns += [torch.zeros_like(share), freedom]
        sums[:, _SCATTER].index_add_(0, runs.labels.index_select(0, member), scatter)
    sums.index_add_(0, runs.labels, torch.stack(columns, 1))
    pooled.mul_(decay).add_(torch.stack((scatter.sum(), freedom.sum())))


def _update_means(
    sums: Tensor, mean: Tensor, drift: Tensor, batch: Tensor, labels: Tensor, share: Tensor, decay: float
) -> None:
    """Welford's update with forgetting: the scatter between old and batch mean, so that centred sums never cancel."""
    old, counts = sums[labels, _COUNT] * decay, share.reciprocal()
    shift = batch - mean[labels]
    between = old * counts / (old + counts) * shift.square().sum(1)
    before = drift[labels] * drift.new_tensor([decay, decay**2])
    mean[labels] = mean[labels] + (counts / (old + counts))[:, None] * shift
    drift[labels] = before + torch.stack((between, counts), 1)


# torch.compile cannot look inside (the number of pairs in a batch depends on the data), so it sees one opaque step.
@torch.library.custom_op("classgap::update_moments", mutates_args=("state",))
def _update_moments_op(
    state: list[Tensor], features: Tensor, target: Tensor, p: float, decay: float, spread: str
) -> None:
    update_moments(state, features, target, p, decay, spread)


@_update_moments_op.register_fake
def _(state: list[Tensor], features: Tensor, target: Tensor, p: float, decay: float, spread: str) -> None:
    return None
