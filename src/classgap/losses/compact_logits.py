"""Compact logits: our own method, a pull between the logits of a class that grows with the accuracy on the batch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from classgap.batchstats import BatchClasses, ClassMoments, batch_classes, is_distributed, squared_norms
from classgap.batchstats.backend import as_array, as_tensor, to_numpy
from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.class_scatter import BatchScatter, within_class_scatter
from classgap.losses.fit import FIT_POWER, fit_weight
from classgap.losses.mr2 import Margins, gamma_margin_cross_entropy, margins_from_moments
from classgap.losses.options import LossOptions
from classgap.losses.scaled_cross_entropy import scaled_cross_entropy
from classgap.losses.tensor_checks import check_finite
from classgap.losses.terms import Term, weighted_sum
from classgap.registry import Choice, Float, method

_LABELS_PER_CLASS = 50  # labels seen per class, on average, before their balance is judged


@method(
    "compact_logits",
    kind="loss",
    family="compact",
    paper="classgap",
    needs=("features",),
    optional=("class_counts",),
    space={
        "lam": Float(1e-3, 0.3, default=0.02, log=True),
        "c_bar": Float(0.5, 4.0, default=1.0, log=True),
        "margins": Choice(get_args(Margins), default="spread"),
    },
    reduces_to=("cross_entropy", {"margins": "uniform", "c_bar": 1.0, "lam": 0.0}),
)
class CompactLogitsLoss(ClassLoss):
    r"""Cross-entropy plus a pull that makes the logits of each class compact, as far as the batch is classified correctly.

    .. math:: L = \tfrac1N\sum_i \ell_{\gamma,\mathrm{ce}}(z_i, y_i) + \lambda\, A^4\, \tfrac1N\sum_i \tfrac{1}{2(b_i-1)}
        \sum_{j\ne i,\,y_j=y_i} \|z_i - z_j\|^2

    :math:`A` is the share of the batch that is classified correctly and :math:`b_i` the number of samples with the label of
    sample :math:`i`. The pull acts on logits, which have a scale of their own, so that one weight suits every network; the
    power of the accuracy weakens it while classes overlap, where it would lower the accuracy of the hard ones. The first term
    is the margin cross-entropy of MR² with mean margin 1. This is a method of this package, not of a paper.

    When to use: uneven class accuracies on balanced data, where the network fits its training set: a head with a hidden layer,
    a linear probe; on long tails together with ``class_counts``.
    Expect: on balanced data a gain overall and on the hard third, most where training data are fitted completely; no change
    that could be shown where they are not, or where a sentence encoder is fine-tuned; on long tails, with ``class_counts``,
    more than logit adjustment alone.
    Pitfalls: on long tails without ``class_counts`` the pull lowers the accuracy of rare classes; a warning says so. A class
    needs at least two samples in a batch for a pull.

    Args:
        num_classes: Number of classes :math:`K`.
        c_bar: Mean logit margin :math:`\bar c` of the first term.
        lam: Weight :math:`\lambda` of the pull. Where training data are fitted completely, 0.006 to 0.06 differ little.
        p: Order of the norm in the margins: 2 for a linear head, 3 for a cosine head.
        decay: Share of the old class statistics that is kept when a class appears.
        margins: ``"spread"`` takes margins from the feature spread (MR², eq. 1), ``"uniform"`` gives every class
            :math:`\bar c`.
        fit_power: Power of the batch accuracy that scales the pull; 0 gives a constant pull.
        class_counts: Training samples of each class; adds the logit adjustment :math:`\tau\ln\pi`. The logit of class
            :math:`j` on samples of class :math:`y` is then pulled by :math:`(n_j/n_y)^{1/2}`: an equal pull would reduce
            the large logits that rare classes need against their small prior.
        tau: Strength of that adjustment.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` or :math:`(N, K)`, features :math:`(N, d)`; returns a scalar. In class
        statistics and pairs, a soft target counts for its most likely class.
    Example:
        >>> criterion = CompactLogitsLoss(num_classes=10)
        >>> loss = criterion(torch.randn(8, 10), torch.arange(8), features=torch.randn(8, 64))
        >>> sorted(criterion.last)
        ['logit', 'pull']
    """

    pull_on_class: Tensor | None
    pull_on_column: Tensor | None

    def __init__(
        self,
        num_classes: int,
        c_bar: float = 1.0,
        lam: float = 0.02,
        *,
        p: float = 2.0,
        decay: float = 0.9,
        margins: Margins = "spread",
        fit_power: float = FIT_POWER,
        class_counts: Sequence[float] | Tensor | None = None,
        tau: float = 1.0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.c_bar = number("c_bar", c_bar, low=0.0, open_low=True)
        self.lam = number("lam", lam, low=0.0)
        self.fit_power = number("fit_power", fit_power, low=0.0)
        self.tau = number("tau", tau)
        self.margins: Margins = one_of("margins", margins, get_args(Margins))
        self.moments = ClassMoments(num_classes, p=p, decay=decay, spread=None)
        of_class, of_column = self._pull_weights()
        self.register_buffer("pull_on_class", of_class, persistent=False)
        self.register_buffer("pull_on_column", of_column, persistent=False)
        self._seen = np.zeros(num_classes, np.int64) if class_counts is None and self.lam > 0 else None
        self._wait = _LABELS_PER_CLASS * num_classes

    def _pull_weights(self) -> tuple[Tensor | None, Tensor | None]:
        r"""Weights of classes and of logit columns in the pull, each of mean 1; none where all counts are equal.

        The variation of class :math:`y` in the logit of class :math:`j` counts by :math:`(n_j/n_y)^{1/2}`. An equal pull
        would reduce the logits of rare classes, which get few gradients from their own samples.
        """
        counts = self.class_counts
        if counts is None or self.balanced:
            return None, None
        rarity, frequency = counts**-0.5, counts**0.5
        return rarity / rarity.mean(), frequency / frequency.mean()

    @property
    def gamma(self) -> Tensor:
        r""":math:`(K,)` current logit margins, mean :math:`\bar c`."""
        second = self.moments.second
        return (
            torch.full_like(second, self.c_bar)
            if self.margins == "uniform"
            else margins_from_moments(second, self.c_bar)
        )

    def compute(self, batch: LossBatch) -> Tensor:
        logits, target, features, label = batch.logits, batch.target, batch.features, batch.labels
        assert features is not None  # declared in needs
        norms = squared_norms(features.detach(), self.moments.p)
        check_finite(features, norms)
        present = None if torch.compiler.is_compiling() else batch_classes(label)
        if self.updating:
            self.moments.update(features, label, norms=norms, present=present)
            self._watch_balance(label)
        across_ranks = self.across_ranks and is_distributed()
        offset = None if self.log_prior is None else self.tau * self.log_prior.to(logits.dtype)
        if self.lam and target.dim() == 1 and present is not None and not across_ranks:
            return self._in_one_step(logits, target, present, offset)
        logit = gamma_margin_cross_entropy(logits, target, self.gamma, offset=offset)
        pull = torch.zeros_like(logit)
        if self.lam:
            weights = {"class_weight": self.pull_on_class, "column_weight": self.pull_on_column}
            scatter = within_class_scatter(logits, label, **weights, across_ranks=across_ranks)
            pull = scatter * self._fit(logits, label, offset, across_ranks)
        self.last = {"logit": logit.detach(), "pull": pull.detach()}
        return torch.add(logit, pull, alpha=self.lam)

    compute_empty = compute  # a process without samples still takes part in the collectives

    def _in_one_step(self, logits: Tensor, target: Tensor, present: BatchClasses, offset: Tensor | None) -> Tensor:
        """Both terms with one gradient instead of two, for class indices on one device; the same value."""
        scatter = BatchScatter.of(logits, present, self.pull_on_class, self.pull_on_column)
        fit = self._fit(logits, target, offset)
        labels = as_array(target)
        logit = scaled_cross_entropy(logits, labels, as_array(self.gamma)[labels], offset)
        pull = scatter.value * fit
        self.last = {"logit": as_tensor(logit.value, logits), "pull": pull}

        def gradient(factor: float) -> Tensor:
            return scatter.add_gradient(logit.gradient(factor), factor * self.lam * fit)

        return weighted_sum((1.0, Term(torch.add(self.last["logit"], pull, alpha=self.lam), logits, gradient)))

    def _fit(self, logits: Tensor, label: Tensor, offset: Tensor | None, across_ranks: bool = False) -> Tensor | float:
        return fit_weight(logits, label, self.fit_power, offset=offset, across_ranks=across_ranks)

    def _watch_balance(self, label: Tensor) -> None:
        """Warns once when enough labels were seen, they are imbalanced and no counts were given."""
        if self._seen is None or torch.compiler.is_compiling():
            return
        np.add.at(self._seen, to_numpy(label), 1)
        self._wait -= len(label)
        if self._wait > 0:  # a count: a sum over a million classes would cost every step
            return
        rare, frequent = np.quantile(self._seen, (0.1, 0.9))
        self._seen = None
        if frequent > 3 * rare:
            warnings.warn(
                f"labels are imbalanced: frequent classes have {frequent / max(rare, 1):.0f} times the samples of rare ones; "
                "pass class_counts to CompactLogitsLoss, otherwise its pull lowers the accuracy of rare classes",
                stacklevel=2,
            )

    def check_values(self, features: Tensor) -> None:
        """Left to :meth:`compute`, which takes the norms of the features in any case."""

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, c_bar={self.c_bar:g}, lam={self.lam:g}, fit_power={self.fit_power:g}"
