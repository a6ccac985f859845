"""One scale per class: from the row norms of the last layer (τ-norm), or learned (LWS)."""

from __future__ import annotations

import numpy as np

from classgap.checks import InputError, number, one_of
from classgap.posthoc.estimators.base import ClasswiseAffine, balanced_accuracy, class_weights
from classgap.posthoc.estimators.logit_adjustment import TAU_GRID
from classgap.posthoc.held_out import Array, HeldOut
from classgap.posthoc.solver.minimize import solve
from classgap.posthoc.solver.sweep import ClasswiseProblem
from classgap.registry import Choice, Float, method


@method(
    "tau_norm",
    kind="posthoc",
    family="norm",
    paper="arXiv:1910.09217",
    space={"tau": Float(0.0, 2.0, default=1.0)},
)
class TauNorm(ClasswiseAffine):
    r"""τ-normalisation: divide each row of the last layer by :math:`\|W_j\|^\tau` and drop the bias.

    Works on scores: :math:`w_j^\top \phi = \eta_j - b_j`. Needs ``weight_norms``, and ``bias`` if the layer has one.

    When to use: long-tailed data when only the last layer is available: larger norms show which classes were favoured.
    Expect: on balanced data a larger gap (+1 point for the easy third, -1 for the hard third); on a long tail about +14
    points for the hard third and +6 overall without a loss in the easy third (CIFAR-100 embeddings, imbalance 100).
    Pitfalls: needs norms that grow with the counts; strong weight decay, a cosine head or AdamW may have made them equal.

    Args:
        tau: ``1`` gives unit rows, ``0`` the layer without its bias. None (default) chooses among 0, 0.1, …, 2
            the value with the best balanced accuracy on the samples given to ``fit``.
    Attributes:
        tau_: The exponent used.
    Reference: Kang et al., *Decoupling representation and classifier*, ICLR 2020, arXiv:1910.09217, sec. 4.
    """

    tau_: float

    def __init__(self, tau: float | None = None) -> None:
        self.tau = tau

    @classmethod
    def unsuitable(cls, held_out: HeldOut) -> str | None:
        norms = held_out.weight_norms
        if norms is None:
            return "needs the weight of the head"
        no_bias = held_out.bias is None or not np.any(held_out.bias)
        if no_bias and np.ptp(norms) <= 1e-4 * norms.max():
            return "all rows of the head have the same norm, as in a cosine head"
        return super().unsuitable(held_out)

    def _fit(self, held_out: HeldOut) -> None:
        if held_out.weight_norms is None:
            raise InputError("TauNorm needs weight_norms=, the norm of each row of the last layer")
        bias = np.zeros(held_out.num_classes) if held_out.bias is None else held_out.bias
        log_norms = np.log(held_out.weight_norms)
        if self.tau is None:
            raw = held_out.logits - bias
            self.tau_ = float(
                max(TAU_GRID, key=lambda tau: balanced_accuracy(raw * np.exp(-tau * log_norms), held_out.y))
            )
        else:
            self.tau_ = number("tau", self.tau, low=0.0)
        self.scale_ = np.exp(-self.tau_ * log_norms)
        self.offset_ = -self.scale_ * bias


@method(
    "lws",
    kind="posthoc",
    family="norm",
    paper="arXiv:1910.09217",
    space={"form": Choice(("logits", "weights"), default="logits"), "ridge": Float(1e-4, 10.0, default=0.1, log=True)},
)
class LWS(ClasswiseAffine):
    r"""Learnable weight scaling: one scale :math:`f_j` per class, fitted as if all classes were equally frequent.

    Class-aware sampling is replaced by its expectation: sample weights :math:`1 / n_{y}` of the samples given to ``fit``.

    When to use: long-tailed data with held-out scores, when the directions of the last layer should not change.
    Expect: on balanced data a slight loss of the hard third (-1 point); on a long tail about +19 points for the
    hard third, +8 overall and -3 in the easy third with a linear head, but only +6 and +3 with a hidden layer (CIFAR-100
    embeddings, imbalance 100).
    Pitfalls: the effect of a scale depends on the sign of the score: if a class has negative scores for its own samples, a larger
    scale lowers them. MARC has offsets for this case.

    Args:
        form: ``"logits"`` scales the whole score, :math:`f_j (w_j^\top \phi + b_j)` (the authors' code); ``"weights"`` only the
            product, :math:`f_j w_j^\top \phi + b_j` (their paper; needs ``bias``).
        ridge: Weight of the penalty on :math:`f - 1`, relative to the weight of an average class.
        tol: Stop when the gradient norm is this small, relative to the norm at :math:`f = 1`.
    Reference: Kang et al., *Decoupling representation and classifier*, ICLR 2020, arXiv:1910.09217, sec. 4.
    """

    objective_: float

    def __init__(self, form: str = "logits", ridge: float = 0.1, tol: float = 1e-4) -> None:
        self.form = form
        self.ridge = ridge
        self.tol = tol

    def _fit(self, held_out: HeldOut) -> None:
        one_of("form", self.form, ("logits", "weights"))
        number("ridge", self.ridge, low=0.0)
        pivot: Array | float = 0.0
        if self.form == "weights":
            if held_out.bias is None:
                raise InputError(
                    'LWS(form="weights") needs bias=, the bias of the last layer; without it use form="logits"'
                )
            pivot = held_out.bias
        weights = class_weights(held_out.support, 1.0)[held_out.y]
        solution = solve(
            ClasswiseProblem(
                held_out.logits,
                held_out.y,
                weights,
                float(weights.sum()),
                np.ones(held_out.num_classes),
                pivot=pivot,
                ridge=self.ridge,
                free_offset=False,
                free=held_out.support > 0,
            ),
            tol=self.tol,
        )
        self.objective_ = solution.value
        self.scale_ = solution.scale
        self.offset_ = (1 - solution.scale) * pivot
