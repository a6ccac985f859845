"""A loss outside of classgap: one file, one declaration."""

from typing import Unpack

from torch import Tensor

from classgap.checks import number
from classgap.losses import ClassLoss, LossBatch, LossOptions
from classgap.registry import Float, method


@method(
    "confidence_penalty",
    kind="loss",
    family="robust",
    paper="arXiv:1701.06548",
    space={"beta": Float(0.01, 1.0, default=0.1, log=True)},
    reduces_to=("cross_entropy", {"beta": 0.0}),
)
class ConfidencePenaltyLoss(ClassLoss):
    r"""Cross-entropy minus a multiple of the entropy of the prediction.

    .. math:: \ell(z, y) = -\ln p_y - \beta H(p), \qquad p = \operatorname{softmax}(z)

    When to use: predictions that are too confident.
    Expect: a change of calibration, on balanced data and on long tails alike; class accuracies change little.
    Pitfalls: a large ``beta`` keeps the network from fitting the training data.

    Args:
        beta: Weight :math:`\beta` of the entropy; 0 gives cross-entropy.

    Reference: Pereyra et al., *Regularizing Neural Networks by Penalizing Confident Output Distributions*, 2017.
    """

    def __init__(self, num_classes: int, *, beta: float = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(num_classes, **options)  # weight, reduction, ignore_index, label_smoothing
        self.beta = number("beta", beta, low=0.0)

    def per_sample(self, batch: LossBatch) -> Tensor:
        log_p = batch.logits.log_softmax(dim=1)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        return -log_p.gather(1, batch.target[:, None])[:, 0] - self.beta * entropy
