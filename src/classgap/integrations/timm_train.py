"""timm's own ``train.py`` with a loss of classgap, without changing the script. ::

    python -m classgap.integrations.timm_train train.py DATA --model resnet18 --loss classgap:mr2 --loss-set lam=0.3 …

The script makes its training task and its optimizer through timm; here both know the loss. All other arguments are those of the
script. Several processes: ``torchrun --nproc-per-node 2 -m classgap.integrations.timm_train train.py …``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm.optim
import timm.task
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import nn

from classgap import registry
from classgap.checks import InputError
from classgap.heads import find_head
from classgap.integrations import criteria
from classgap.integrations.timm import ClassLossTask
from classgap.losses import ClassLoss

PREFIX = "classgap:"


def main(words: Sequence[str] | None = None) -> None:
    """Run a training script of timm with the loss that ``--loss classgap:NAME`` names."""
    parser = argparse.ArgumentParser(
        prog="python -m classgap.integrations.timm_train",
        description="Run timm's train.py with a loss of classgap. Other arguments go to the script.",
        allow_abbrev=False,
    )
    parser.add_argument("script", type=Path, help="timm's train.py, or a script that makes its task in the same way")
    parser.add_argument("--loss", required=True, help="classgap:NAME, e.g. classgap:mr2 (see classgap methods)")
    parser.add_argument("--loss-set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the loss")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="file with methods of your own")
    own, rest = parser.parse_known_args(words)
    if not own.loss.startswith(PREFIX):
        raise InputError(f"--loss must be {PREFIX}NAME, e.g. {PREFIX}mr2, got {own.loss}")
    if not own.script.is_file():
        raise InputError(f"there is no script {own.script}; timm's train.py is in its repository, not in the package")
    for file in own.plugin:
        registry.load_plugin(file)
    spec = registry.get("loss", own.loss.removeprefix(PREFIX))
    replace_task(spec, dict(map(_setting, own.loss_set)))
    sys.argv = [str(own.script), *rest]
    sys.path.insert(0, str(own.script.resolve().parent))
    runpy.run_path(str(own.script), run_name="__main__")


def replace_task(spec: registry.Method, params: dict[str, Any]) -> None:
    """Let every ``ClassificationTask`` that is made from now on train with this loss, and the next optimizer its parameters."""
    made: list[ClassLossTask] = []
    plain: Callable[..., Any] = timm.optim.create_optimizer_v2

    def task(model: nn.Module, criterion: nn.Module, **options: Any) -> ClassLossTask:
        made.append(ClassLossTask(model, build(spec, params, model, criterion), **options))
        return made[-1]

    def optimizer(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        own = [p for task in made for p in task.class_loss.parameters() if p.requires_grad]
        if own:
            result.add_param_group({"params": own, "weight_decay": 0.0})
        return result

    timm.task.ClassificationTask = task
    timm.optim.create_optimizer_v2 = optimizer


def build(spec: registry.Method, params: dict[str, Any], model: nn.Module, criterion: nn.Module) -> ClassLoss:
    """The loss for this model, with the label smoothing of the criterion that the script would have used."""
    if "class_counts" in spec.needs:
        raise InputError(
            f"{spec.name} needs class_counts, which train.py does not know; make ClassLossTask in a copy of train.py instead"
        )
    head = find_head(model)[1]
    offered = {"num_features": head.in_features, "num_classes": head.out_features}
    taken = inspect.signature(spec.cls).parameters
    loss: ClassLoss = spec.build(**{name: value for name, value in offered.items() if name in taken} | params)
    if isinstance(criterion, LabelSmoothingCrossEntropy):
        criteria.check_smoothing(loss, criterion.smoothing, "--smoothing")
        loss.label_smoothing = criterion.smoothing
    elif not isinstance(criterion, (nn.CrossEntropyLoss, SoftTargetCrossEntropy)):
        raise InputError(f"--loss takes the place of {type(criterion).__name__}; leave out the option that asks for it")
    elif isinstance(criterion, SoftTargetCrossEntropy) and not spec.soft_targets:
        raise InputError(f"{spec.name} needs hard labels; turn mixup and cutmix off")
    return loss


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--loss-set must be KEY=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"classgap: {error}", file=sys.stderr)
        sys.exit(2)
