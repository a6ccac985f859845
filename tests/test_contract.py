"""Every registered loss × properties that need more than one process or a processor that not everybody has.

All other checks of losses are in ``classgap.testing``, where losses of other packages find them too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import two_processes
from classgap import registry
from classgap.checks import InputError
from classgap.testing.inputs import assert_same_state, gradients, inputs, snapshot, warmed
from classgap.testing.value_checks import check_half_precision

every_loss = pytest.mark.parametrize("spec", registry.methods("loss"), ids=lambda spec: spec.name)


@pytest.mark.bf16
@every_loss
def test_bfloat16(spec):
    check_half_precision(spec, torch.bfloat16)


@pytest.mark.parametrize("name", ["cmic", "csr", "lff"])
def test_a_state_larger_than_memory_is_refused_by_a_sentence(name):
    with pytest.raises(InputError, match=f"{name} keeps .* GB"):
        registry.get("loss", name).build(num_classes=100_000, class_counts=[100_000] * 100_000)


@pytest.mark.parametrize("name", ["mr2", "mr2_published", "compact_logits"])
def test_a_compiled_loss_does_not_write_values_that_are_not_finite(name):
    spec = registry.get("loss", name)
    criterion = warmed(spec)
    before = snapshot(criterion)
    batch = inputs(spec, criterion, seed=7)
    torch.compiler.reset()
    compiled = torch.compile(criterion, backend="aot_eager")
    gradients(compiled, {**batch, "features": batch["features"] * torch.nan})
    assert_same_state(snapshot(criterion), before)
    assert torch.isfinite(gradients(compiled, batch)[0])


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
