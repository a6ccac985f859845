"""Cross-entropy of logits, each row divided by its own number."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from classgap.batchstats.backend import Array, as_array, as_tensor, cells
from classgap.losses.terms import Term

_SAFE = 1e-30  # the logarithm of a probability above this is exact to the last digits of a float


def scaled_cross_entropy(
    logits: Tensor, target: Array, divisor: Array, offset: Tensor | None = None, weight: Array | None = None
) -> Term:
    r"""Cross-entropy of :math:`z_i / g_i + o`: its mean, or its sum with the weight of each row.

    Each logit is exponentiated once, for value and gradient together.

    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, divisor and weight :math:`(N,)`, offset :math:`(K,)`; only logits have a
        gradient.
    """
    inverse, share = 1 / divisor, 1 / max(1, logits.shape[0])
    scaled = logits.detach() * as_tensor(inverse[:, None], logits)
    if offset is not None:
        scaled += offset
    probability, own = scaled.softmax(1), cells(target)
    losses = _negative_logarithms(probability, scaled, own)

    def gradient(factor: float) -> Tensor:
        rate = as_tensor(inverse * (factor * (share if weight is None else weight)), logits)
        result = probability.mul_(rate[:, None])
        as_array(result)[own] -= as_array(rate)
        return result

    return Term(losses.sum() * share if weight is None else (losses * weight).sum(), logits, gradient)


def _negative_logarithms(probability: Tensor, scores: Tensor, own: tuple[Array, Array]) -> Array:
    """Negative logarithm of the label's probability, also where that probability is too small for a float."""
    chance = as_array(probability)[own]
    if not isinstance(chance, Tensor) and len(chance) and chance.min() > _SAFE:
        return -np.log(chance)
    # The largest probability is never tiny: its logarithm is exact, and the label's score lies that much below the largest.
    below = scores.amax(1).sub_(as_tensor(as_array(scores)[own], scores))
    return as_array(below.sub_(probability.amax(1).log_()))
