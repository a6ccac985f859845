"""What runs in two gloo processes: losses whose terms join the ranks, and SAM under DistributedDataParallel."""

from __future__ import annotations

import contextlib
import copy
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from classgap import registry
from classgap.optim import SAM
from classgap.testing.inputs import build, call, gradients, inputs
from waiting import LOOPBACK, SECONDS

JOINT = ("center", "range", "spreadout", "cmic", "supcon", "bcl", "dro_lt", "gml", "ncl", "lff")
SAMPLES = 12
SPLITS = ((7, 5), (12, 0), (4, 8))


def joint_gradients(name: str, rank: int | None) -> dict[str, torch.Tensor]:
    """After some steps: gradients of the mean over all samples, by row of the whole batch and by parameter of the loss."""
    spec = registry.get("loss", name)
    torch.manual_seed(0)
    criterion = build(spec)
    for step, sizes in enumerate(SPLITS):
        batch = inputs(spec, criterion, seed=step)
        views = len(batch["target"]) // SAMPLES
        mine = slice(None) if rank is None else slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        rows = torch.arange(views * SAMPLES).view(views, SAMPLES)[:, mine].flatten()
        part = {key: value[rows] if torch.is_tensor(value) else value for key, value in batch.items()}
        learning = {key: part[key].requires_grad_() for key in ("logits", "features")}
        criterion.zero_grad()
        (call(criterion, part) * (len(rows) / len(batch["target"]))).backward()
    found = {name: p.grad for name, p in criterion.named_parameters()}
    if "head" in spec.needs:  # of all steps together, since only the gradients of the loss were set to zero
        found["head"] = criterion._head.module.weight.grad
    for key, tensor in learning.items():
        found[key] = torch.zeros_like(batch[key])
        if tensor.grad is not None:
            found[key][rows] = tensor.grad
    return found


def sam_training(rank: int | None, sync: bool) -> dict[str, torch.Tensor]:
    """Three SAM steps of a small network on a batch of 16, or on one rank's half of it."""
    torch.manual_seed(0)
    inputs, target = torch.randn(16, 4), torch.arange(16) % 3
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    part = slice(None) if rank is None else slice(8 * rank, 8 * rank + 8)
    if rank is not None:
        model = DistributedDataParallel(model)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), rho=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        alone = model.no_sync() if isinstance(model, DistributedDataParallel) and not sync else contextlib.nullcontext()
        with alone:
            F.cross_entropy(model(inputs[part]), target[part]).backward()
        with optimizer.perturbed(model):
            F.cross_entropy(model(inputs[part]), target[part]).backward()
        optimizer.step()
    return {name.removeprefix("module."): p.detach().clone() for name, p in model.named_parameters()}


def join_ranks(rank: int, folder: str) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME=LOOPBACK)
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))


def compiled_worker(rank: int, folder: str, name: str) -> None:
    """A compiled loss gives what it gives uncompiled, with another number of rows at every step and on every rank."""
    join_ranks(rank, folder)
    spec = registry.get("loss", name)
    torch.manual_seed(0)
    criterion = build(spec)
    plain = copy.deepcopy(criterion)
    compiled = torch.compile(criterion, backend="aot_eager")
    for step, size in enumerate((7, 9, 6, 11, 12)):
        batch = inputs(spec, criterion, seed=step)
        views = len(batch["target"]) // SAMPLES
        mine = slice(size) if rank == 0 else slice(size, None)
        rows = torch.arange(views * SAMPLES).view(views, SAMPLES)[:, mine].flatten()
        part = {key: value[rows] if torch.is_tensor(value) else value for key, value in batch.items()}
        for value, wanted in zip(gradients(compiled, part), gradients(plain, part), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)
    dist.destroy_process_group()


def worker(rank: int, folder: str) -> None:
    join_ranks(rank, folder)
    results = {name: joint_gradients(name, rank) for name in JOINT}
    results |= {f"sam-{sync}": sam_training(rank, sync) for sync in (True, False)}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
