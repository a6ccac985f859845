"""The two-process half of the contract tests: gloo on loopback, a ragged split, then a step in which one rank has no sample."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from classgap import registry
from classgap.testing.inputs import build, call, gradients, inputs
from waiting import LOOPBACK, SECONDS

SPLITS = ([7, 5], [9, 3], [12, 0], [4, 8])


def options(spec: registry.Method) -> dict[str, Any]:
    # Random scores are mostly wrong: a small weight of the pull would hardly show.
    return {"lam": 50.0} if spec.name == "compact_logits" else {}


def run(spec: registry.Method, rank: int | None) -> dict[str, Any]:
    """A few steps on one rank's share of the batches (all of it for ``rank=None``); gradients of the mean over all samples."""
    torch.manual_seed(0)
    criterion = build(spec, **options(spec))
    for step, sizes in enumerate(SPLITS):
        batch = inputs(spec, criterion, seed=step)
        views = batch["target"].shape[0] // 12
        share, size = slice(None), 12
        if rank is not None:
            share, size = slice(sum(sizes[:rank]), sum(sizes[: rank + 1])), sizes[rank]
        rows = torch.arange(12 * views).view(views, 12)[:, share].flatten()
        part = {k: v[rows] if torch.is_tensor(v) else v for k, v in batch.items()}
        torch.manual_seed(step)
        # The mean over all samples, as a sum over ranks: gradients that cross ranks carry the weight of the rank they come from.
        _, by_logits, by_features = gradients(criterion, part, weight=size / 12)
    return {"state": criterion.state_dict(), "logits": by_logits, "features": by_features, "rows": rows}


def run_alone(spec: registry.Method) -> dict[str, Any]:
    return run(spec, None)


def run_on_one_rank(spec: registry.Method) -> torch.Tensor:
    """What a rank gets that calls a loss while the others do not."""
    criterion = build(spec)
    batch = inputs(spec, criterion)
    values = [call(criterion.eval(), batch)]
    criterion.train()
    with torch.no_grad():
        values.append(call(criterion, batch))
    with criterion.frozen():
        values.append(call(criterion, batch).detach())
    return torch.stack(values).detach()


def worker(rank: int, world: int, folder: str) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME=LOOPBACK)
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS))
    for spec in registry.methods("loss"):
        torch.save(run(spec, rank), Path(folder) / f"{spec.name}-{rank}.pt")
        if rank == 0:
            torch.save(run_on_one_rank(spec), Path(folder) / f"{spec.name}-alone.pt")
    dist.destroy_process_group()
