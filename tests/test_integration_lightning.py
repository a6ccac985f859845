"""Lightning: a loss on the module equals a plain loop, and the callback's numbers are those of an audit of each sample once."""

from __future__ import annotations

import copy
import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

lightning = pytest.importorskip("lightning")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits

from classgap import audit
from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.integrations.lightning import AuditCallback
from classgap.losses import ClassLoss, CrossEntropyLoss, GaussianMixtureLoss, MR2Loss
from waiting import LOOPBACK

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has advice on workers, loggers and the number of batches
HEADLINES = ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_decile", "gap")


def digits(start: int, stop: int) -> TensorDataset:
    X, y = load_digits(return_X_y=True)
    rows = torch.arange(start, stop)
    return TensorDataset(torch.tensor(X[start:stop] / 16, dtype=torch.float32), torch.tensor(y[start:stop]), rows)


class Net(LightningModule):
    def __init__(self, criterion: ClassLoss, *, index: bool = False, inside: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = FeatureTap(nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))
        self.index, self.other = index, [criterion]
        if inside:
            self.criterion = criterion

    def training_step(self, batch: Any, _: int) -> Any:
        logits, features = self.net(batch[0])
        return self.other[0](logits, batch[1], features=features)

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> Any:
        logits, features = self.net(batch[0])
        loss = self.other[0](logits, batch[1], features=features)
        found = {"loss": loss, "logits": logits, "target": batch[1]}
        return found | ({"index": batch[2]} if self.index else {})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, callbacks: Any = (), **more: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    callbacks = list(callbacks)
    saving = {"enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks)}
    return Trainer(
        default_root_dir=folder, callbacks=callbacks, **quiet | saving | {"max_epochs": 2, "devices": 1, **more}
    )


@pytest.mark.parametrize("loss", [CrossEntropyLoss, MR2Loss, GaussianMixtureLoss], ids=lambda c: c.__name__)
def test_equals_a_plain_loop_with_accumulation(tmp_path: Path, loss: Any) -> None:
    torch.manual_seed(1)
    module = Net(loss(10, 16) if loss is GaussianMixtureLoss else loss(10))
    by_hand = copy.deepcopy(module)
    criterion = by_hand.criterion
    data = digits(0, 160)
    trainer(tmp_path, accumulate_grad_batches=4).fit(module, DataLoader(data, 20))
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(2):
        for i, rows in enumerate(torch.arange(160).split(20)):
            logits, features = by_hand.net(data.tensors[0][rows])
            (criterion(logits, data.tensors[1][rows], features=features) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    for key, value in by_hand.state_dict().items():
        torch.testing.assert_close(module.state_dict()[key], value, atol=1e-6, rtol=1e-6, msg=key)


def expected(module: Net, data: TensorDataset) -> Any:
    with torch.no_grad():
        logits, features = module.net.eval()(data.tensors[0])
    return audit(data.tensors[1].numpy(), scores=logits.numpy(), features=features.numpy(), n_boot=100)


def test_numbers_and_files_are_those_of_an_audit(tmp_path: Path) -> None:
    module, callback = Net(MR2Loss(10)), AuditCallback([f"digit {k}" for k in range(10)], features=True)
    held_out = digits(500, 777)
    run = trainer(tmp_path, [callback], max_epochs=1)  # with the sanity check, which must leave nothing behind
    run.fit(module, DataLoader(digits(0, 500), 50), DataLoader(held_out, 100))
    report = expected(module, held_out)
    for name in HEADLINES:
        assert run.callback_metrics[f"val/{name}"].item() == pytest.approx(report.metrics[name].value, abs=1e-6)
    assert callback.report is not None
    assert callback.report.num_samples == 277
    assert callback.report.geometry is not None
    (folder,) = (tmp_path / "classgap").iterdir()
    assert folder.name == "epoch_000_step_000010"
    assert json.loads((folder / "report.json").read_text())["num_samples"] == 277
    rows = list(csv.DictReader((folder / "classes.csv").open()))
    assert [row["name"] for row in rows] == [f"digit {k}" for k in range(10)]
    np.testing.assert_allclose([float(row["accuracy"]) for row in rows], report.per_class["accuracy"])
    assert "digit 3" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_best_checkpoint_by_hard_third_and_several_sets(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, monitor="val/hard/1", mode="max", filename="best")
    callback, sets = AuditCallback(folder=tmp_path / "f", page=False), [digits(500, 600), digits(600, 900)]
    run = trainer(tmp_path, [callback, saving], max_epochs=3)
    module = Net(CrossEntropyLoss(10))
    run.fit(module, DataLoader(digits(0, 500), 50), [DataLoader(part, 100) for part in sets])
    assert saving.best_model_score is not None
    module.load_state_dict(torch.load(saving.best_model_path)["state_dict"])
    assert saving.best_model_score.item() == pytest.approx(expected(module, sets[1]).hard.value, abs=1e-6)
    assert len(list((tmp_path / "f").glob("epoch_*/[01]/classes.csv"))) == 6


def test_repeated_samples_of_a_padded_sampler_count_once(tmp_path: Path) -> None:
    data = digits(500, 613)  # 113 samples for 4 processes: 3 are repeated
    module = Net(CrossEntropyLoss(10))
    for shuffle in (False, True):
        found = []
        for rank in range(4):
            sampler: Any = DistributedSampler(data, num_replicas=4, rank=rank, shuffle=shuffle)
            callback = AuditCallback(folder=tmp_path, page=False)
            trainer(tmp_path, [callback], use_distributed_sampler=False).validate(
                module, DataLoader(data, 10, sampler=sampler), verbose=False
            )
            assert callback.report is not None
            found.append(callback.report.num_samples)
        assert sum(found) == 113
    twice = torch.utils.data.ConcatDataset([data, data])
    callback = AuditCallback(folder=tmp_path, page=False)
    trainer(tmp_path, [callback]).validate(Net(CrossEntropyLoss(10), index=True), DataLoader(twice, 10), verbose=False)
    assert callback.report is not None
    assert callback.report.num_samples == 113


def test_a_loss_outside_the_module_is_kept_by_the_callback(tmp_path: Path) -> None:
    def run(epochs: int, resume: Any = None) -> tuple[Net, ClassLoss, ModelCheckpoint]:
        criterion = MR2Loss(10)
        module, saving = Net(criterion, inside=False), ModelCheckpoint(tmp_path / str(epochs), save_last=True)
        fit = trainer(
            tmp_path, [AuditCallback(criterion=criterion, folder=tmp_path, page=False), saving], max_epochs=epochs
        )
        fit.fit(module, DataLoader(digits(0, 200), 50), DataLoader(digits(500, 600), 50), ckpt_path=resume)
        return module, criterion, saving

    _, _, half = run(1)
    _, whole, _ = run(2)
    _, resumed, _ = run(2, half.last_model_path)
    assert whole.training
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


def test_wrong_use_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has parameters, which nobody would optimise"):
        AuditCallback(criterion=GaussianMixtureLoss(10, 16))
    module, loader = Net(CrossEntropyLoss(10)), DataLoader(digits(0, 40), 20)
    for output, words in [
        (torch.tensor(1.0), "got Tensor"),
        ({"loss": torch.tensor(1.0)}, "got the keys loss"),
        ({"logits": torch.zeros(20, 10), "target": torch.zeros(20, 10)}, r"and target \(N,\), got"),
    ]:
        module.validation_step = lambda *_, output=output: output  # type: ignore[method-assign]
        with pytest.raises(InputError, match=words):
            trainer(tmp_path, [AuditCallback(folder=tmp_path)]).validate(module, loader, verbose=False)


@pytest.mark.slow
def test_two_processes_match_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", LOOPBACK)
    data, module, values = digits(500, 613), Net(CrossEntropyLoss(10)), {}
    for devices in (1, 2):
        strategy = "ddp_spawn" if devices == 2 else "auto"
        callback = AuditCallback(folder=tmp_path / str(devices), page=False)
        trainer(tmp_path, [callback], devices=devices, strategy=strategy).validate(
            module, DataLoader(data, 10), verbose=False
        )
        (folder,) = (tmp_path / str(devices)).iterdir()
        report = json.loads((folder / "report.json").read_text())
        values[devices] = report["num_samples"], report["metrics"], report["confused_pairs"]
    assert values[2] == values[1]
