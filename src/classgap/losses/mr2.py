r"""MR²: margins from feature spread, in the logits and in the representation. Reads beside sections 3 and 5 of the paper.

Reference: Zhu et al., *Reducing Class-Wise Performance Disparity via Margin Regularization*, ICLR 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.batchstats import SPREADS, ClassMoments, ClassPairs, Spread, class_pairs, is_distributed, squared_norms
from classgap.batchstats.backend import Array, as_array, as_tensor, is_mapped, library
from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.fit import FIT_POWER, fit_weight
from classgap.losses.options import LossOptions, Reduction, reduce
from classgap.losses.pair_pull import weighted_pull
from classgap.losses.partners import collect_partners
from classgap.losses.scaled_cross_entropy import scaled_cross_entropy
from classgap.losses.tensor_checks import check_finite
from classgap.losses.terms import Term, weighted_sum
from classgap.registry import Choice, Float, method

if TYPE_CHECKING:
    from classgap.losses.mr2_released import ReleasedMR2Loss

Margins = Literal["spread", "uniform"]
WIDE = 10  # the default temperature is this many times the feature dimension, as in the authors' code


def margins_from_moments(second: Tensor, c_bar: float | Tensor) -> Tensor:
    r"""Per-class logit margins of eq. (1) and (17).

    .. math:: \gamma_k = \bar c\, m\, a_k^{1/3} \big/ \sum_{j\ \text{seen}} a_j^{1/3}

    Their mean over the :math:`m` classes seen so far is :math:`\bar c`; a class not seen yet has :math:`\bar c`.

    Args:
        second: :math:`(K,)` second moments :math:`a_k = E\|\phi\|_p^2`, which are :math:`\|\mu_k\|^2 + \|s_k\|^2` for
            :math:`p = 2`; nan for a class not seen yet.
    Example:
        >>> margins_from_moments(torch.tensor([1.0, 8.0, torch.nan]), 3.0)
        tensor([2., 4., 3.])
    """
    if isinstance(c_bar, Tensor):  # one of several, under vmap
        return c_bar * margins_from_moments(second, 1.0)
    return as_tensor(_margins(as_array(second), c_bar), second)


def _margins(second: Array, c_bar: float) -> Array:
    xp = library(second)
    seen = second == second
    weight = xp.where(second > 1e-12, second, 1e-12) ** (1 / 3) * seen  # the lower limit: features may all be 0
    scale = c_bar * seen.sum() / (weight.sum() + 1e-30)  # 1e-30: no class may have been seen
    return xp.where(seen, weight * scale, c_bar)


def gamma_margin_cross_entropy(
    logits: Tensor, target: Tensor, gamma: Tensor, *, offset: Tensor | None = None, reduction: Reduction = "mean"
) -> Tensor:
    r"""Cross-entropy on logit rows divided by the margin of their true class, eq. (1).

    .. math:: \ell_{\gamma,\mathrm{ce}}(z_i, y_i) = -\ln\operatorname{softmax}(z_i/\gamma_{y_i} + o)_{y_i}

    The loss of a correctly classified sample grows with :math:`\gamma_y`. Predictions use the raw :math:`z`.

    Args:
        gamma: :math:`(K,)` margins, not differentiated.
        offset: :math:`(K,)` offset :math:`o`, e.g. :math:`\tau\ln\pi` for imbalanced data; 0 in the paper.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` ints or :math:`(N, K)` probabilities; returns a scalar, or :math:`(N,)`.
    Example:
        >>> gamma_margin_cross_entropy(torch.tensor([[4.0, 0.0]]), torch.tensor([0]), torch.tensor([2.0, 1.0]))
        tensor(0.1269)
    """
    if reduction == "mean" and not is_mapped(logits):
        return weighted_sum((1.0, logit_term(logits, target, as_array(gamma), offset)))
    if target.dim() == 1:
        scaled = logits * gamma.detach().to(logits.dtype).index_select(0, target).reciprocal()[:, None]
        return reduce(
            F.cross_entropy(scaled if offset is None else scaled + offset, target, reduction="none"), reduction
        )
    rows, labels = target.nonzero(as_tuple=True)
    losses = gamma_margin_cross_entropy(logits[rows], labels, gamma, offset=offset, reduction="none")
    expected = logits.new_zeros(logits.shape[0]).index_add(0, rows, losses * target[rows, labels].to(losses.dtype))
    return reduce(expected, reduction)


def logit_term(logits: Tensor, target: Tensor, gamma: Array, offset: Tensor | None = None) -> Term:
    """:func:`gamma_margin_cross_entropy` as a term of a loss."""
    if target.dim() == 1:
        labels = as_array(target)
        return scaled_cross_entropy(logits, labels, gamma[labels], offset)
    # A soft target is an expectation over labels, each scored with its own margin; the cost follows the non-zero entries.
    rows, columns = target.nonzero(as_tuple=True)
    weight, labels = as_array(target[rows, columns].to(logits.dtype)) / max(1, len(logits)), as_array(columns)
    return scaled_cross_entropy(logits[rows], labels, gamma[labels], offset, weight)


def representation_margin(
    features: Tensor,
    target: Tensor,
    sbar: Tensor,
    *,
    temperature: float = 1.0,
    anchors: tuple[int, int] | None = None,
    index: Tensor | None = None,
    pairs: ClassPairs | None = None,
) -> Tensor:
    r"""Mean over samples of how far away the other samples of the same class are, beyond twice the average spread, eq. (2).

    .. math:: \ell_{\bar s}(\phi_i, y_i) = T \ln\Big[1 + \sum_{j\ne i,\,y_j=y_i}
        \exp\big((\|\phi_i-\phi_j\|^2 - 2\bar s)/T\big)\Big] - (T-1) \ln b_i

    for :math:`b_i` samples of the class of sample :math:`i`. The last term is 0 in the paper, where :math:`T = 1`. It has no
    gradient and keeps the value comparable: without it a large :math:`T` adds the constant :math:`T \ln b_i`.

    Args:
        sbar: Average within-class squared deviation :math:`\bar s`, not differentiated.
        temperature: :math:`T`; 1 in the paper. The larger it is, the more evenly all pairs are pulled together.
        anchors, index, pairs: See :func:`~classgap.losses.within_class_pull`.
    Shape:
        features :math:`(N, d)`, target :math:`(N,)`; returns a scalar. A sample without another one of its class adds 0.
    Example:
        >>> representation_margin(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]), torch.tensor(2.0))
        tensor(0.4621)
    """
    options: dict[str, Any] = {"anchors": anchors, "index": index, "pairs": pairs}
    return weighted_sum((1.0, representation_term(features, target, sbar, temperature, **options)))


def representation_term(
    features: Tensor,
    target: Tensor,
    sbar: Tensor | Array,
    temperature: float,
    anchors: tuple[int, int] | None,
    index: Tensor | None,
    pairs: ClassPairs | None,
) -> Term:
    """:func:`representation_margin` as a term of a loss."""
    start, stop = anchors or (0, features.shape[0])
    slack, weight = sbar * (2 / temperature), temperature / max(1, stop - start)
    scale, centred = 1 / temperature, 1 - 1 / temperature
    return weighted_pull(
        features, target, slack, weight, scale=scale, centred=centred, anchors=anchors, index=index, pairs=pairs
    )


@method(
    "mr2",
    kind="loss",
    family="margin",
    paper="ICLR 2026 (MR²)",
    needs=("features",),
    optional=("class_counts",),
    space={
        "c_bar": Float(0.5, 4.0, default=1.0, log=True),
        "lam": Float(1e-3, 0.3, default=0.01, log=True),
        "margins": Choice(get_args(Margins), default="spread"),
    },
    reduces_to=("cross_entropy", {"margins": "uniform", "c_bar": 1.0, "lam": 0.0}),
)
class MR2Loss(ClassLoss):
    r"""MR²: larger logit margins for classes with scattered features, and a pull that makes each class compact.

    .. math:: L = \tfrac1N\sum_i \ell_{\gamma,\mathrm{ce}}(z_i, y_i) + \lambda A^f\, \ell_{\bar s}(\phi_i, y_i)

    Eq. (4) of the paper, with :func:`gamma_margin_cross_entropy` (eq. 1 and 17) and :func:`representation_margin` (eq. 2). The
    factor :math:`A^f` is ours: :math:`A` is the accuracy on the batch. A constant weight, :math:`f = 0` in the paper, draws all
    features to one point while the network cannot tell classes apart yet, in particular a new head on a pretrained network.
    ``MR2Loss(num_classes)`` is a setting of this formula that trains on everything it was tried on.
    :meth:`published` has the paper's values, :meth:`released` computes what the authors' code computes. The statistics
    of the classes are updated from the batch before they are used, in a training forward only.

    When to use: balanced data with uneven class accuracies, when features are learned (training or fine-tuning); with
    ``lam=0`` for a linear probe of frozen features, as in the paper.
    Expect: on balanced data with a hidden layer on frozen embeddings about one point overall and on the hard third,
    on small convolutional networks no change that could be shown; on long tails, with ``class_counts``, what logit
    adjustment gives.
    Pitfalls: the pull slows training down. Fine-tuning EfficientNet-Lite0 for 3 epochs it lost two points overall and five on
    the hard third; after 9 epochs neither loss nor gain could be shown there (three runs each). Values of ``lam`` do not
    transfer between temperatures. The published setting (``temperature=1``, ``lam=0.5``) stopped training wherever
    features were trained and not scaled to unit length. A mean margin of 2 acts as a temperature of 2: compare with
    ``margins="uniform"``. A class needs at least two samples in a batch for a pull.

    Args:
        num_classes: Number of classes :math:`K`.
        c_bar: Mean logit margin :math:`\bar c`. 1 keeps the temperature of cross-entropy; the paper recommends 2.
        lam: Weight :math:`\lambda` of the representation margin; 0 turns it off. The default was chosen on training images that
            no run trained on (``benchmarks/mr2_default.py``).
        temperature: :math:`T` of the representation margin. The paper has 1. By default :math:`10 d`, as in the authors' code,
            for features of dimension :math:`d`.
        p: Order of the norm in the margins: 2 for a linear head, 3 for a cosine head (where 2 gives every class the same
            margin).
        fit_power: Power :math:`f` of the batch accuracy that scales :math:`\lambda`; 0 for the constant weight of the paper.
        decay: Share of the old class statistics that is kept when a class appears; 0.9 in the paper.
        margins: ``"spread"`` is eq. (1), ``"uniform"`` gives every class :math:`\bar c`.
        spread: Estimator of :math:`\bar s` (see :class:`~classgap.batchstats.ClassMoments`). ``"ema"`` is the paper's, whose
            value is too small when a batch holds few samples of a class; ``"zero"`` sets :math:`\bar s = 0`. By default
            ``"pooled"``, or ``"ratio"`` with unequal ``class_counts``, so that frequent classes do not decide it.
        class_counts: Training samples of each class; adds :math:`\tau\ln\pi` to the divided logits (LA + MR² of the paper,
            whose exact form is not published).
        tau: Strength of that logit adjustment.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` or :math:`(N, K)`, features :math:`(N, d)`; returns a scalar. In class
        statistics and pairs, a soft target counts for its most likely class.
    Example:
        >>> criterion = MR2Loss(num_classes=10)
        >>> loss = criterion(torch.randn(8, 10), torch.arange(8), features=torch.randn(8, 64))
        >>> criterion.gamma.shape, sorted(criterion.last)
        (torch.Size([10]), ['logit', 'rep'])

    Reference: Zhu et al., ICLR 2026, eq. (1), (2), (4), (17).
    """

    def __init__(
        self,
        num_classes: int,
        c_bar: float = 1.0,
        lam: float = 0.01,
        *,
        temperature: float | None = None,
        p: float = 2.0,
        decay: float = 0.9,
        margins: Margins = "spread",
        spread: Spread | Literal["zero"] | None = None,
        fit_power: float = FIT_POWER,
        class_counts: Sequence[float] | Tensor | None = None,
        tau: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.c_bar = number("c_bar", c_bar, low=0.0, open_low=True)
        self.lam = number("lam", lam, low=0.0)
        self.fit_power = number("fit_power", fit_power, low=0.0)
        self.temperature = None if temperature is None else number("temperature", temperature, low=0.0, open_low=True)
        self.tau = number("tau", tau)
        self.margins: Margins = one_of("margins", margins, get_args(Margins))
        if spread is None:
            spread = "pooled" if self.balanced else "ratio"
        one_of("spread", spread, (*SPREADS, "zero"))
        self.moments = ClassMoments(num_classes, p=p, decay=decay, spread=None if spread == "zero" else spread)

    @classmethod
    def published(cls, num_classes: int, **params: Any) -> PublishedMR2Loss:
        r"""The paper's setting: :math:`T = 1, \bar c = 2, \lambda = 0.5`, and the statistics of its section 3."""
        return PublishedMR2Loss(num_classes, **params)

    @classmethod
    def released(cls, num_classes: int, **params: Any) -> ReleasedMR2Loss:
        """What the authors' code computes, step for step."""
        from classgap.losses.mr2_released import ReleasedMR2Loss

        return ReleasedMR2Loss(num_classes, **params)

    @property
    def gamma(self) -> Tensor:
        r""":math:`(K,)` current logit margins, mean :math:`\bar c`."""
        second = self.moments.second
        uniform = self.margins == "uniform"
        return torch.full_like(second, self.c_bar) if uniform else margins_from_moments(second, self.c_bar)

    @property
    def sbar(self) -> Tensor:
        r"""Current :math:`\bar s`, the average within-class squared deviation; 0 for ``spread="zero"``."""
        return self.moments.sbar

    def compute(self, batch: LossBatch) -> Tensor:
        logits, target, features, label = batch.logits, batch.target, batch.features, batch.labels
        assert features is not None  # declared in needs
        moments, lam, pairs, mapped = self.moments, self.lam, None, is_mapped(logits)
        values = features.detach()
        norms = squared_norms(values, moments.p)
        check_finite(features, norms)
        if mapped and not features.requires_grad:
            lam = 0.0  # many heads on frozen features: the representation margin is the same constant for all of them
        if lam and not torch.compiler.is_compiling():
            pairs = class_pairs(values, label)  # one set of distances serves the statistics and the pull
        if self.updating:
            moments.update(values, label, norms=norms, pairs=pairs)
        rep = self._representation_margin(features, label, batch.index, pairs) if lam else None
        offset = self._offset(logits)
        if mapped:
            loss = gamma_margin_cross_entropy(logits, target, self.gamma, offset=offset)
            return loss if rep is None else loss + weighted_sum((lam, rep))
        logit = logit_term(logits, target, self._gamma(), offset)
        self.last = {"logit": as_tensor(logit.value, logits), "rep": as_tensor(rep.value if rep else 0.0, logits)}
        if rep is None:
            return weighted_sum((1.0, logit))
        across_ranks = self.across_ranks and is_distributed()
        fit = fit_weight(logits, label, self.fit_power, offset=offset, across_ranks=across_ranks)
        return weighted_sum((1.0, logit), (lam * fit, rep))

    def _gamma(self) -> Array:
        second = self.moments.second_array()
        uniform = self.margins == "uniform"
        return library(second).full_like(second, self.c_bar) if uniform else _margins(second, self.c_bar)

    def _offset(self, logits: Tensor) -> Tensor | None:
        prior = self.log_prior
        return None if prior is None else self.tau * prior.to(logits.dtype)

    def _representation_margin(
        self, features: Tensor, label: Tensor, index: Tensor | None, pairs: ClassPairs | None
    ) -> Term:
        rows, labels, index, anchors, batch = collect_partners(features, label, index, gather=self.across_ranks)
        temperature = WIDE * features.shape[1] if self.temperature is None else self.temperature
        known = pairs if batch == label.shape[0] else None  # other processes add partners
        return representation_term(rows, labels, self.moments.sbar_array(), temperature, anchors, index, known)

    def check_values(self, features: Tensor) -> None:
        """Left to :meth:`compute`, which takes the norms of the features in any case."""

    compute_empty = compute  # a process without samples still takes part in the collectives

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, c_bar={self.c_bar:g}, lam={self.lam:g}, temperature={self.temperature}"


