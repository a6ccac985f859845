"""Checks of the value and the gradients of a loss, and of its declaration. Each raises AssertionError where a loss fails it."""

from __future__ import annotations

import copy
import inspect
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor

from classgap import registry
from classgap.checks import InputError
from classgap.losses import ClassLoss
from classgap.registry import Method
from classgap.testing.inputs import (
    CLASSES,
    WIDTH,
    assert_same_state,
    build,
    call,
    gradients,
    inputs,
    one_hot,
    refused,
    snapshot,
    warmed,
)


def check_value_is_a_finite_scalar_with_gradients(spec: Method) -> None:
    criterion = warmed(spec)
    value, by_logits, by_features = gradients(criterion, inputs(spec, criterion, seed=7))
    assert value.shape == ()
    assert torch.isfinite(value)
    assert torch.isfinite(by_logits).all()
    assert torch.isfinite(by_features).all()
    assert by_logits.abs().sum() + by_features.abs().sum() > 0


def check_gradients_are_those_of_the_value(spec: Method) -> None:
    if getattr(spec.cls, "stop_gradient", False):
        raise SkipTest("the value contains weights that are not differentiated, by design of the method")
    criterion = warmed(spec).double()
    batch = inputs(spec, criterion, samples=6, seed=7, dtype=torch.double)
    logits, features = batch.pop("logits").requires_grad_(), batch.pop("features").requires_grad_()

    def function(logits: Tensor, features: Tensor) -> Tensor:
        torch.manual_seed(0)  # methods that draw random numbers draw the same ones
        return call(criterion, {**batch, "logits": logits, "features": features})

    with criterion.frozen():  # gradcheck calls it many times
        assert torch.autograd.gradcheck(function, (logits, features), atol=1e-4, rtol=1e-3, nondet_tol=1e-12)


def check_torch_func(spec: Method) -> None:
    """Gradients and state of ``torch.func.grad`` are those of a backward pass; a loss whose state it cannot write says so."""
    for training in (False, True):
        criterion, other = warmed(spec).train(training), warmed(spec).train(training)
        batch = inputs(spec, criterion, seed=7)

        def function(
            logits: Tensor, features: Tensor, criterion: ClassLoss = other, batch: dict[str, Any] = batch
        ) -> Tensor:
            return call(criterion, {**batch, "logits": logits, "features": features})

        torch.manual_seed(0)
        expected = gradients(criterion, batch)[1:]
        torch.manual_seed(0)
        try:
            found = torch.func.grad(function, argnums=(0, 1))(batch["logits"], batch["features"])
        except InputError as error:
            if training and "writes running state" in str(error):
                continue
            raise
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
        assert_same_state(snapshot(other), snapshot(criterion))


def check_reduces_to(spec: Method) -> None:
    """With the declared parameters it equals the declared method, in value and gradient."""
    if spec.reduces_to is None:
        raise SkipTest("no simpler method is declared with reduces_to")
    other = registry.get("loss", spec.reduces_to[0])
    criterion, simpler = build(spec, **spec.reduces_to[1]), build(other)
    batch = inputs(spec, criterion)
    value, *grads = gradients(criterion, batch)
    plain = {key: batch[key] for key in ("logits", "target", "features")}
    expected, *expected_grads = gradients(simpler, plain)
    torch.testing.assert_close(value, expected)
    for mine, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


def check_absent_classes(spec: Method) -> None:
    """A batch of one class, of one sample, and classes never seen: finite value and gradient."""
    for samples in (1, 2, 12):
        criterion = build(spec)
        batch = inputs(spec, criterion, samples=samples)
        batch["target"] = torch.full_like(batch["target"], 3)
        for _ in range(2):
            for part in gradients(criterion, batch):
                assert torch.isfinite(part).all(), f"{samples} samples of one class"


def check_two_classes(spec: Method) -> None:
    criterion = build(spec, classes=2)
    for part in gradients(criterion, inputs(spec, criterion, classes=2)):
        assert torch.isfinite(part).all()


def check_extreme_logits_and_features(spec: Method) -> None:
    for scale in (1e-8, 1e3):
        criterion = build(spec)
        batch = inputs(spec, criterion)
        batch["features"] = batch["features"] * scale
        batch["logits"] = batch["logits"].sign() if "cosine_head" in spec.needs else batch["logits"] * scale
        for part in gradients(criterion, batch):
            assert torch.isfinite(part).all(), f"logits and features times {scale:g}"


def check_identical_features(spec: Method) -> None:
    criterion = build(spec)
    batch = inputs(spec, criterion)
    batch["features"] = torch.ones_like(batch["features"])
    for part in gradients(criterion, batch):
        assert torch.isfinite(part).all()


def check_half_precision(spec: Method, dtype: torch.dtype = torch.float16) -> None:
    """Under autocast the loss is computed in float32 from the half-precision inputs."""
    criterion = warmed(spec)
    batch = inputs(spec, criterion, seed=7)
    batch = {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in batch.items()}
    full = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in batch.items()}
    with criterion.frozen():
        torch.manual_seed(0)
        expected = gradients(criterion, full)[0]
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=dtype):
            value, *grads = gradients(criterion, batch)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    for part in grads:
        assert part.dtype == dtype
        assert torch.isfinite(part).all()


