"""skorch's ``NeuralNetClassifier`` with any loss of classgap. ::

net = ClassLossNet(Module, criterion=MR2Loss, criterion__num_classes=10, max_epochs=20)
GridSearchCV(net, {"criterion__lam": [0.1, 1.0]}, scoring=classgap.integrations.sklearn.hard_third)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.utils import to_numpy
from torch import Tensor

from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.integrations import criteria

_ROUNDING = 1e-4  # of probabilities


class ClassLossNet(NeuralNetClassifier):
    """A network whose module returns logits, trained with a loss that may need features.

    Features are read from the last linear layer. ``predict_proba`` is the softmax of what the loss ranks classes by
    (``criterion.scores``), so its rows sum to 1; a ``predict_nonlinearity`` of your own takes the place of the softmax. State and
    parameters of the loss are switched to evaluation, optimised and saved (``f_criterion``) by skorch.

    Args:
        module: Class or instance of a module that returns logits :math:`(N, K)`.
        criterion: Class of a loss that needs at most features and class counts; its arguments are ``criterion__num_classes`` etc.
        layer: Name of the head in ``module.named_modules()``, where the last linear layer is not it.
        kwargs: Further arguments of ``NeuralNetClassifier``.
    """

    module_: Any
    criterion_: Any

    def __init__(self, module: Any, *args: Any, layer: str | None = None, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        self.layer = layer

    def initialize_module(self) -> ClassLossNet:
        """Build the module, with a tap around it where the loss needs features."""
        super().initialize_module()
        needs: frozenset[str] = getattr(getattr(self.criterion, "method", None), "needs", frozenset())
        if "features" in needs and not isinstance(self.module_, FeatureTap):
            self.module_ = FeatureTap(self.module_, self.layer, unit="encoder_features" not in needs)
        return self

    def initialize_criterion(self) -> ClassLossNet:
        """Build the loss; one that skorch cannot supply with all it needs is refused."""
        super().initialize_criterion()
        criteria.check_criterion(self.criterion_, "skorch")
        return self

    def get_loss(self, y_pred: Any, y_true: Tensor, X: Any = None, training: bool = False) -> Tensor:
        """The loss of a batch, with its features."""
        logits, features = self._logits_and_features(y_pred)
        if not isinstance(y_true, Tensor):
            raise InputError(
                f"y must hold class indices from 0, got {str(y_true[0])!r}; encode the labels with "
                "sklearn.preprocessing.LabelEncoder"
            )
        if len(logits) > 1 and bool((logits.min() >= 0) & ((logits.sum(-1) - 1).abs().max() < _ROUNDING)):
            raise InputError("module must return logits, got probabilities that sum to 1; leave out its softmax")
        loss: Tensor = self.criterion_(logits, y_true.to(logits.device), features=features)
        return loss

    def predict_proba(self, X: Any) -> Any:
        """:math:`(n, K)` probabilities, from what the loss ranks classes by."""
        nonlinearity = self._get_predict_nonlinearity()
        outputs = (self._logits_and_features(output) for output in self.forward_iter(X, training=False))
        return np.concatenate([to_numpy(nonlinearity(self.criterion_.scores(*output))) for output in outputs])

    def _get_predict_nonlinearity(self) -> Callable[[Tensor], Tensor]:
        if self.predict_nonlinearity != "auto":
            chosen: Callable[[Tensor], Tensor] = super()._get_predict_nonlinearity()
            return chosen
        return lambda scores: torch.softmax(scores, dim=-1)

    def _logits_and_features(self, output: Any) -> tuple[Tensor, Tensor | None]:
        """What the module returned; features are those of the tap, not another output of the module."""
        if not isinstance(output, tuple):
            return output, None
        return output[0], output[1] if "features" in self.criterion_.needs else None
