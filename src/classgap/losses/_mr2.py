r"""MR²: margins from feature spread, in the logits and in the representation.

Reference: Zhu et al., *Reducing Class-Wise Performance Disparity via Margin Regularization*, ICLR 2026.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from classgap._checks import InputError, number, one_of
from classgap.losses._base import ClassLoss
from classgap.losses._checks import check_finite
from classgap.losses._gamma import GammaRule, gamma_margin_cross_entropy, hard_label_loss, margins_from_moments
from classgap.losses._pairs import PAIR_MODES, PairMode
from classgap.losses._queue import FeatureQueue, collect_partners
from classgap.losses._representation import FeatureForm, representation_margin
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
from classgap.stats.arrays import as_array
from classgap.stats.collectives import all_reduce_sum

Form = Literal["fitted", "logit", "paper", "release", "scale_free"]
_ON_LOGITS: tuple[Form, ...] = ("fitted", "logit")
Adjust = Literal["outside", "inside", "posthoc"]
_ENOUGH = 50  # labels a class, on average, before their balance is judged
_LETS_GO = 4  # power of the training accuracy by which a fitted pull counts; 2 lets go too late on a linear probe


@method(
    "mr2",
    kind="loss",
    family="margin",
    paper="ICLR 2026 (MR²)",
    needs=("features",),
    optional=("class_counts",),
    space={
        "c_bar": Float(0.5, 4.0, default=1.0, log=True),
        "lam": Float(1e-3, 1.0, default=0.02, log=True),
        "form": Choice(("fitted", "logit", "release", "scale_free", "paper"), default="fitted"),
    },
    reduces_to=("cross_entropy", {"gamma_rule": "uniform", "c_bar": 1.0, "lam": 0.0}),
)
class MR2Loss(ClassLoss):
    r"""Margins from feature spread: larger logit margins for scattered classes, and a pull inside each class.

    .. math:: L = \tfrac1N\sum_i \ell_{\gamma,\mathrm{ce}}(z_i, y_i) + \lambda\, \ell_{\bar s}(\phi_i, y_i)

    A class whose features are large or scattered has to win by more, and samples of one class are drawn together: by default
    in their logits, :math:`\ell_{\bar s}` being half the mean squared distance to the others of the class in the batch, times the
    fourth power of the share of the batch that is classified right; in the paper in their features, where these are further
    apart than the average spread. Class statistics are updated from the batch before they are used, while in training mode only.

    When to use: uneven class accuracy on balanced data, with a network that is trained or fine-tuned, or a linear probe; on
    long tails together with ``class_counts``, which adds logit adjustment.
    Expect: on balanced data a gain overall and on the hard third, from the pull, most where training data are fitted
    completely; margins of mean 1 add little. On long tails, with ``class_counts``, more than logit adjustment alone.
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
            have a scale of their own, so the default's weight means the same for every network: where training data are
            fitted completely, 0.006 to 0.06 differ little.
        p: Norm in the margins: 2 for a linear head, 3 for a cosine head (where 2 gives every class the same margin).
        decay: Share of the old class statistics kept when a class appears.
        form: What is drawn together: ``"logit"`` logits (:func:`within_class_scatter`); ``"fitted"`` the same in so far as the
            batch is classified right, since where classes overlap a full pull takes from the hard ones; else features on the
            scale of :func:`representation_margin`.
        pair: How partners are combined; by default a mean in ``"scale_free"``, else a sum.
        spread: Estimator of :math:`\bar s` (see :class:`~classgap.stats.ClassMoments`), or ``"zero"`` for no slack. By default
            ``"zero"`` between logits, where there is none; else ``"pooled"``, and ``"ratio"`` with unequal ``class_counts``,
            so that frequent classes do not decide it.
        gamma_rule: ``"spread"`` (eq. 1), ``"uniform"`` (:math:`\gamma_k=\bar c`), or ``"imbalanced"``.
        weight_by_gamma: Multiply each sample's loss by its margin, leaving boundaries of overlapping classes in place.
        class_counts: Training counts; adds the logit adjustment :math:`\tau\log\pi` for imbalanced data. The logit of class
            :math:`j` on samples of class :math:`y` is then pulled by :math:`(n_j/n_y)^{1/2}`, in ``form="logit"`` by
            :math:`1/n_y` (of mean 1): alike for all, the pull would hold back the large logits with which rare classes
            make up for their prior.
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
    column_weight: Tensor | None

    def __init__(
        self,
        num_classes: int,
        c_bar: float = 1.0,
        lam: float = 0.02,
        *,
        p: float = 2.0,
        decay: float = 0.9,
        form: Form = "fitted",
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
        on_logits = form in _ON_LOGITS
        if on_logits and (queue or pair is not None):
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
        of_class, of_column = self._pull_weights()
        self.register_buffer("pull_weight", of_class, persistent=False)
        self.register_buffer("column_weight", of_column, persistent=False)
        self.queue = FeatureQueue(num_classes, queue, num_features) if queue and num_features else None
        watch = class_counts is None and on_logits and self.lam > 0
        self._seen = np.zeros(num_classes, np.int64) if watch else None
        self._wait = _ENOUGH * num_classes

    def _pull_weights(self) -> tuple[Tensor | None, Tensor | None]:
        r"""How much the pull of a class, and in it the logit of each class, counts; of mean 1, none if all alike.

        How samples of class y vary in the logit of class j counts by :math:`(n_j/n_y)^{1/2}`: alike for all, the pull holds back
        the logits of rare classes, which have little gradient of their own to grow by.
        """
        counts = self.class_counts
        if counts is None or self._is_balanced or self.form not in _ON_LOGITS:
            return None, None
        rarity, frequency = counts ** (-1.0 if self.form == "logit" else -0.5), counts**0.5
        return rarity / rarity.mean(), None if self.form == "logit" else frequency / frequency.mean()

    @property
    def _is_balanced(self) -> bool:
        return self.class_counts is None or bool((self.class_counts == self.class_counts[0]).all())

    def _estimator(self, spread: Spread | Literal["zero"] | None) -> Spread | None:
        """The estimator of the spread; none where there is no slack."""
        if spread == "zero" or (spread is None and self.form in _ON_LOGITS):
            return None
        return spread or ("pooled" if self._is_balanced else "ratio")

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
            if self.lam and self.form not in _ON_LOGITS:
                pairs = class_pairs(features.detach(), label)
            runs = class_runs(label) if pairs is None else pairs.runs
        if self.updating:
            self.moments.update(features, label, norms=norms, runs=runs, pairs=pairs)
            self._watch_balance(label)
        gather = self.gather and self.training
        if self.lam and self.form in _ON_LOGITS and target.dim() == 1 and runs is not None and not gather:
            return self._margin_and_scatter(logits, target, runs)
        logit = self._logit_margin(logits, target)
        if not self.lam:
            self.last = {"logit": logit.detach(), "rep": torch.zeros_like(logit)}
            return logit
        if self.form == "fitted" or self.form == "logit":
            of = {"class_weight": self.pull_weight, "column_weight": self.column_weight}
            rep = within_class_scatter(logits, label, **of, across_ranks=gather) * self._fit(logits, label, gather)
        else:
            rep = self._representation_margin(self.form, features, label, index, pairs)
        self.last = {"logit": logit.detach(), "rep": rep.detach()}
        return torch.add(logit, rep, alpha=self.lam)

    def _fit(self, logits: Tensor, label: Tensor, across_ranks: bool = False) -> Tensor | float:
        """By how much the pull between logits counts: fitted, it lets go of a batch in so far as that is classified wrong."""
        if self.form == "logit":
            return 1.0
        scores, offset = self._adjusted(logits.detach())
        if offset is not None:
            scores = scores + offset
        own, best = scores.gather(1, label[:, None])[:, 0], scores.amax(1)
        if across_ranks:
            right, samples = all_reduce_sum((own >= best).sum(), label.new_tensor(len(label)))
            return (right / samples).to(logits.dtype) ** _LETS_GO
        share: Tensor | float = (as_array(own) >= as_array(best)).sum() / max(1, len(label))
        return share**_LETS_GO

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
        scatter = BatchScatter.of(logits, runs, self.pull_weight, self.column_weight)
        fit = self._fit(logits, target)
        logits, offset = self._adjusted(logits)
        loss = hard_label_loss(logits, target, self.gamma, offset, self.weight_by_gamma, pull=(scatter, self.lam * fit))
        rep = scatter.value * fit
        self.last = {"logit": torch.sub(loss.detach(), rep, alpha=self.lam), "rep": rep}
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
