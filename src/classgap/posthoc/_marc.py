"""MARC: a scale and an offset for each class's margin."""

from __future__ import annotations

import numpy as np

from classgap._checks import number, one_of
from classgap.posthoc._base import ClasswiseAffine, class_weights
from classgap.posthoc._evidence import Array, Evidence
from classgap.posthoc._solver import solve
from classgap.posthoc._sweep import ClasswiseProblem
from classgap.registry import Choice, Float, method


@method(
    "marc",
    kind="posthoc",
    family="margin",
    paper="arXiv:2112.07225",
    space={
        "gamma": Float(0.0, 2.0, default=1.2),
        "normalize": Choice(("weights", "batch"), default="weights"),
        "ridge": Float(1e-4, 10.0, default=0.1, log=True),
    },
)
class MARC(ClasswiseAffine):
    r"""Margin calibration: learn :math:`\hat\eta_j = \omega_j \eta_j + \beta_j \|W_j\|` by re-weighted cross-entropy.

    .. math:: \min_{\omega, \beta} \frac1Z \sum_i U_{y_i} \mathrm{CE}(\hat\eta_i, y_i)
              + \frac{r}{2K} (\|\omega - 1\|^2 + \|\beta\|^2), \quad U_k = K n_k^{-\gamma} / \sum_j n_j^{-\gamma}

    :math:`n_k` counts the samples given to ``fit``, as in the paper, where these are the training samples: a balanced held-out
    set needs no re-weighting, and using the training counts there would correct twice. The problem is convex and solved to
    ``tol`` over all samples instead of by epochs of SGD.

    When to use: long-tailed data with held-out (or out-of-fold) scores of every class, when the counts alone do not fit.
    Expect: on balanced data a slight loss of the hard classes (-1 point); on a long tail about +20
    points for the hard third and +7 overall for -4 in the easy third (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: fitted on scores of the training samples themselves it sees no errors and learns nothing of use. Without
    re-weighting (``gamma=0``) on long-tailed scores it is vector scaling and leaves the tail where it is.

    Args:
        gamma: Exponent of the class weights; ``0`` turns re-weighting off.
        normalize: :math:`Z`: ``"weights"`` divides by :math:`\sum_i U_{y_i}` (the authors' code), ``"batch"`` by the number of
            samples (their equation). The two differ only in how much the ridge weighs.
        ridge: Pull towards no change, relative to the weight of an average class. Their code does the same with weight
            decay, though towards :math:`\omega = 0`. Classes with a handful of samples need it.
        tol: Gradient norm to stop at, relative to the norm at no change.
    Attributes:
        omega_, beta_: The learned scale and offset of each margin ``(K,)``; ``1`` and ``0`` for a class without samples.
        objective_: Value reached.
    Example:
        >>> scores = np.array([[2.0, 1.0], [1.5, 1.0], [1.2, 1.0], [1.0, 0.8]])
        >>> marc = MARC().fit(scores, [0, 0, 1, 1], weight_norms=[2.0, 1.0])
        >>> marc.omega_.shape, marc.beta_.shape
        ((2,), (2,))

    Reference: Wang et al., *Margin calibration for long-tailed visual recognition*, ACML 2022, arXiv:2112.07225, eq. 8-12.
    """

    learned = ("omega_", "beta_", "scale_", "offset_")
    omega_: Array
    beta_: Array
    objective_: float

    def __init__(self, gamma: float = 1.2, normalize: str = "weights", ridge: float = 0.1, tol: float = 1e-4) -> None:
        self.gamma = gamma
        self.normalize = normalize
        self.ridge = ridge
        self.tol = tol

    def _fit(self, evidence: Evidence) -> None:
        number("gamma", self.gamma, low=0.0)
        number("ridge", self.ridge, low=0.0)
        one_of("normalize", self.normalize, ("weights", "batch"))
        weights = class_weights(evidence.held_out, self.gamma)[evidence.y]
        unit = np.ones(evidence.num_classes) if evidence.weight_norms is None else evidence.weight_norms
        solution = solve(
            ClasswiseProblem(
                evidence.logits,
                evidence.y,
                weights,
                float(weights.sum()) if self.normalize == "weights" else float(len(weights)),
                unit,
                ridge=self.ridge,
                free=evidence.held_out > 0,
            ),
            tol=self.tol,
        )
        self.omega_, self.beta_, self.objective_ = solution.scale, solution.offset, solution.value
        self.scale_, self.offset_ = solution.scale, unit * solution.offset
