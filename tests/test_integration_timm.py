"""timm's training task with losses of classgap."""

from __future__ import annotations

import copy
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

timm = pytest.importorskip("timm")
pytest.importorskip("timm.task", reason="timm.task is complete from timm 1.0.27 on")

from timm.optim import create_optimizer_v2

from classgap import registry
from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.integrations import timm_train
from classgap.integrations.timm import ClassLossTask
from classgap.losses import (
    ClassLoss,
    CompactLogitsLoss,
    CrossEntropyLoss,
    DRWLoss,
    GaussianMixtureLoss,
    GroupDROLoss,
    MR2Loss,
)
from classgap.losses.batch import LossBatch
from waiting import LOOPBACK, SECONDS

CLASSES, WIDTH = 5, 64


class LearnedOffsets(ClassLoss):
    """A loss with parameters, one number per class."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.offsets = torch.nn.Parameter(torch.randn(num_classes))

    def per_sample(self, batch: LossBatch) -> torch.Tensor:
        logits = batch.logits + self.offsets
        return torch.nn.functional.cross_entropy(logits, batch.target, reduction="none")


def model() -> Any:
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=CLASSES)


def batches(number: int = 8, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 3, 160, 160, generator=generator),
            torch.randint(0, CLASSES, (size,), generator=generator),
        )
        for _ in range(number)
    ]


def build(loss: Any) -> Any:
    torch.manual_seed(2)
    return loss(CLASSES)


def train(task: ClassLossTask, data: Any, accumulate: int) -> None:
    """As ``train.py`` does: the loss divided by the number of accumulated batches."""
    optimizer = create_optimizer_v2(task.parameter_groups(0.0), opt="momentum", lr=0.05, momentum=0.0)
    task.train()
    for i, (x, y) in enumerate(data):
        (task(x, y)["loss"] / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("loss", [CrossEntropyLoss, MR2Loss, LearnedOffsets], ids=lambda c: c.__name__)
def test_equals_a_plain_loop_with_accumulation(loss: Any) -> None:
    task, data = ClassLossTask(model(), build(loss)), batches()
    plain, criterion = copy.deepcopy(task.trainable_module), copy.deepcopy(task.class_loss)
    train(task, data, 4)
    tap = FeatureTap(plain).train()
    optimizer = torch.optim.SGD([*plain.parameters(), *criterion.parameters()], lr=0.05)
    for i, (x, y) in enumerate(data):
        logits, features = tap(x)
        (criterion(logits, y, features=features) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    for (name, p), q in zip(plain.named_parameters(), task.trainable_module.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6, msg=name)
    for key, value in criterion.state_dict().items():
        torch.testing.assert_close(task.class_loss.state_dict()[key], value, atol=1e-6, rtol=1e-6, msg=key)


def test_checkpoints_hold_the_loss_beside_plain_weights() -> None:
    task = ClassLossTask(model(), MR2Loss(CLASSES))
    task.setup_ema()
    train(task, batches(2), 1)
    task.update_ema()
    saved = task.get_checkpoint_state() | task.get_checkpoint_state(ema=True)
    assert list(saved["state_dict"]) == list(model().state_dict()) == list(saved["state_dict_ema"])
    other = ClassLossTask(model(), MR2Loss(CLASSES))
    other.load_checkpoint_state(saved["state_dict"], saved["task_state"])
    for key, value in task.class_loss.state_dict().items():
        assert torch.equal(value, other.class_loss.state_dict()[key])
    with pytest.raises(
        InputError, match="the checkpoint holds the state of mr2 for 5 classes, but the criterion is compact_l"
    ):
        ClassLossTask(model(), CompactLogitsLoss(CLASSES)).load_checkpoint_state(
            saved["state_dict"], saved["task_state"]
        )
    x, y = batches(1)[0]
    with torch.no_grad():
        assert torch.equal(task.eval()(x, y)["loss"], other.eval()(x, y)["loss"])
    assert sum(p.numel() for p in task.parameters()) == 2 * sum(p.numel() for p in model().parameters())  # and the EMA


def test_compiles() -> None:
    task, (x, y) = ClassLossTask(model(), MR2Loss(CLASSES)), batches(1)[0]
    expected = task(x, y)["loss"].item()
    other = ClassLossTask(model(), MR2Loss(CLASSES))
    other.compile(backend="eager")
    assert other(x, y)["loss"].item() == pytest.approx(expected, abs=1e-6)


def test_a_loss_that_timm_cannot_supply_is_refused() -> None:
    with pytest.raises(InputError, match="drw needs epoch"):
        ClassLossTask(model(), DRWLoss(CLASSES, class_counts=[5.0] * CLASSES))
    with pytest.raises(InputError, match=r"lgm ranks classes by .*not by the output of the model, which timm measures"):
        ClassLossTask(model(), GaussianMixtureLoss(CLASSES, WIDTH))
    ClassLossTask(model(), GroupDROLoss(CLASSES))  # state, but nothing to supply


SCRIPT = """
import sys, timm, torch
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.task import ClassificationTask
name, folder = sys.argv[1:]
torch.manual_seed(0)
model = timm.create_model("test_vit", num_classes=5)
criterion = {"smooth": LabelSmoothingCrossEntropy(0.1), "soft": SoftTargetCrossEntropy(), "bce": torch.nn.BCELoss()}[name]
task = ClassificationTask(model=model, criterion=criterion, device=torch.device("cpu"), dtype=None, verbose=False)
optimizer = create_optimizer_v2(task.get_trainable_module(), opt="momentum", lr=0.05, weight_decay=0.1)
generator = torch.Generator().manual_seed(1)
x, y = torch.randn(4, 3, 160, 160, generator=generator), torch.randint(0, 5, (4,), generator=generator)
loss = task(x, y)["loss"]
loss.backward()
optimizer.step()
groups = [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
torch.save((loss.detach(), criterion(model(x), y).detach() if name == "smooth" else None, groups), folder)
"""


PLUGIN = """
import torch
from classgap.losses import ClassLoss
from classgap.registry import Float, method

@method("learned_offsets", kind="loss", family="margin", paper="none", space={"start": Float(0.0, 1.0, default=0.0)})
class LearnedOffsets(ClassLoss):
    \"\"\"Cross-entropy with one number per class.\"\"\"

    def __init__(self, num_classes, *, start=0.0, class_counts=None, **options):
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.offsets = torch.nn.Parameter(torch.full((num_classes,), start))

    def per_sample(self, batch):
        return torch.nn.functional.cross_entropy(batch.logits + self.offsets, batch.target, reduction="none")
"""


def run_script(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    import timm.optim
    import timm.task

    for module, name in ((timm.task, "ClassificationTask"), (timm.optim, "create_optimizer_v2")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "train.py").write_text(SCRIPT)
    timm_train.main([str(folder / "train.py"), words[0], str(folder / "found.pt"), *words[1:]])
    return torch.load(folder / "found.pt")


def test_a_script_of_timm_runs_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_METHODS", "_PLUGINS"):  # the plugin is forgotten afterwards
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setenv(registry.PLUGINS, "")
    (tmp_path / "offsets.py").write_text(PLUGIN)
    words = ("--plugin", str(tmp_path / "offsets.py"), "--loss", "classgap:learned_offsets", "--loss-set", "start=0.5")
    loss, _, groups = run_script(tmp_path, monkeypatch, "smooth", *words)
    assert torch.isfinite(loss)
    assert groups[-1] == (1, 0)  # the parameter of the loss, without decay
    torch.manual_seed(0)
    same = timm.create_model("test_vit", num_classes=CLASSES)
    x, y = batches(1)[0]
    expected = torch.nn.functional.cross_entropy(same(x), y, label_smoothing=0.1)
    loss, _, _ = run_script(tmp_path, monkeypatch, "smooth", "--loss=classgap:cross_entropy")
    torch.testing.assert_close(loss, expected.detach())


def test_what_a_script_of_timm_cannot_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, sentence in [
        (("smooth", "--loss=classgap:ldam"), "ldam needs class_counts"),
        (("smooth", "--loss=mr2"), "must be classgap:NAME"),
        (("bce", "--loss=classgap:mr2"), "takes the place of BCELoss"),
        (("smooth", "--loss=classgap:mr2", "--loss-set", "lam"), "must be KEY=VALUE"),
        (("soft", "--loss=classgap:lff"), "lff needs class_counts"),
        (("smooth", "--loss=classgap:lgm"), "lgm ranks classes by"),
    ]:
        with monkeypatch.context() as patch, pytest.raises(InputError, match=sentence):
            run_script(tmp_path, patch, *words)


def worker(rank: int, folder: str) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME=LOOPBACK)
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))
    task = ClassLossTask(model(), build(LearnedOffsets)).prepare_distributed()
    train(task, [(x[rank::2], y[rank::2]) for x, y in batches(2)], 1)
    torch.save([p.detach() for p in task.parameters()], Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_match_one(tmp_path: Path) -> None:
    task = ClassLossTask(model(), build(LearnedOffsets))
    train(task, batches(2), 1)
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        for p, q in zip(task.parameters(), torch.load(tmp_path / f"{rank}.pt"), strict=True):
            torch.testing.assert_close(p.detach(), q, atol=1e-5, rtol=1e-5)
