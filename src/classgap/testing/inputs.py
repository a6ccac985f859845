"""How to build and call any loss: what its declaration asks for, made up from a seed."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap import registry
from classgap.checks import InputError
from classgap.losses import ClassLoss

CLASSES, WIDTH = 5, 8
COUNTS = [40, 25, 15, 10, 10]


class Teacher(nn.Module):
    """Logits and features of a trained network."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(inputs.float()), inputs


def build(spec: registry.Method, *, classes: int = CLASSES, **params: Any) -> ClassLoss:
    """The loss with what its constructor asks for."""
    wanted = inspect.signature(spec.cls).parameters
    shared = {"num_features": WIDTH, "class_counts": COUNTS[:classes], "num_samples": 64, "epochs": 10}
    given = {key: value for key, value in shared.items() if key in wanted and needed(spec, key, wanted)}
    criterion: ClassLoss = spec.build(num_classes=classes, **{**given, **params})
    if "teacher" in spec.needs:
        criterion.bind_teacher(Teacher(classes))  # type: ignore[operator]
    if "head" in spec.needs:
        criterion.bind_head(nn.Linear(WIDTH, classes))  # type: ignore[operator]
    return criterion


def needed(spec: registry.Method, key: str, wanted: Any) -> bool:
    return key == "num_features" or key in spec.needs or wanted[key].default is inspect.Parameter.empty


def inputs(
    spec: registry.Method,
    criterion: ClassLoss,
    *,
    samples: int = 12,
    classes: int = CLASSES,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """A batch in the shape the method declares, with some classes more frequent than others."""
    generator = torch.Generator().manual_seed(seed)
    views = getattr(criterion, "views", 1) if "views" in spec.needs else 1
    experts = (getattr(criterion, "experts", 1),) if "experts" in spec.needs else ()
    rows = samples * views
    target = torch.randint(classes, (samples,), generator=generator).repeat(views)
    logits = torch.randn(rows, *experts, classes, generator=generator, dtype=dtype) * 2
    if "cosine_head" in spec.needs:
        logits = torch.tanh(logits) * 0.95
    features = torch.randn(rows, *experts, WIDTH, generator=generator, dtype=dtype)
    batch: dict[str, Any] = {"logits": logits, "target": target, "features": features}
    if "index" in spec.needs:
        batch["index"] = torch.arange(samples).repeat(views)
    if "epoch" in spec.needs:
        batch["epoch"] = 9
    if "teacher" in spec.needs:
        batch["observed"] = torch.randn(rows, WIDTH, generator=generator, dtype=dtype)
    return batch


def call(criterion: Callable[..., Tensor], batch: dict[str, Any]) -> Tensor:
    """As a training loop does: a teacher sees the inputs first."""
    batch = dict(batch)
    if "observed" in batch:
        criterion.observe(batch.pop("observed"))  # type: ignore[attr-defined]
    value: Tensor = criterion(**batch)
    return value


def gradients(
    criterion: Callable[..., Tensor], batch: dict[str, Any], weight: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and gradients in logits and features (zeros where there is none) of ``weight`` times the loss."""
    batch = {
        **batch,
        "logits": batch["logits"].clone().requires_grad_(),
        "features": batch["features"].clone().requires_grad_(),
    }
    value = call(criterion, batch) * weight
    grads = torch.autograd.grad(value, (batch["logits"], batch["features"]), allow_unused=True)
    filled = [
        torch.zeros_like(x) if g is None else g
        for g, x in zip(grads, (batch["logits"], batch["features"]), strict=True)
    ]
    return value.detach(), filled[0], filled[1]


def one_hot(target: Tensor, classes: int = CLASSES) -> Tensor:
    return F.one_hot(target, classes).float()


def rows_of(batch: dict[str, Any], keep: Tensor) -> dict[str, Any]:
    """The same rows of everything in a batch."""
    return {key: value[keep] if torch.is_tensor(value) else value for key, value in batch.items()}


def warmed(spec: registry.Method, **params: Any) -> ClassLoss:
    """A loss that has seen a few batches, so that running state is not trivial."""
    torch.manual_seed(0)
    criterion = build(spec, **params)
    for seed in range(3):
        call(criterion, inputs(spec, criterion, seed=seed))
    return criterion


def snapshot(criterion: nn.Module) -> dict[str, Tensor]:
    """A copy of the state."""
    return {key: value.clone() for key, value in criterion.state_dict().items()}


def assert_same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Bit for bit; nan equals nan."""
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key].nan_to_num(), b[key].nan_to_num()), f"the state {key!r} differs"


@contextlib.contextmanager
def refused(pattern: str) -> Iterator[None]:
    """The block must raise an error whose text has this pattern."""
    try:
        yield
    except (InputError, TypeError) as error:
        text = str(error)
    else:
        raise AssertionError(f"an error with {pattern!r} was expected, but none was raised")
    assert re.search(pattern, text), f"the error should contain {pattern!r}: {text}"
