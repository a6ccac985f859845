"""ELM: logit adjustment, plus a pull inside each class that is stronger for rare classes.

Reference: Jitkrittum et al., *ELM: embedding and logit margins for long-tail learning*, 2022, arXiv:2204.13208.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from classgap.batchstats.backend import as_tensor
from classgap.checks import InputError, number, one_of, whole
from classgap.losses.batch import LossBatch
from classgap.losses.logit_adjusted import LogitAdjustedLoss
from classgap.losses.options import LossOptions
from classgap.losses.pair_pull import PAIR_MODES, PairMode, weighted_pull
from classgap.losses.partners import FeatureQueue, collect_partners
from classgap.losses.tensor_checks import check_num_features, check_state_size
from classgap.losses.terms import weighted_sum
from classgap.registry import Choice, Float, method

Alpha = Literal["prior", "sqrt_prior", "sqrt_count", "count"]


def pull_slack(class_counts: Tensor, rule: Alpha = "sqrt_count", scale: float = 1.0) -> Tensor:
    r"""Slack :math:`\alpha_k` of each class: the squared distance below which samples of a class are hardly pulled.

    Args:
        rule: ``"prior"`` :math:`\pi_k`, ``"sqrt_prior"`` :math:`\sqrt{\pi_k}`, ``"sqrt_count"`` :math:`\sqrt{n_k}` or ``"count"``
            :math:`n_k`, times ``scale``.
    Example:
        >>> pull_slack(torch.tensor([90.0, 10.0]), "prior", scale=2.0)
        tensor([1.8000, 0.2000], dtype=torch.float64)

    Reference: section 3.1 and appendix A.2.
    """
    counts = torch.as_tensor(class_counts).double()
    base = counts / counts.sum() if rule.endswith("prior") else counts
    return scale * (base.sqrt() if rule.startswith("sqrt") else base)


@method(
    "elm",
    kind="loss",
    family="margin",
    paper="arXiv:2204.13208",
    needs=("class_counts", "features"),
    space={
        "lam": Float(1e-4, 0.1, default=0.01, log=True),
        "alpha": Choice(get_args(Alpha), default="sqrt_count"),
        "alpha_scale": Float(0.1, 10.0, default=1.0, log=True),
    },
    reduces_to=("balanced_softmax", {"lam": 0.0}),
)
class ELMLoss(LogitAdjustedLoss):
    r"""ELM: logit adjustment, plus a pull that makes classes compact, rare ones most.

    .. math:: \ell_i = -\ln\operatorname{softmax}(z_i + \tau\ln\pi)_{y_i} + \lambda \ln\Big[1 +
        \sum_{j\ne i,\,y_j=y_i} e^{\|\phi_i-\phi_j\|^2 - \alpha_{y_i}}\Big]

    Margins between logits say nothing about the features of rare classes, which remain scattered. The second term pulls
    samples of a class together once they are further apart than its slack, which is small for rare classes.

    When to use: long tails, with features of a linear head. On balanced data it is cross-entropy with the same pull for all
    classes; MR² sets the slack from the data instead.
    Expect: on balanced data cross-entropy with a pull inside classes; on long tails what logit adjustment gives, and
    more where rare classes have pairs in the batch.
    Pitfalls: the sum runs over the class in the paper, over the batch here (and in any training), where a rare class seldom
    has a pair: use the P×Q sampler or ``queue`` so that rare classes have pairs. Distances grow with the feature
    dimension and scale, so ``lam`` and ``alpha`` do not transfer between models, and too large a ``lam`` degrades accuracy.

    Args:
        lam: Weight :math:`\lambda` of the pull; 0 gives balanced softmax.
        alpha: Rule for the slack, see :func:`pull_slack`. The paper uses ``"prior"`` for CIFAR-10-LT, ``"sqrt_count"`` for
            CIFAR-100-LT and iNaturalist, ``"sqrt_prior"`` times 10 with ``lam=0.001`` for ImageNet-LT.
        alpha_scale: Factor on the slack.
        tau: Strength of the logit adjustment; 1 in the paper.
        pair: How partners are combined: ``"sum"`` (paper), ``"mean"`` or ``"pairwise"``, see :func:`within_class_pull`.
        queue: Past features kept for each class as partners; needs ``num_features``.
        num_features: Feature dimension, for ``queue``.
    Shape:
        With soft targets a sample counts for its most likely class in pairs.
    """

    slack: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        lam: float = 0.01,
        alpha: Alpha = "sqrt_count",
        alpha_scale: float = 1.0,
        tau: float = 1.0,
        pair: PairMode = "sum",
        queue: int = 0,
        num_features: int | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, tau=tau, class_counts=class_counts, **options)
        self.lam = number("lam", lam, low=0.0)
        one_of("alpha", alpha, get_args(Alpha))
        one_of("pair", pair, PAIR_MODES)
        if (queue := whole("queue", queue, low=0)) and num_features is None:
            raise InputError("queue stores features of each class and needs num_features, the feature dimension")
        self.num_features = None if num_features is None else check_num_features(num_features, self.name)
        width = self.num_features or 0
        check_state_size(num_classes * queue * width, f"the last {queue} features of each class", self.name)
        alpha_scale = number("alpha_scale", alpha_scale, low=0.0)
        self.pair: PairMode = pair
        self.queue = FeatureQueue(num_classes, queue, width) if queue else None
        assert self.class_counts is not None  # declared as a need
        self.register_buffer("slack", pull_slack(self.class_counts, alpha, alpha_scale).float(), persistent=False)

    def compute(self, batch: LossBatch) -> Tensor:
        assert batch.features is not None  # declared in needs
        logit = super().compute(batch) if len(batch) else batch.logits.sum()
        self.last = {"logit": logit.detach()}
        if not self.lam:
            return logit
        rows, labels, index, anchors, _ = collect_partners(
            batch.features,
            batch.labels,
            batch.index,
            gather=self.across_ranks,
            queue=self.queue,
            store=self.updating,
        )
        share = 1 / max(1, len(batch))
        pull = weighted_pull(rows, labels, self.slack[labels], share, pair=self.pair, anchors=anchors, index=index)
        self.last["pull"] = as_tensor(pull.value, batch.features)
        return logit + weighted_sum((self.lam, pull))

    compute_empty = compute  # a rank without samples still takes part in the collectives
