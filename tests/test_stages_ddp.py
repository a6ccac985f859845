"""Stages and teachers in two processes: the same as in one, written by the first, and resumed where they were cut off."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file

import stage_workers
from classgap.training.epoch import EpochMeter


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes ran every case."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(stage_workers.worker, args=(str(folder), port), nprocs=2, join=True)
    return folder


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", stage_workers.CASES)
def test_two_processes_are_one(two: Path, tmp_path: Path, name: str) -> None:
    stage_workers.run(name, tmp_path)
    names = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")}
    assert names == {str(file.relative_to(two / name)) for file in (two / name).rglob("*")}
    for folder in [tmp_path, *(file.parent for file in tmp_path.glob("**/stage*/run.json"))]:
        other = two / name / folder.relative_to(tmp_path)
        with np.load(folder / "predictions_test.npz") as one, np.load(other / "predictions_test.npz") as both:
            # A fitted head is exact up to the tolerance of its solver.
            np.testing.assert_allclose(both["scores"], one["scores"], rtol=1e-2, atol=1e-2)
            assert (both["y_pred"] == one["y_pred"]).mean() > 0.995
        for mine, theirs in zip(log(folder), log(other), strict=True):
            assert theirs["train"] == pytest.approx(mine["train"], rel=1e-3)


@pytest.mark.parametrize("name", stage_workers.CUTS)
def test_a_run_of_two_processes_goes_on_where_it_was_cut_off(two: Path, name: str) -> None:
    for file in (two / name).rglob("model.safetensors"):
        whole, resumed = load_file(file), load_file(two / f"{name}-cut" / file.relative_to(two / name))
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    for file in (two / name).rglob("log.jsonl"):
        pairs = zip(log(file.parent), log(two / f"{name}-cut" / file.parent.relative_to(two / name)), strict=True)
        for one, other in pairs:
            assert other["train"] == pytest.approx(one["train"], rel=1e-6)


def test_only_the_first_process_writes(two: Path) -> None:
    written = json.loads((two / "written.json").read_text())
    assert not [file for file in written if not file.endswith("written.json")]


def test_all_processes_stop_when_one_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other process has counted comes in through the sum."""
    meter = EpochMeter(2, torch.device("cpu"))
    meter.add(torch.eye(2), torch.eye(2), torch.arange(2), {"loss": torch.tensor(1.0)})
    assert meter.finite()
    monkeypatch.setattr("classgap.training.epoch.all_reduce_sum", lambda *sums: tuple(s + torch.nan for s in sums))
    assert not meter.finite()
