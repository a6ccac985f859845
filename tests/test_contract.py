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
from classgap.testing.value_checks import check_half_precision

every_loss = pytest.mark.parametrize("spec", registry.methods("loss"), ids=lambda spec: spec.name)


@pytest.mark.bf16
@every_loss
def test_bfloat16(spec):
    check_half_precision(spec, torch.bfloat16)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    """What two gloo processes got from a ragged split of the batch, for every loss."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(two_processes.worker, args=(2, str(folder)), nprocs=2, join=True)
    return folder


@every_loss
def test_two_processes_match_one(spec, two_ranks):
    """State is the same on both ranks and that of one process; gradients too where a loss is a mean over samples."""
    results = [torch.load(two_ranks / f"{spec.name}-{rank}.pt") for rank in range(2)]
    torch.manual_seed(0)
    alone = two_processes.run_alone(spec)
    for key, value in alone["state"].items():
        torch.testing.assert_close(results[0]["state"][key], results[1]["state"][key], equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(results[0]["state"][key], value, equal_nan=True, rtol=1e-4, atol=1e-5)
    if two_processes.is_mean_over_samples(spec):
        for part in ("logits", "features"):
            torch.testing.assert_close(torch.cat([r[part] for r in results]), alone[part], rtol=1e-4, atol=1e-6)