@method(
    "mr2_published",
    kind="loss",
    family="margin",
    paper="ICLR 2026 (MR²)",
    needs=("features",),
    optional=("class_counts",),
    space={"c_bar": Float(1.0, 3.0, default=2.0), "lam": Float(0.1, 0.9, default=0.5)},
    reduces_to=("cross_entropy", {"margins": "uniform", "c_bar": 1.0, "lam": 0.0}),
)
class PublishedMR2Loss(MR2Loss):
    r"""MR² with every value as published: eq. (1), (2) and (4) with :math:`\bar c = 2` and :math:`\lambda = 0.5`.

    The running statistics are exponential moving averages, with decay 0.9, of :math:`\|\hat\mu_k\|^2` and
    :math:`\|\hat s_k\|^2` of each batch, for the classes the batch holds, as section 3 says. The first batch of a class sets
    the average. The sum in eq. (2) runs over the batch, since no training can hold the features of a whole class.

    When to use: to compare with the paper. Use :class:`MR2Loss` to train a model.
    Expect: on balanced data training that hardly starts: wherever features were trained and not scaled to unit length, eq. (2)
    with the published weight drew all of them to one point. With a cosine head and a hidden layer on frozen features of
    CIFAR-100 it gained 2 points overall and on the hard third. The paper reports +3.0 points overall and +5.2 on the hard third
    (CIFAR-100, ResNet-32, 300 epochs), a run not repeated here. On long tails the same collapse.
    Pitfalls: the squared distances of eq. (2) are not relative to any scale, so that a network whose features lie far
    apart starts with an enormous loss.

    Args:
        c_bar: Mean logit margin :math:`\bar c`; the paper chooses from 1, 2, 3 on validation data and finds 2 best.
        lam: Weight :math:`\lambda`; chosen from 0.1, 0.3, 0.5, 0.7, 0.9, with 0.5 best on CIFAR-100.
        spread: ``"ema"`` is the paper's; ``"zero"`` is row (d) of its Table 3.
    Example:
        >>> MR2Loss.published(10)
        PublishedMR2Loss(
          num_classes=10, c_bar=2, lam=0.5, temperature=1.0
          (moments): ClassMoments(10, p=2, decay=0.9, spread='ema')
        )
    """

    if_collapsed = (
        "lower method.lam (0.01 or less), or use method=mr2, whose pull is weak until the network fits its data"
    )

    def __init__(
        self,
        num_classes: int,
        c_bar: float = 2.0,
        lam: float = 0.5,
        *,
        p: float = 2.0,
        decay: float = 0.9,
        margins: Margins = "spread",
        spread: Literal["ema", "zero"] = "ema",
        class_counts: Sequence[float] | Tensor | None = None,
        tau: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        one_of("spread", spread, ("ema", "zero"))
        own: dict[str, Any] = {
            "p": p,
            "decay": decay,
            "margins": margins,
            "spread": spread,
            "tau": tau,
            "fit_power": 0.0,
        }
        super().__init__(num_classes, c_bar, lam, temperature=1.0, class_counts=class_counts, **own, **options)
