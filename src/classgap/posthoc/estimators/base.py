"""Base class of post-hoc methods: checks, ``fit``, ``transform``, ``predict`` and folding into the last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from classgap.checks import InputError, float_matrix, float_vector, one_of
from classgap.named import columns_in_order
from classgap.posthoc.held_out import (
    Array,
    HeldOut,
    as_logits,
    check_features,
    check_scores,
    kind_of_scores,
    scores_in_order,
)
from classgap.predictions.predictions import ScoreKind

_ENOUGH_ROWS = 10
Self = TypeVar("Self", bound="PostHocMethod")


class PostHocMethod(BaseEstimator):  # type: ignore[misc]
    """Base class of all methods: learns from held-out scores, then corrects the scores of new samples.

    A subclass implements :meth:`_fit` (with a checked :class:`HeldOut`) and :meth:`_transform`, and lists its learned arrays in
    ``learned``; :func:`classgap.posthoc.save` writes these. The column of a class without held-out samples is not changed.
    ``variants`` declares the settings that :func:`classgap.fix` tries, and :meth:`unsuitable` says when it leaves the method out.

    Attributes:
        classes_: Name of each column.
        scores_kind_: Kind of the scores on which the method was fitted: ``"logits"`` or ``"probabilities"``. The method works
            on logits, or on the logarithms of probabilities, and rejects scores of the other kind.
    """

    learned: ClassVar[Mapping[str, str]] = {}
    """Learned arrays and their shapes: one letter per dimension, ``K`` for the classes, any other letter for any length."""
    uses_features: ClassVar[bool] = False
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    """Settings that :func:`classgap.fix` compares by cross-fitting; an empty one is the default."""
    classes_: Array
    scores_kind_: ScoreKind

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not isinstance(cls.learned, Mapping):
            raise InputError(
                f"learned of {cls.__name__} must be a dictionary with the shape of each array, e.g. {{'offset_': 'K'}}, got "
                f"{cls.learned!r}"
            )

    @classmethod
    def unsuitable(cls, held_out: HeldOut) -> str | None:
        """Why the method cannot be fitted to these samples, or would change nothing; None where it can be used."""
        return "needs features" if cls.uses_features and held_out.features is None else None

    def fit(
        self: Self,
        scores: ArrayLike | None,
        y: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        class_counts: ArrayLike | None = None,
        prior: ArrayLike | None = None,
        weight_norms: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        features: ArrayLike | None = None,
        scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
    ) -> Self:
        """Learn the correction from samples that the model was **not** trained on.

        Args:
            scores: Logits or probabilities ``(n, K)``; may be a memory map. None for methods that only use features.
            y: True labels ``(n,)``: column indices of ``scores``, or names from ``classes``.
            classes: Name of each column; needed if labels are names and some class has no sample here.
            class_counts: Numbers of training samples per class, in column order; by default the counts of ``y``.
            prior: Class frequencies in training, instead of ``class_counts``; must sum to one.
            weight_norms: Norm of each row of the last layer.
            bias: Bias of the last layer.
            features: Inputs of the last layer ``(n, d)``.
            scores_kind: Kind of the scores. ``"auto"``: probabilities if rows lie in [0, 1] and sum to 1, otherwise logits.
        """
        one_of("scores_kind", scores_kind, ("auto", "logits", "probabilities"))
        matrix = None if scores is None else check_scores(scores_in_order(scores, y, classes))
        kind = "logits" if matrix is None else kind_of_scores(matrix) if scores_kind == "auto" else scores_kind
        held_out, self.classes_ = HeldOut.gather(
            None if matrix is None else as_logits(matrix, kind),
            y,
            classes=classes,
            class_counts=class_counts,
            prior=prior,
            weight_norms=weight_norms,
            bias=bias,
            features=features,
        )
        if self.uses_features and held_out.features is None:
            raise InputError(f"{type(self).__name__} needs features=, the inputs of the last layer (n, d)")
        if len(held_out.y) < 2 or (held_out.support > 0).sum() < 2:
            raise InputError(
                f"{type(self).__name__} needs held-out samples of at least two classes, got {len(held_out.y)} samples of "
                f"{int((held_out.support > 0).sum())} classes"
            )
        self._fit(held_out)
        self.scores_kind_ = kind
        return self

    @classmethod
    def fit_settings(cls, methods: Sequence[Any], held_out: HeldOut) -> None:
        """Fit several settings of this method on the same checked samples. Overridden by methods whose settings share work."""
        for method in methods:
            method._fit(held_out)

    def transform(self, scores: ArrayLike | None, *, features: ArrayLike | None = None) -> NDArray[np.floating[Any]]:
        """Corrected scores ``(n, K)``."""
        check_is_fitted(self, "classes_")
        if self.uses_features and features is None:
            raise InputError(f"{type(self).__name__} needs features=, the inputs of the last layer (n, d)")
        scores = columns_in_order("scores", scores, self.classes_)
        matrix = None if scores is None else self._logits(check_scores(scores, columns=len(self.classes_)))
        given = None if features is None else check_features(features)
        return self._transform(matrix, given)

    def _logits(self, scores: Array) -> Array:
        """The scores as logits; scores of the other kind are rejected."""
        found = kind_of_scores(scores)
        # A few rows of logits may happen to lie in [0, 1] and sum to 1, so only many of them are taken for probabilities.
        certain = len(scores) >= _ENOUGH_ROWS or self.scores_kind_ == "probabilities"
        if certain and found != self.scores_kind_:
            raise InputError(
                f"scores must be {self.scores_kind_}, on which {type(self).__name__} was fitted, but these look like {found}; "
                + ("pass the logits" if found == "probabilities" else "pass softmax(scores)")
            )
        return as_logits(scores, self.scores_kind_)

    def predict_proba(
        self, scores: ArrayLike | None, *, features: ArrayLike | None = None
    ) -> NDArray[np.floating[Any]]:
        """Softmax of the corrected scores."""
        probabilities: NDArray[np.floating[Any]] = softmax(self.transform(scores, features=features), axis=1)
        return probabilities

    def predict(self, scores: ArrayLike | None, *, features: ArrayLike | None = None) -> Array:
        """The class with the largest corrected score."""
        columns = self.transform(scores, features=features).argmax(axis=1)
        predicted: Array = self.classes_[columns]
        return predicted

    @property
    def margin_norms(self) -> Array | None:
        """Norms ``(K,)`` by which corrected scores are divided to give margins; None to use the norms of the folded layer."""
        return None

    @property
    def foldable(self) -> bool:
        """Whether the correction can be written into a linear layer."""
        return type(self)._fold is not PostHocMethod._fold

    def fold(self, weight: Any, bias: ArrayLike | None = None) -> Any:
        """Write the correction into the last layer, so that it has no cost at inference.

        Args:
            weight: Weight of the layer ``(K, d)``, or the ``torch.nn.Linear`` itself, which is changed in place.
            bias: Bias of the layer ``(K,)``; None means zero. Not used if ``weight`` is a layer.
        Returns:
            The new ``(weight, bias)``, or the layer.
        """
        check_is_fitted(self, "classes_")
        if self.scores_kind_ == "probabilities" and not self._ignores_shifts():
            raise InputError(
                f"{type(self).__name__} was fitted on probabilities and scales their logarithms differently for each class, "
                "which a linear layer cannot do; fit it on the logits of the layer"
            )
        if hasattr(weight, "weight"):
            return self._fold_layer(weight)
        matrix = float_matrix("weight", weight, rows=len(self.classes_))
        vector = np.zeros(len(matrix)) if bias is None else float_vector("bias", bias, length=len(matrix))
        new_weight, new_bias = self._fold(matrix, vector)
        return new_weight.astype(matrix.dtype), new_bias.astype(matrix.dtype)

    def _fold_layer(self, layer: Any) -> Any:
        if not hasattr(layer, "bias"):
            raise InputError(
                f"weight must be a linear layer with weight and bias, or its matrix (K, d), got {type(layer).__name__}. A cosine "
                "head normalises its rows and has no bias, so it cannot hold a correction: fold into head.as_linear(), and use "
                "that layer with features of unit length"
            )
        # torch is only used through the layer: this half of the package never imports it
        old = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach().double().cpu().numpy()
        new_weight, new_bias = self.fold(old.double().cpu().numpy(), bias)
        layer.weight.data.copy_(old.new_tensor(new_weight))
        if layer.bias is None:
            layer.bias = type(layer.weight)(old.new_tensor(new_bias))
        else:
            layer.bias.data.copy_(old.new_tensor(new_bias))
        return layer

    def _fit(self, held_out: HeldOut) -> None:
        raise NotImplementedError

    def _transform(self, scores: Array | None, features: Array | None) -> Array:
        raise NotImplementedError

    def _ignores_shifts(self) -> bool:
        """Whether a number added to all logits of a sample changes no prediction: log-probabilities then serve as logits."""
        return True

    def _fold(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        raise InputError(
            f"the correction of {type(self).__name__} differs between samples, so it cannot be folded into a linear layer; "
            "call transform on the scores instead"
        )


class ClasswiseAffine(PostHocMethod):
    """A method whose corrected scores are ``scale_ * scores + offset_``, with one scale and one offset per column."""

    learned: ClassVar[Mapping[str, str]] = {"scale_": "K", "offset_": "K"}
    scale_: Array
    offset_: Array

    def _transform(self, scores: Array | None, features: Array | None) -> Array:
        if scores is None:
            raise InputError(f"{type(self).__name__} needs scores (n, K)")
        corrected: Array = scores * self.scale_.astype(scores.dtype) + self.offset_.astype(scores.dtype)
        return corrected

    def _ignores_shifts(self) -> bool:
        return bool(np.allclose(self.scale_, self.scale_[0]))

    def _fold(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        return self.scale_[:, None] * weight, self.scale_ * bias + self.offset_


def class_weights(counts: Array, power: float) -> Array:
    r"""Loss weights :math:`U_k = K n_k^{-g} / \sum_j n_j^{-g}`; ``power`` 0 gives ones. A count of 0 is treated as 1.

    Reference: Wang et al., *Margin calibration for long-tailed visual recognition*, ACML 2022, arXiv:2112.07225, eq. (12).
    """
    raw = np.where(counts > 0, counts, np.min(counts[counts > 0], initial=1.0)) ** -power
    weights: Array = len(raw) * raw / raw.sum()
    return weights


def balanced_accuracy(scores: Array, y: Array) -> float:
    """Mean accuracy over the classes with samples."""
    right = np.bincount(y, scores.argmax(axis=1) == y, minlength=scores.shape[1])
    support = np.bincount(y, minlength=scores.shape[1])
    return float((right[support > 0] / support[support > 0]).mean())
