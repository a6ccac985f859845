"""``ClassGap`` as a torchmetrics ``Metric``: the numbers of an audit, exact over batches and processes."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

torchmetrics = pytest.importorskip("torchmetrics")

from classgap import audit
from classgap.checks import InputError
from classgap.integrations.torchmetrics import ClassGap
from waiting import LOOPBACK, SECONDS

CLASSES = 7


def samples(number: int = 211) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    target = rng.integers(0, CLASSES - 1, number)  # the last class is absent
    scores = rng.normal(size=(number, CLASSES)) + 1.5 * np.eye(CLASSES)[target] * (target[:, None] % 3)
    return torch.tensor(scores), torch.tensor(target)


def check(found: dict[str, torch.Tensor]) -> None:
    scores, target = samples()
    report = audit(target.numpy(), scores=scores.numpy(), n_boot=100)
    for name, value in found.items():
        assert value.item() == pytest.approx(report.metrics[name].value, abs=1e-7), name


def test_values_are_those_of_an_audit_whatever_the_batches() -> None:
    scores, target = samples()
    metric = ClassGap(CLASSES)
    for rows in torch.arange(len(target)).split(50):
        metric.update(scores[rows] if len(rows) == 50 else scores[rows].argmax(1), target[rows])
    check(metric.compute())
    per_class = metric.per_class()
    assert per_class["accuracy"].isnan().tolist() == [False] * 6 + [True]
    expected = torchmetrics.functional.classification.multiclass_accuracy(scores, target, CLASSES, average=None)
    np.testing.assert_allclose(per_class["accuracy"][:6], expected[:6], rtol=1e-6)
    assert [value.numel() for value in metric.metric_state.values()] == [CLASSES] * 3


def test_in_a_collection_and_reset() -> None:
    scores, target = samples()
    collection = torchmetrics.MetricCollection(
        {"classes": ClassGap(CLASSES), "all": torchmetrics.classification.MulticlassAccuracy(CLASSES, average="micro")}
    )
    collection.update(scores, target)
    found = collection.compute()
    assert found["hard"] < found["easy"]
    torch.testing.assert_close(found["overall"], found["all"])
    metric = ClassGap(CLASSES)
    values = metric(scores[:50], target[:50])  # forward gives the value of the batch
    assert 0 <= values["worst"] <= values["hard"]
    metric.reset()
    metric.update(scores[:0], target[:0])
    assert all(value.isnan() for value in metric.compute().values())


def test_ignored_samples_and_saving() -> None:
    scores, target = samples()
    metric, some = ClassGap(CLASSES), target.clone()
    some[::2] = -100
    metric.update(scores, some)
    assert metric.support.sum() == (some >= 0).sum()
    metric.persistent(True)
    other = ClassGap(CLASSES)
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    other.update(scores[::2], target[::2])
    check(other.compute())


@pytest.mark.parametrize(
    ("preds", "target", "words"),
    [
        (torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), "must have 7 columns"),
        (torch.zeros(3, 7), torch.zeros(3, 7), r"argmax\(1\) of one-hot"),
        (torch.zeros(3, 7), torch.zeros(3), "target must hold class indices, got torch.float32"),
        (torch.zeros(2, dtype=torch.long), torch.tensor([1, 7]), "values from 1 to 7"),
        (torch.tensor([-1, 2]), torch.tensor([1, 2]), "preds must hold class indices in"),
    ],
)
def test_wrong_input_is_said(preds: torch.Tensor, target: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ClassGap(CLASSES).update(preds, target)


def worker(rank: int, folder: str) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME=LOOPBACK)
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))
    scores, target = samples()
    mine = slice(0, 60) if rank == 0 else slice(60, None)
    metric = ClassGap(CLASSES)
    metric.update(scores[mine], target[mine])
    found = metric.compute()
    with metric.sync_context():
        torch.save({"values": found, "per_class": metric.per_class()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_match_one(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    alone = ClassGap(CLASSES)
    alone.update(*samples())
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        check(found["values"])
        for name, vector in alone.per_class().items():
            torch.testing.assert_close(found["per_class"][name], vector, rtol=0, atol=0, equal_nan=True)


def test_no_label_is_ignored() -> None:
    metric = ClassGap(2, ignore_index=None)
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert metric.compute()["overall"] == 0.5
