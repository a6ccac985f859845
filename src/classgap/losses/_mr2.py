r"""MR²: margins from feature spread, in the logits and in the representation.

Reference: Zhu et al., *Reducing Class-Wise Performance Disparity via Margin Regularization*, ICLR 2026.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from classgap._checks import InputError, number, one_of
from classgap.losses._base import ClassLoss
from classgap.losses._checks import check_finite
from classgap.losses._gamma import GammaRule, gamma_margin_cross_entropy, hard_label_loss, margins_from_moments
from classgap.losses._pairs import PAIR_MODES, PairMode, within_class_pull
from classgap.losses._queue import FeatureQueue, collect_partners
from classgap.losses._scatter import BatchScatter, within_class_scatter
from classgap.registry import Choice, Float, method
from classgap.stats import (
    SPREADS,
    ClassMoments,
    ClassPairs,
    ClassRuns,
    Spread,
    class_pairs,
    class_runs,
    squared_norms,
    total_scatter,
)
from classgap.stats.arrays import as_array, library

FeatureForm = Literal["paper", "release", "scale_free"]
Form = Literal["logit", "paper", "release", "scale_free"]
Adjust = Literal["outside", "inside", "posthoc"]
_ENOUGH = 50  # labels a class, on average, before their balance is judged


def representation_margin(
    features: Tensor,
    target: Tensor,
    sbar: Tensor,
    *,
    form: FeatureForm = "paper",
    pair: PairMode | None = None,
    num_classes: int | None = None,
    total: Tensor | None = None,
    running_total: Tensor | None = None,
    temperature: float = 0.5,
    anchors: tuple[int, int] | None = None,
    batch: int | None = None,
    index: Tensor | None = None,
    pairs: ClassPairs | None = None,
) -> Tensor:
    r"""Mean over the batch of how far samples of a class lie apart, beyond twice the average spread.

    .. math:: \ell_i = \ln\Big[1 + \sum_{j\ne i,\,y_j=y_i}\exp\big(\|\phi_i-\phi_j\|^2 - 2\bar s\big)\Big]

    Args:
        sbar: :math:`\bar s`, average within-class squared deviation, not differentiated.
        form: ``"paper"`` is eq. (2) on the batch. ``"release"`` is what the authors' code computes: exponents divided by
            :math:`10 d`, the result times :math:`d/10`, averaged within each class and divided by :math:`K`.
            ``"scale_free"`` measures distances in units of the total scatter :math:`V` of the batch,
            :math:`\|\phi_i-\phi_j\|^2/2V - \bar s/\bar V`, so that the weight means the same for every :math:`K, N, d`, and,
            because :math:`V` is differentiated, shrinking all features together gains nothing.
        pair: How partners are combined (:func:`within_class_pull`); by default a mean in ``"scale_free"``, else a sum.
        num_classes: :math:`K`, for ``"release"``.
        total: :math:`V`, for ``"scale_free"``; by default computed from the anchors.
        running_total: :math:`\bar V`, to compare :math:`\bar s` with; by default :math:`V`, not differentiated.
        temperature: Softness of the ``"scale_free"`` form, in units of the total scatter.
        batch: How many of the rows, the first ones, are the batch; the rest is memory. Default: all.
        anchors, index, pairs: See :func:`within_class_pull`.
    Shape:
        features :math:`(M, d)`, target :math:`(M,)`; returns a scalar.
    Reference: eq. (2).
    """
    start, stop = anchors or (0, features.shape[0])
    samples = max(1, stop - start)
    options: dict[str, Any] = {"anchors": anchors, "index": index, "pairs": pairs}
    if form == "paper":
        options["weight"] = features.new_full((stop - start,), 1 / samples)
        return within_class_pull(features, target, 2 * sbar, pair=pair or "sum", **options)
    if form == "scale_free":
        total = (total_scatter(features[start:stop]) if total is None else total).clamp_min(1e-12)
        slack = sbar / ((total if running_total is None else running_total).detach() * temperature)
        weight = features.new_full((stop - start,), temperature / samples)
        options |= {"scale": 0.5 / (total * temperature), "weight": weight}
        return within_class_pull(features, target, slack, pair=pair or "mean", **options)
    if num_classes is None:
        raise InputError("form='release' divides by the number of classes: pass num_classes")
    unit = 10 * features.shape[1]
    # A mean within each class over K is a mean over samples in which each counts N/(K·b): so it adds up over ranks too.
    labels = as_array(target)
    size = library(labels).bincount(labels[:batch], None, num_classes)[labels[start:stop]]
    weight = (len(labels[:batch]) / num_classes * unit / 100 / samples) / size
    options |= {"scale": 1 / unit, "weight": weight}
    return within_class_pull(features, target, as_array(sbar) * (2 / unit), pair=pair or "sum", **options)


@method(
    "mr2",
    kind="loss",
    family="margin",
    paper="ICLR 2026 (MR²)",
    needs=("features",),
    space={
        "c_bar": Float(0.5, 4.0, default=1.0, log=True),
        "lam": Float(1e-3, 1.0, default=0.02, log=True),
        "form": Choice(("logit", "release", "scale_free", "paper"), default="logit"),
    },
    reduces_to=("cross_entropy", {"gamma_rule": "uniform", "c_bar": 1.0, "lam": 0.0}),
)
class MR2Loss(ClassLoss):
    r"""Margins from feature spread: larger logit margins for scattered classes, and a pull inside each class.

    .. math:: L = \tfrac1N\sum_i \ell_{\gamma,\mathrm{ce}}(z_i, y_i) + \lambda\, \ell_{\bar s}(\phi_i, y_i)

    A class whose features are large or scattered has to win by more, and samples of one class are drawn together: by default
    in their logits, :math:`\ell_{\bar s}` being half the mean squared distance to the others of the class in the batch; in the
    paper in their features, where these are further apart than the average spread. Class statistics are updated from the
    batch before they are used, while in training mode only.

    When to use: uneven class accuracy on balanced data, with a network that is trained or fine-tuned; on long tails together
    with ``class_counts``, which adds logit adjustment.
    Expect: on balanced data that are fitted completely a gain overall and on the hard third, from the pull; margins of mean 1
    add little. On long tails, with ``class_counts``, the gains of logit adjustment and a little more.
    Pitfalls: on long tails without ``class_counts`` the pull takes from rare classes, and a warning says so. A class needs two
    samples in a batch to be pulled together. ``lam`` does not transfer between forms, and the
    paper's form with the paper's weight can wreck training. A mean margin of 2 acts as a temperature of 2: compare with
    ``gamma_rule="uniform"``.

    Args:
        num_classes: Number of classes :math:`K`.
        c_bar: Mean logit margin :math:`\bar c`. At 1 the loss keeps the temperature of cross-entropy; the paper's 2 divides all
            logits by about 2, which slows a short training down (see ``weight_by_gamma``).
        lam: Weight :math:`\lambda` of the representation margin; 0 turns it off. Values do not transfer between forms: the
            paper's 0.5 goes with ``form="paper"`` and wrecks training in a batch, 0.1 with the release's scaling is mild. Logits
            have a scale of their own, so the default's weight means the same for every network: 0.006 to 0.06 differ little.
        p: Norm in the margins: 2 for a linear head, 3 for a cosine head (where 2 gives every class the same margin).
        decay: Share of the old class statistics kept when a class appears.
        form: What is drawn together: ``"logit"`` logits (:func:`within_class_scatter`), else features on the scale of
            :func:`representation_margin`.
        pair: How partners are combined; by default a mean in ``"scale_free"``, else a sum.
        spread: Estimator of :math:`\bar s` (see :class:`~classgap.stats.ClassMoments`), or ``"zero"`` for no slack. By default
            ``"zero"`` with ``form="logit"``, which has none; else ``"pooled"``, and ``"ratio"`` with unequal ``class_counts``,
            so that frequent classes do not decide it.
        gamma_rule: ``"spread"`` (eq. 1), ``"uniform"`` (:math:`\gamma_k=\bar c`), or ``"imbalanced"``.
        weight_by_gamma: Multiply each sample's loss by its margin, leaving boundaries of overlapping classes in place.
        class_counts: Training counts; adds the logit adjustment :math:`\tau\log\pi` for imbalanced data. In ``form="logit"``
            the pull of a class then counts by :math:`1/n_k` (mean 1 over classes): alike for all samples, it would hold back
            the large logits with which rare classes make up for their prior.
        tau: Strength of that adjustment.
        adjust: ``"outside"`` :math:`z/\gamma_y + \tau\log\pi`, ``"inside"`` :math:`(z+\tau\log\pi)/\gamma_y`, or ``"posthoc"``:
            train without and let :meth:`scores` subtract it.
        queue: Past features kept for each class as partners; needs ``num_features``.
        gather: Take partners from all ranks, with gradients.
        num_features: Feature dimension, for ``queue`` and ``spread="moments"``.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` or :math:`(N, K)`, features :math:`(N, d)`; returns a scalar. With soft
        targets a sample counts for its most likely class in statistics and pairs.
    Example:
        >>> criterion = MR2Loss(num_classes=10)
        >>> loss = criterion(torch.randn(8, 10), torch.arange(8), features=torch.randn(8, 64))
        >>> criterion.gamma.shape, sorted(criterion.last)
        (torch.Size([10]), ['logit', 'rep'])

    Reference: Zhu et al., ICLR 2026, eq. (1), (2), (4), (17).
    """

    total: Tensor | None
    pull_weight: Tensor | None

    def __init__(
        self,
        num_classes: int,
        c_bar: float = 1.0,
        lam: float = 0.02,
        *,
        p: float = 2.0,
        decay: float = 0.9,
        form: Form = "logit",
        pair: PairMode | None = None,
        spread: Spread | Literal["zero"] | None = None,
        gamma_rule: GammaRule = "spread",
        weight_by_gamma: bool = False,
        class_counts: Sequence[float] | Tensor | None = None,
        tau: float = 1.0,
        adjust: Adjust = "outside",
        queue: int = 0,
        gather: bool = False,
        num_features: int | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.c_bar = number("c_bar", c_bar, low=0.0, open_low=True)
        self.lam = number("lam", lam, low=0.0)
        self.tau = number("tau", tau)
        one_of("form", form, get_args(Form))
        one_of("gamma_rule", gamma_rule, get_args(GammaRule))
        one_of("adjust", adjust, get_args(Adjust))
        if pair is not None:
            one_of("pair", pair, PAIR_MODES)
        if spread is not None:
            one_of("spread", spread, (*SPREADS, "zero"))
        if gamma_rule == "imbalanced" and class_counts is None:
            raise InputError("gamma_rule='imbalanced' needs class_counts, the number of training samples of each class")
        if form == "logit" and (queue or pair is not None):
            given = "queue" if queue else "pair"
            raise InputError(f"{given} is for pulls between features: choose form='release', 'scale_free' or 'paper'")
        if queue and num_features is None:
            raise InputError("queue stores features of each class and needs num_features, the feature dimension")
        self.form: Form = form
        self.pair: PairMode | None = pair
        self.gamma_rule: GammaRule = gamma_rule
        self.adjust: Adjust = adjust
        self.weight_by_gamma = weight_by_gamma
        self.gather = gather
        self.moments = ClassMoments(
            num_classes, p=p, decay=decay, spread=self._estimator(spread), num_features=num_features
        )
        self.register_buffer("total", torch.zeros(2) if form == "scale_free" else None)
        rarity = None if self.class_counts is None or form != "logit" else self.class_counts.reciprocal()
        self.register_buffer("pull_weight", None if rarity is None else rarity / rarity.mean(), persistent=False)
        self.queue = FeatureQueue(num_classes, queue, num_features) if queue and num_features else None
        watch = class_counts is None and form == "logit" and self.lam > 0
        self._seen = np.zeros(num_classes, np.int64) if watch else None
        self._wait = _ENOUGH * num_classes

    def _estimator(self, spread: Spread | Literal["zero"] | None) -> Spread | None:
        """The estimator of the spread; none where there is no slack."""
        if spread == "zero" or (spread is None and self.form == "logit"):
            return None
        balanced = self.class_counts is None or bool((self.class_counts == self.class_counts[0]).all())
        return spread or ("pooled" if balanced else "ratio")

    @property
    def gamma(self) -> Tensor:
        r""":math:`(K,)` current logit margins, mean :math:`\bar c`."""
        return margins_from_moments(
            self.moments.second, self.c_bar, rule=self.gamma_rule, class_counts=self.class_counts
        )

    @property
    def sbar(self) -> Tensor:
        r"""Current :math:`\bar s`, the average within-class squared deviation; 0 where the loss has no slack."""
        return self.moments.sbar

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None  # declared as a need, checked in forward
        label = target if target.dim() == 1 else target.argmax(1)
        norms, runs, pairs = squared_norms(features.detach(), self.moments.p), None, None
        check_finite(features, norms)
        # One sort of the labels, and one set of distances, serve the statistics and the pull.
        if not torch.compiler.is_compiling():
            if self.lam and self.form != "logit":
                pairs = class_pairs(features.detach(), label)
            runs = class_runs(label) if pairs is None else pairs.runs
        if self.updating:
            self.moments.update(features, label, norms=norms, runs=runs, pairs=pairs)
            self._watch_balance(label)
        gather = self.gather and self.training
        if self.lam and self.form == "logit" and target.dim() == 1 and runs is not None and not gather:
            return self._margin_and_scatter(logits, target, runs)
        logit = self._logit_margin(logits, target)
        if not self.lam:
            self.last = {"logit": logit.detach(), "rep": torch.zeros_like(logit)}
            return logit
        if self.form == "logit":
            rep = within_class_scatter(logits, label, class_weight=self.pull_weight, across_ranks=gather)
        else:
            rep = self._representation_margin(self.form, features, label, index, pairs)
        self.last = {"logit": logit.detach(), "rep": rep.detach()}
        return torch.add(logit, rep, alpha=self.lam)

    def _watch_balance(self, label: Tensor) -> None:
        """Says once that the labels are imbalanced, when enough have been seen and nobody gave counts."""
        if self._seen is None or torch.compiler.is_compiling():
            return
        np.add.at(self._seen, label.cpu().numpy(), 1)
        self._wait -= len(label)
        if self._wait > 0:  # a count: a sum over a million classes would cost every step
            return
        rare, frequent = np.quantile(self._seen, (0.1, 0.9))
        self._seen = None
        if frequent > 3 * rare:
            warnings.warn(
                f"labels are imbalanced, frequent classes have {frequent / max(rare, 1):.0f} times the samples of rare ones: "
                "pass class_counts to MR2Loss, or its pull takes from rare classes",
                stacklevel=2,
            )

    def check_values(self, features: Tensor) -> None:
        """Left to :meth:`compute`, which takes the norms of the features in any case."""

    def _margin_and_scatter(self, logits: Tensor, target: Tensor, runs: ClassRuns) -> Tensor:
        """Both terms in one step, for class indices on one device: the same value with one gradient instead of two."""
        scatter = BatchScatter.of(logits, runs, self.pull_weight)
        logits, offset = self._adjusted(logits)
        loss = hard_label_loss(logits, target, self.gamma, offset, self.weight_by_gamma, pull=(scatter, self.lam))
        self.last = {"logit": torch.sub(loss.detach(), scatter.value, alpha=self.lam), "rep": scatter.value}
        return loss

    def _logit_margin(self, logits: Tensor, target: Tensor) -> Tensor:
        logits, offset = self._adjusted(logits)
        return gamma_margin_cross_entropy(
            logits, target, self.gamma, offset=offset, weight_by_gamma=self.weight_by_gamma
        )

    def _adjusted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, and what is added to them after division by the margin."""
        if self.log_prior is None or self.adjust == "posthoc":
            return logits, None
        offset = self.tau * self.log_prior.to(logits.dtype)
        return (logits + offset, None) if self.adjust == "inside" else (logits, offset)

    def _representation_margin(
        self, form: FeatureForm, features: Tensor, label: Tensor, index: Tensor | None, pairs: ClassPairs | None
    ) -> Tensor:
        if self.gather or self.queue is not None:
            pairs = None  # there are more partners than the batch has
        rows, labels, index, anchors, batch = collect_partners(
            features, label, index, gather=self.gather and self.training, queue=self.queue, remember=self.updating
        )
        total, running_total = self._total_scatter(features)
        return representation_margin(
            rows,
            labels,
            self.sbar,
            form=form,
            pair=self.pair,
            num_classes=self.num_classes,
            total=total,
            running_total=running_total,
            anchors=anchors,
            batch=batch,
            index=index,
            pairs=pairs,
        )

    def _total_scatter(self, features: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Total scatter of the batch, and its running mean."""
        if self.total is None:
            return None, None
        batch = total_scatter(features, across_ranks=self.training)
        if self.updating:
            value = batch.detach().to(self.total.dtype)
            self.total.mul_(self.moments.decay).add_(torch.stack((value, torch.ones_like(value))))
        running = self.total[0] / self.total[1]
        return batch, torch.where(self.total[1] > 0, running, batch.detach().to(running.dtype)).clamp_min(1e-12)

    compute_empty = compute  # a rank without samples still takes part in the collectives

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        if self.log_prior is None or self.adjust != "posthoc":
            return logits
        return logits - self.tau * self.log_prior.to(logits.dtype)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, c_bar={self.c_bar:g}, lam={self.lam:g}, form={self.form!r}"
