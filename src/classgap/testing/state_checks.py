"""Checks of the state of a loss, and of the options it shares with ``torch.nn.CrossEntropyLoss``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from classgap.losses import ClassLoss, tensor_checks
from classgap.registry import Method
from classgap.testing.inputs import (
    CLASSES,
    COUNTS,
    assert_same_state,
    build,
    call,
    gradients,
    inputs,
    one_hot,
    refused,
    rows_of,
    snapshot,
    warmed,
)


def check_resume_continues_identically(spec: Method) -> None:
    """State saved half-way and loaded into a new loss: bit for bit the same from there on."""
    torch.manual_seed(0)
    straight = build(spec)
    resumed = copy.deepcopy(straight)
    batches = [inputs(spec, straight, seed=seed) for seed in range(6)]

    def run(criterion: ClassLoss, some: list[dict[str, Any]]) -> list[tuple[Tensor, ...]]:
        values: list[tuple[Tensor, ...]] = []
        for seed, batch in enumerate(some):
            torch.manual_seed(seed)
            values.append(gradients(criterion, batch))
        return values

    run(straight, batches[:3])
    state = snapshot(straight)
    expected = run(straight, batches[3:])
    resumed.load_state_dict(state)
    for mine, theirs in zip(run(resumed, batches[3:]), expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)
    assert_same_state(resumed.state_dict(), straight.state_dict())


def check_state_is_written_only_while_training(spec: Method) -> None:
    criterion = warmed(spec)
    before = snapshot(criterion)
    batch = inputs(spec, criterion, seed=9)
    before_call = snapshot(criterion)
    criterion.eval()
    call(criterion, batch)
    assert_same_state(snapshot(criterion), before_call)
    criterion.train()
    with criterion.frozen():
        call(criterion, batch)
    assert_same_state(snapshot(criterion), before_call)
    with torch.no_grad():  # a validation pass of a loop that left the criterion in training mode
        call(criterion, batch)
    assert_same_state(snapshot(criterion), before_call)
    assert_same_state(before, before_call)


def check_state_stays_finite(spec: Method) -> None:
    """One overflow, as half precision gives, must not stay in the state. On accelerators and in compiled steps nothing checks
    the values of a batch."""
    checks, tensor_checks.values_are_cheap = tensor_checks.values_are_cheap, lambda tensor: False
    try:
        for part in ("logits", "features", "observed"):
            criterion = warmed(spec)
            batch = inputs(spec, criterion, seed=7)
            for bad in (torch.nan, torch.inf, -torch.inf) if part in batch else ():
                spoilt = batch[part].clone()
                spoilt[0, ..., 0] = bad
                gradients(criterion, {**batch, part: spoilt})
                for name, value in criterion.state_dict().items():
                    assert torch.isfinite(value).all(), f"a value of {bad} in {part} makes the state {name!r} {value}"
            for value in gradients(criterion, batch):
                assert torch.isfinite(value).all(), f"after a bad value in {part} the loss is no longer finite"
    finally:
        tensor_checks.values_are_cheap = checks


def check_state_is_copied(spec: Method) -> None:
    """Deep copies, strict loading and the averaged copy of ``AveragedModel`` work after a forward pass, and stay apart."""
    criterion = warmed(spec)
    before = snapshot(criterion)
    twin, averaged = copy.deepcopy(criterion), AveragedModel(criterion, use_buffers=False)
    averaged.update_parameters(criterion)
    assert_same_state(snapshot(twin), before)
    assert_same_state(
        {key.removeprefix("module."): v for key, v in snapshot(averaged).items() if key != "n_averaged"}, before
    )
    call(criterion, inputs(spec, criterion, seed=9))
    assert_same_state(snapshot(twin), before)
    found = build(spec).load_state_dict(before, strict=True)
    assert not found.missing_keys
    assert not found.unexpected_keys


def check_state_keeps_its_precision(spec: Method) -> None:
    """``loss.half()`` converts parameters and normalisation layers only: sums overflow float16, counts stop in bfloat16."""
    criterion = warmed(spec)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = copy.deepcopy(criterion).to(dtype)
        for path, module in narrow.named_modules():
            if not isinstance(module, torch.nn.modules.batchnorm._NormBase):
                for name, buffer in module.named_buffers(recurse=False):
                    assert torch.equal(buffer, criterion.get_submodule(path).get_buffer(name)), f"{path}.{name}"


def check_ignored_samples(spec: Method) -> None:
    """A sample with the label -100 leaves value, gradients and state as they are without it; only such samples give 0."""
    ignoring = warmed(spec)
    without = copy.deepcopy(ignoring)
    batch = inputs(spec, ignoring, seed=7)
    keep = torch.arange(len(batch["target"])) % 12 % 4 != 1
    some = {**batch, "target": torch.where(keep, batch["target"], -100)}
    torch.manual_seed(0)
    value, *grads = gradients(ignoring, some)
    torch.manual_seed(0)
    expected, *expected_grads = gradients(without, rows_of(batch, keep))
    torch.testing.assert_close(value, expected)
    for mine, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(mine[keep], theirs)
        assert not mine[~keep].any(), "an ignored sample has a gradient"
    for (key, mine), theirs in zip(ignoring.state_dict().items(), without.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, msg=f"the state {key!r} differs")
    before = snapshot(ignoring)
    for part in gradients(ignoring, {**batch, "target": torch.full_like(batch["target"], -100)}):
        assert not part.any(), "a batch of ignored samples must give 0, and no gradient"
    assert_same_state(snapshot(ignoring), before)


def check_shared_options(spec: Method) -> None:
    """``reduction``, ``weight`` and ``label_smoothing`` do what they do in torch, or are refused with a sentence."""
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(spec.cls).parameters.values()):
        raise SkipTest("the constructor does not pass **options on to ClassLoss")
    plain = warmed(spec).eval()
    batch = inputs(spec, plain, seed=7)
    samples = len(batch["target"]) // plain.views
    counted = [warmed(spec, class_counts=COUNTS).eval()] if "class_counts" in spec.optional else []
    for criterion in (plain, *counted):
        if not criterion.weights_classes:
            value = call(criterion, batch)
            torch.testing.assert_close(call(_with(criterion, reduction="sum"), batch), value * samples)
    if plain.has_sample_losses:
        losses = call(_with(plain, reduction="none"), batch)
        assert losses.shape == (samples,)
        torch.testing.assert_close(call(_with(plain, reduction="sum"), batch), losses.sum())
    else:
        with refused("no loss of a single sample"):
            build(spec, reduction="none")
    if spec.soft_targets:
        _check_smoothing(plain, batch)
    else:
        with refused("needs hard labels"):
            build(spec, label_smoothing=0.1)
    if "weight" in inspect.signature(spec.cls).parameters:
        return  # of one of its terms
    if plain.weights_classes or not plain.has_sample_losses:
        with refused("weight"):
            build(spec, weight=[1.0] * CLASSES)
    else:
        weight = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.0])
        weighted = call(_with(plain, class_weight=weight), batch)
        chosen = weight[batch["target"]]
        torch.testing.assert_close(weighted, (losses * chosen).sum() / chosen.sum())


def check_activation_checkpointing(spec: Method) -> None:
    """``torch.utils.checkpoint`` around the loss: state is written once, and the gradient is that without it."""
    start = warmed(spec)
    batch = inputs(spec, start, seed=7)
    expected, plain = _backward(start, batch, lambda function, *leaves: function(*leaves))
    for reentrant in (False, True):

        def repeated(function: Callable[..., Tensor], *leaves: Tensor, reentrant: bool = reentrant) -> Tensor:
            value: Tensor = checkpoint(function, *leaves, use_reentrant=reentrant)
            return value

        grads, criterion = _backward(start, batch, repeated)
        assert_same_state(snapshot(criterion), snapshot(plain))
        for mine, theirs in zip(grads, expected, strict=True):
            torch.testing.assert_close(mine, theirs)


def _with(criterion: ClassLoss, **options: Any) -> ClassLoss:
    """A copy with other options and the same state and parameters."""
    twin = copy.deepcopy(criterion)
    for name, value in options.items():
        setattr(twin, name, value)
    return twin


def _check_smoothing(criterion: ClassLoss, batch: dict[str, Any]) -> None:
    smooth = 0.8 * one_hot(batch["target"]) + 0.2 / CLASSES
    torch.manual_seed(0)
    found = call(_with(criterion, label_smoothing=0.2), batch)
    torch.manual_seed(0)
    torch.testing.assert_close(found, call(criterion, {**batch, "target": smooth}))


def _backward(start: ClassLoss, batch: dict[str, Any], run: Callable[..., Tensor]) -> tuple[list[Tensor], ClassLoss]:
    """Gradients of logits and features, and the loss after the step."""
    criterion = copy.deepcopy(start)
    leaves = [batch[key].clone().requires_grad_() for key in ("logits", "features")]

    def function(logits: Tensor, features: Tensor) -> Tensor:
        return call(criterion, {**batch, "logits": logits, "features": features})

    torch.manual_seed(0)
    run(function, *leaves).backward()  # type: ignore[no-untyped-call]
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves], criterion
