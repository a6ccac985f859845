"""A training task of timm with any loss of classgap.

``python -m classgap.integrations.timm_train train.py … --loss classgap:mr2`` runs timm's own script with it. In a script of
your own, change the line that makes the task and the one that makes the optimizer::

    task = ClassLossTask(model, MR2Loss(num_classes=args.num_classes), device=device)
    optimizer = create_optimizer_v2(task.parameter_groups(args.weight_decay), opt=args.opt, lr=args.lr)
"""

from __future__ import annotations

from typing import Any

from timm.optim import param_groups_weight_decay
from timm.task import ClassificationTask
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from classgap.heads import FeatureTap
from classgap.integrations import criteria
from classgap.losses import ClassLoss


class ClassLossTask(ClassificationTask):
    """``timm.task.ClassificationTask`` with features for the loss, and the state of the loss in checkpoints.

    Make it before the model is compiled or distributed, as ``train.py`` does: ``compile`` and ``prepare_distributed`` of
    the task do both. Validation, EMA and weights in checkpoints are those of the plain model.

    Args:
        model: A model that returns logits.
        criterion: A loss that needs at most features and class counts, and ranks classes by the output of the model.
        layer: Name of the head in ``model.named_modules()``; by default what ``model.get_classifier()`` returns.
        kwargs: ``device``, ``dtype`` and ``verbose`` of timm.
    """

    def __init__(self, model: nn.Module, criterion: ClassLoss, layer: str | None = None, **kwargs: Any) -> None:
        criteria.check_criterion(criterion, "timm")
        criteria.check_ranking(criterion, "timm")
        super().__init__(model, criterion, **kwargs)
        self.class_loss = criterion.to(self.device)
        # In a tuple, or the model would be a submodule of the task twice.
        self._tap: tuple[FeatureTap | None] = (criteria.tap(criterion, model, layer),)

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for ``create_optimizer_v2``: those of the model, and the parameters of the loss without weight decay."""
        groups: list[dict[str, Any]] = param_groups_weight_decay(self.get_trainable_module(), weight_decay)
        own = [p for p in self.class_loss.parameters() if p.requires_grad]
        return [*groups, {"params": own, "weight_decay": 0.0}] if own else groups

    def prepare_distributed(self, device_ids: list[int] | None = None, **ddp_kwargs: Any) -> ClassLossTask:
        """Distribute the model, and the loss too if it has parameters: their gradients are averaged alike."""
        device_ids = None if self.device.type == "cpu" else device_ids  # torch has none for processors
        super().prepare_distributed(device_ids=device_ids, **ddp_kwargs)
        if any(p.requires_grad for p in self.class_loss.parameters()):
            self.criterion = DistributedDataParallel(self.class_loss, device_ids=device_ids)
        return self

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """``{"loss", "output"}`` of a batch; ``output`` are the logits."""
        (tap,) = self._tap
        if tap is None:
            output = self.trainable_module(input)
            return {"loss": self.criterion(output, target), "output": output}
        with tap.listening() as calls:
            output = self.trainable_module(input)
        return {"loss": self.criterion(output, target, features=tap.features_of(calls, output)), "output": output}

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """State of the loss, for the checkpoint; none beside the EMA weights, with which nobody trains."""
        return (
            {} if ema else {"criterion": self.class_loss.state_dict(), "settings": criteria.settings(self.class_loss)}
        )

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: nn.Module | None = None, ema: bool = False
    ) -> None:
        """Restore the state of the loss; that of another loss is an error."""
        if not ema and state:
            saved = state["settings"]
            criteria.check_same_loss(self.class_loss, saved["loss"], saved["num_classes"], "the checkpoint")
            self.class_loss.load_state_dict(state["criterion"], strict=strict)