def check_compiles_without_graph_breaks(spec: Method) -> None:
    criterion = warmed(spec)
    batch = inputs(spec, criterion, seed=7)
    eager = copy.deepcopy(criterion)
    torch.manual_seed(0)
    expected = gradients(eager, batch)
    torch.compiler.reset()
    torch.manual_seed(0)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    found = gradients(compiled, batch)
    torch.manual_seed(1)
    random = not torch.equal(gradients(copy.deepcopy(eager), batch)[0], gradients(copy.deepcopy(eager), batch)[0])
    for part, wanted in zip(found, expected, strict=True):
        if not random:  # a compiled graph draws random numbers in another order
            torch.testing.assert_close(part, wanted)
        assert torch.isfinite(part).all()
    torch.testing.assert_close(
        [v.nan_to_num() for v in criterion.state_dict().values()], [v.nan_to_num() for v in eager.state_dict().values()]
    )


def check_soft_targets(spec: Method) -> None:
    """One-hot probabilities give what the labels give; a mixture is finite; methods that cannot say so."""
    criterion = warmed(spec)
    batch = inputs(spec, criterion, seed=7)
    soft = {**batch, "target": one_hot(batch["target"])}
    if not spec.soft_targets:
        with refused("needs hard labels"):
            call(criterion, soft)
        return
    mixed = {**batch, "target": 0.6 * one_hot(batch["target"]) + 0.4 * one_hot((batch["target"] + 1) % CLASSES)}
    with criterion.frozen():
        torch.manual_seed(0)
        expected = gradients(criterion, batch)
        torch.manual_seed(0)
        for part, wanted in zip(gradients(criterion, soft), expected, strict=True):
            torch.testing.assert_close(part, wanted, atol=1e-5, rtol=1e-4)
        for part in gradients(criterion, mixed):
            assert torch.isfinite(part).all()


def check_missing_needs_are_named(spec: Method) -> None:
    criterion = build(spec)
    batch = inputs(spec, criterion)
    for need in ("features", "index", "epoch"):
        if need in spec.needs:
            with refused(f"{spec.name} needs {need}"):
                call(criterion, {k: v for k, v in batch.items() if k != need})
    if "class_counts" in spec.needs:
        shared = {"num_features": WIDTH} if "num_features" in inspect.signature(spec.cls).parameters else {}
        with refused("class_counts"):
            spec.cls(num_classes=CLASSES, **shared)


def check_a_scale_of_its_own_is_declared(spec: Method) -> None:
    """Losses that need cosines say what they multiply them by, and rank classes at that scale; all others leave logits alone."""
    criterion = build(spec)
    batch = inputs(spec, criterion)
    if "cosine_head" not in spec.needs:
        assert criterion.cosine_scale == 1
        return
    assert criterion.cosine_scale > 1
    scores = criterion.scores(batch["logits"], batch["features"])
    torch.testing.assert_close(scores, criterion.cosine_scale * batch["logits"])


def check_counts_change_a_loss_only_where_that_is_declared(spec: Method) -> None:
    """A loss that does without class counts computes the same with them, unless it declares them as optional."""
    if "class_counts" in spec.needs:
        assert "class_counts" not in spec.optional
        return
    if "class_counts" not in inspect.signature(spec.cls).parameters:
        assert "class_counts" not in spec.optional
        return
    values = []
    without: dict[str, Any] = {}
    for counts in (without, {"class_counts": [40, 25, 15, 10, 10]}):
        torch.manual_seed(0)
        criterion = build(spec, **counts)
        values.append(call(criterion, inputs(spec, criterion)))
    assert torch.equal(*values) == ("class_counts" not in spec.optional)


def check_bad_batches_get_a_sentence(spec: Method) -> None:
    criterion = build(spec)
    good = inputs(spec, criterion)
    labels = good["target"]
    for change, message in [
        ({"target": labels + CLASSES}, "class indices in"),
        ({"target": labels - 10}, "class indices in"),
        ({"target": labels.float()}, "integer class indices"),
        ({"target": torch.nn.functional.one_hot(labels, CLASSES)}, "one-hot"),
        ({"target": labels[:-1]}, "one entry for each"),
        ({"logits": good["logits"][..., :-1]}, f"must have {CLASSES} columns"),
        ({"logits": good["logits"][:0], "target": labels[:0], "features": good["features"][:0]}, "empty batch"),
        ({"features": good["features"] * torch.nan}, "nan or inf"),
        ({"features": good["features"][:-1]}, "features must be"),
        ({"features": good["features"][:-1], "target": labels.where(labels > 0, -100)}, "features must have one row"),
    ]:
        with refused(message):
            call(criterion, {**good, **change})
    if criterion.num_features is not None:
        with refused("columns the loss was built for"):
            call(criterion, {**good, "features": good["features"][..., :-1]})


def check_whole_numbers_of_any_type(spec: Method) -> None:
    """Labels and positions may be whole numbers of any type; arrays of labels often are of the smallest."""
    torch.manual_seed(0)
    first = build(spec)
    second = copy.deepcopy(first)
    batch = inputs(spec, first)
    small = {name: value.to(torch.uint8) for name, value in batch.items() if name in ("target", "index")}
    torch.manual_seed(0)
    value = call(first, batch)
    torch.manual_seed(0)
    assert torch.equal(value, call(second, {**batch, **small}))


def check_parameters_are_declared(spec: Method) -> None:
    """The search space names real parameters with their real defaults, and every class has a card."""
    for key, space in spec.space.items():
        assert spec.defaults[key] == space.default, key
    assert len(spec.summary) > 20
    with refused("unknown parameter"):
        spec.build(num_classes=CLASSES, no_such_parameter=1)
    assert isinstance(spec.cls, type)
    assert issubclass(spec.cls, ClassLoss)
