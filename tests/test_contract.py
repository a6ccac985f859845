"""Every registered loss × every property all losses share: a new method is covered on arrival."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import two_processes
from classgap import registry
from classgap.checks import InputError
from classgap.losses import ClassLoss
from contract import CLASSES, WIDTH, build, call, gradients, inputs, one_hot

SPECS = registry.methods("loss")
every_loss = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def warmed(spec: registry.Method, **params):
    """A loss that has seen a few batches, so that running state is not trivial."""
    torch.manual_seed(0)
    criterion = build(spec, **params)
    for seed in range(3):
        call(criterion, inputs(spec, criterion, seed=seed))
    return criterion


def snapshot(criterion) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in criterion.state_dict().items()}


def assert_same_state(a, b) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key].nan_to_num(), b[key].nan_to_num()), key


@every_loss
def test_value_is_a_finite_scalar_with_gradients(spec):
    criterion = warmed(spec)
    value, by_logits, by_features = gradients(criterion, inputs(spec, criterion, seed=7))
    assert value.shape == ()
    assert torch.isfinite(value)
    assert torch.isfinite(by_logits).all()
    assert torch.isfinite(by_features).all()
    assert by_logits.abs().sum() + by_features.abs().sum() > 0


@every_loss
def test_gradients_are_those_of_the_value(spec):
    if spec.cls.stop_gradient:
        pytest.skip("the value contains weights that are not differentiated, by design of the method")
    criterion = warmed(spec).double()
    batch = inputs(spec, criterion, samples=6, seed=7, dtype=torch.double)
    logits, features = batch.pop("logits").requires_grad_(), batch.pop("features").requires_grad_()

    def function(logits, features):
        torch.manual_seed(0)  # methods that draw random numbers draw the same ones
        return call(criterion, {**batch, "logits": logits, "features": features})

    with criterion.frozen():  # gradcheck calls it many times
        assert torch.autograd.gradcheck(function, (logits, features), atol=1e-4, rtol=1e-3, nondet_tol=1e-12)


@pytest.mark.parametrize("spec", [s for s in SPECS if s.reduces_to], ids=lambda spec: spec.name)
def test_reduces_to(spec):
    other = registry.get("loss", spec.reduces_to[0])
    criterion, simpler = build(spec, **spec.reduces_to[1]), build(other)
    batch = inputs(spec, criterion)
    value, *grads = gradients(criterion, batch)
    plain = {key: batch[key] for key in ("logits", "target", "features")}
    expected, *expected_grads = gradients(simpler, plain)
    torch.testing.assert_close(value, expected)
    for mine, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


@every_loss
@pytest.mark.parametrize("samples", [1, 2, 12])
def test_absent_classes(spec, samples):
    """A batch of one class, of one sample, and classes never seen: finite value and gradient."""
    criterion = build(spec)
    batch = inputs(spec, criterion, samples=samples)
    batch["target"] = torch.full_like(batch["target"], 3)
    for _ in range(2):
        for part in gradients(criterion, batch):
            assert torch.isfinite(part).all()


@every_loss
def test_two_classes(spec):
    criterion = build(spec, classes=2)
    for part in gradients(criterion, inputs(spec, criterion, classes=2)):
        assert torch.isfinite(part).all()


@every_loss
@pytest.mark.parametrize("scale", [1e-8, 1e3])
def test_extreme_logits_and_features(spec, scale):
    criterion = build(spec)
    batch = inputs(spec, criterion)
    batch["features"] = batch["features"] * scale
    batch["logits"] = batch["logits"].sign() if "cosine_head" in spec.needs else batch["logits"] * scale
    for part in gradients(criterion, batch):
        assert torch.isfinite(part).all()


@every_loss
def test_identical_features(spec):
    criterion = build(spec)
    batch = inputs(spec, criterion)
    batch["features"] = torch.ones_like(batch["features"])
    for part in gradients(criterion, batch):
        assert torch.isfinite(part).all()


@every_loss
@pytest.mark.parametrize("dtype", [pytest.param(torch.bfloat16, marks=pytest.mark.bf16), torch.float16])
def test_half_precision(spec, dtype):
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


@every_loss
def test_compiles_without_graph_breaks(spec):
    criterion = warmed(spec)
    batch = inputs(spec, criterion, seed=7)
    eager = copy.deepcopy(criterion)
    torch.manual_seed(0)
    expected = gradients(eager, batch)
    torch.compiler.reset()
    torch.manual_seed(0)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for part, wanted in zip(gradients(compiled, batch), expected, strict=True):
        if "eql" not in spec.name:  # draws random numbers, which a compiled graph draws in another order
            torch.testing.assert_close(part, wanted)
        assert torch.isfinite(part).all()
    torch.testing.assert_close(
        [v.nan_to_num() for v in criterion.state_dict().values()], [v.nan_to_num() for v in eager.state_dict().values()]
    )


@every_loss
def test_soft_targets(spec):
    """One-hot probabilities give what the labels give; a mixture is finite; methods that cannot say so."""
    criterion = warmed(spec)
    batch = inputs(spec, criterion, seed=7)
    soft = {**batch, "target": one_hot(batch["target"])}
    if not spec.soft_targets:
        with pytest.raises(InputError, match="needs hard labels"):
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


@every_loss
def test_resume_continues_identically(spec):
    """State saved half-way and loaded into a new loss: bit for bit the same from there on."""
    torch.manual_seed(0)
    straight = build(spec)
    resumed = copy.deepcopy(straight)
    batches = [inputs(spec, straight, seed=seed) for seed in range(6)]

    def run(criterion, some):
        values = []
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


@every_loss
def test_state_is_written_only_while_training(spec):
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


@every_loss
@pytest.mark.parametrize("part", ["logits", "features", "observed"])
def test_state_is_never_written_from_values_that_are_not_finite(spec, part, monkeypatch):
    """One overflow, as half precision gives, must not stay: nothing checks values on an accelerator or in a compiled step."""
    monkeypatch.setattr("classgap.losses.tensor_checks.values_are_cheap", lambda tensor: False)
    criterion = warmed(spec)
    batch = inputs(spec, criterion, seed=7)
    if part not in batch:
        pytest.skip("the loss sees no other network")
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoilt = batch[part].clone()
        spoilt[0, ..., 0] = bad
        gradients(criterion, {**batch, part: spoilt})
        for name, value in criterion.state_dict().items():
            assert torch.isfinite(value).all(), (bad, name)
    for value in gradients(criterion, batch):
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("name", ["mr2", "mr2_published", "compact_logits"])
def test_a_compiled_loss_does_not_write_values_that_are_not_finite_either(name):
    spec = registry.get("loss", name)
    criterion = warmed(spec)
    before = snapshot(criterion)
    batch = inputs(spec, criterion, seed=7)
    torch.compiler.reset()
    compiled = torch.compile(criterion, backend="aot_eager")
    gradients(compiled, {**batch, "features": batch["features"] * torch.nan})
    assert_same_state(snapshot(criterion), before)
    assert torch.isfinite(gradients(compiled, batch)[0])


@pytest.mark.parametrize("name", ["cmic", "csr", "lff"])
def test_a_state_larger_than_memory_is_refused_by_a_sentence(name):
    with pytest.raises(InputError, match=f"{name} keeps .* GB"):
        registry.get("loss", name).build(num_classes=100_000, class_counts=[100_000] * 100_000)


@every_loss
def test_missing_needs_are_named(spec):
    criterion = build(spec)
    batch = inputs(spec, criterion)
    for need in ("features", "index", "epoch"):
        if need in spec.needs:
            with pytest.raises(InputError, match=f"{spec.name} needs {need}"):
                call(criterion, {k: v for k, v in batch.items() if k != need})
    if "class_counts" in spec.needs:
        shared = {"num_features": WIDTH} if "num_features" in inspect.signature(spec.cls).parameters else {}
        with pytest.raises((InputError, TypeError), match="class_counts"):
            spec.cls(num_classes=CLASSES, **shared)


@every_loss
def test_a_scale_of_its_own_is_declared(spec):
    """Losses that need cosines say what they multiply them by, and rank classes at that scale; all others leave logits alone."""
    criterion = build(spec)
    batch = inputs(spec, criterion)
    if "cosine_head" not in spec.needs:
        assert criterion.cosine_scale == 1
        return
    assert criterion.cosine_scale > 1
    scores = criterion.scores(batch["logits"], batch["features"])
    torch.testing.assert_close(scores, criterion.cosine_scale * batch["logits"])


@every_loss
def test_counts_change_a_loss_only_where_that_is_declared(spec):
    """A loss that does without class counts computes the same with them, unless it declares them as optional."""
    if "class_counts" in spec.needs:
        assert "class_counts" not in spec.optional
        return
    if "class_counts" not in inspect.signature(spec.cls).parameters:
        assert "class_counts" not in spec.optional
        return
    values = []
    for counts in ({}, {"class_counts": [40, 25, 15, 10, 10]}):
        torch.manual_seed(0)
        criterion = build(spec, **counts)
        values.append(call(criterion, inputs(spec, criterion)))
    assert torch.equal(*values) == ("class_counts" not in spec.optional)


@every_loss
def test_bad_batches_get_a_sentence(spec):
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
    ]:
        with pytest.raises(InputError, match=message):
            call(criterion, {**good, **change})


@every_loss
def test_parameters_are_declared(spec):
    """The search space names real parameters with their real defaults, and every class has a card."""
    for key, space in spec.space.items():
        assert spec.defaults[key] == space.default, key
    assert len(spec.summary) > 20
    with pytest.raises(InputError, match="unknown parameter"):
        spec.build(num_classes=CLASSES, no_such_parameter=1)
    assert issubclass(spec.cls, ClassLoss)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    """What two gloo processes got from a ragged split of the batch, for every loss."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(two_processes.worker, args=(2, str(folder)), nprocs=2, join=True)
    return folder


@every_loss
def test_one_rank_alone_may_call_a_loss_that_does_not_train(spec, two_ranks):
    """In evaluation mode, without gradients and inside frozen() nothing waits for the other rank."""
    alone = torch.load(two_ranks / f"{spec.name}-alone.pt")
    assert alone.shape == (3,)
    assert torch.isfinite(alone).all()


@every_loss
def test_two_processes_match_one(spec, two_ranks):
    """State is the same on both ranks and that of one process, and so are gradients: pairs form across ranks."""
    results = [torch.load(two_ranks / f"{spec.name}-{rank}.pt") for rank in range(2)]
    torch.manual_seed(0)
    alone = two_processes.run_alone(spec)
    for key, value in alone["state"].items():
        torch.testing.assert_close(results[0]["state"][key], results[1]["state"][key], equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(results[0]["state"][key], value, equal_nan=True, rtol=1e-4, atol=1e-5)
    order = torch.cat([r["rows"] for r in results]).argsort()
    for part in ("logits", "features"):
        torch.testing.assert_close(torch.cat([r[part] for r in results])[order], alone[part], rtol=1e-4, atol=1e-6)
