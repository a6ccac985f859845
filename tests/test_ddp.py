"""Two gloo processes against one: losses that join the ranks' batches, and SAM under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

import ddp_workers


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two processes got."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(ddp_workers.worker, args=(str(folder),), nprocs=2, join=True)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", ddp_workers.JOINT)
def test_gradients_of_two_processes_are_those_of_one(name, ranks):
    """Ragged split: pairs across ranks, own parameters of the loss, and an earlier step with an empty rank."""
    alone = ddp_workers.joint_gradients(name, None)
    assert any(gradient.any() for gradient in alone.values())
    for key, gradient in alone.items():
        torch.testing.assert_close(ranks[0][name][key] + ranks[1][name][key], gradient, rtol=1e-4, atol=1e-6)


def test_sam_with_synchronised_passes_is_sam_on_the_whole_batch(ranks):
    alone = ddp_workers.sam_training(None, sync=True)
    for results in ranks:
        for name, weight in alone.items():
            torch.testing.assert_close(results["sam-True"][name], weight, rtol=1e-4, atol=1e-6)


def test_sam_without_synchronised_first_pass_keeps_processes_together(ranks):
    first, second = (results["sam-False"] for results in ranks)
    alone = ddp_workers.sam_training(None, sync=True)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.allclose(first[name], alone[name], atol=1e-6) for name in first)  # each climbed its own way


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mr2", "elm", "supcon", "fair_dro"])
def test_compiled_losses_join_ranks_with_different_numbers_of_rows(name, tmp_path):
    mp.spawn(ddp_workers.compiled_worker, args=(str(tmp_path), name), nprocs=2, join=True)
