"""``--strategy fsdp`` in two gloo processes: the result of one process, checkpoints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch.multiprocessing as mp
from lightning_fabric.plugins.environments.lightning import find_free_network_port
from safetensors.numpy import load_file
from torch import nn

import sharded_workers
from classgap.checks import InputError
from classgap.training import sharding, train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    train(sharded_workers.CONFIG, folder / "single", accelerator="cpu")
    mp.spawn(sharded_workers.worker, (str(folder), find_free_network_port()), nprocs=2)  # type: ignore[no-untyped-call]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", "began"])
def test_divided_weights_give_the_result_of_one_process(runs: Path, name: str) -> None:
    """Class statistics, clipping, AdamW and a ragged last batch; also where the run was interrupted within an epoch."""
    one, two = (np.load(runs / folder / "predictions_test.npz") for folder in ("single", name))
    for part in ("scores", "features", "weight", "bias"):
        np.testing.assert_allclose(one[part], two[part], rtol=1e-4, atol=1e-5)
    whole, parts = (load_file(runs / folder / "model.safetensors") for folder in ("single", name))
    for tensor, values in whole.items():
        np.testing.assert_allclose(values, parts[tensor], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_divided_weights_is_refused_without_fsdp(runs: Path) -> None:
    with pytest.raises(InputError, match=r"was made with --strategy fsdp.*; resume with it"):
        train(sharded_workers.CONFIG, runs / "whole", accelerator="cpu", resume=True)


def test_blocks_are_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the layers inside a block, whose weights it may use without calling them."""
    monkeypatch.setattr(sharding, "SMALLEST_UNIT", 500)
    block = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(block, 3, enable_nested_tensor=False), nn.Linear(8, 2))
    units = list(sharding._units(model))
    assert [type(unit).__name__ for unit in units] == ["TransformerEncoder"]
    assert (
        len(
            list(
                sharding._units(nn.ModuleDict({"layers": nn.ModuleList([block, nn.TransformerEncoderLayer(8, 2, 16)])}))
            )
        )
        == 2
    )
