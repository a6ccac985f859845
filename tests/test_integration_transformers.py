"""Hugging Face's Trainer with losses of classgap: the same loss and gradients as a plain loop, and state that is kept."""

from __future__ import annotations

import copy
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from classgap import audit
from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.integrations.transformers import ClassLossTrainer, ClassMetrics
from classgap.losses import ClassLoss, CrossEntropyLoss, FocalLoss, GaussianMixtureLoss, MR2Loss, SupConLoss
from waiting import LOOPBACK, started

CLASSES, WIDTH = 6, 16
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch"
)


def bert(seed: int = 0) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    small = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=CLASSES, **small, **nothing))


def texts(number: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, number)
    return [{"input_ids": [int(y) + 3, *rng.integers(10, 50, 4).tolist()], "label": int(y)} for y in labels]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    fixed = {"output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 1}
    quick = {
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "learning_rate": 0.1,
        "optim": "sgd",
        "max_grad_norm": 0.0,
    }
    return TrainingArguments(**fixed | quick | {"logging_steps": 1, "lr_scheduler_type": "constant", **more})


def train(folder: Path, criterion: ClassLoss, model: Any = None, data: Any = None, resume: Any = None, **more: Any):
    evaluation = {k: more.pop(k) for k in ("eval_dataset", "compute_metrics") if k in more}
    model = bert() if model is None else model
    data = texts() if data is None else data
    trainer = ClassLossTrainer(model, arguments(folder, **more), criterion=criterion, train_dataset=data, **evaluation)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def plain_loop(order: list[int], data: list[dict[str, Any]], criterion: ClassLoss, size: int, accumulate: int) -> Any:
    """Two SGD steps by hand; the batches that ``order`` says, each weighted by its share of the samples of the step."""
    model, values = bert(), []
    tap = FeatureTap(model)
    learning = [*model.parameters(), *criterion.parameters()]
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    for step in range(2):
        model.train()
        for p in learning:
            p.grad = None
        mine = batches[step * accumulate : (step + 1) * accumulate]
        total = sum(len(batch) for batch in mine)
        values.append(0.0)
        for batch in mine:
            tokens, labels = (torch.tensor([data[i][key] for i in batch]) for key in ("input_ids", "label"))
            logits, features = tap(input_ids=tokens)
            loss = criterion(logits, labels, features=features) * (len(batch) / total)
            loss.backward()
            values[-1] += loss.item()
        with torch.no_grad():
            for p in learning:
                if p.grad is not None:
                    p -= 0.1 * p.grad
    return model, values


class Ordered(list):
    """A data set that notes which samples were asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("build", [CrossEntropyLoss, MR2Loss, GaussianMixtureLoss], ids=lambda c: c.__name__)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_equals_a_plain_loop(tmp_path: Path, build: Any, accumulate: int) -> None:
    made = {"num_features": WIDTH} if build is GaussianMixtureLoss else {}
    torch.manual_seed(3)
    criterion = build(CLASSES, **made)
    by_hand, data = copy.deepcopy(criterion), Ordered(texts(30))
    trainer = train(tmp_path, criterion, data=data, gradient_accumulation_steps=accumulate)
    model, values = plain_loop(data.asked, data, by_hand, 4, accumulate)
    rounding = 1e-6 if transformers.__version__ >= "5" else 5e-5  # of the log; before, losses were rounded there
    np.testing.assert_allclose(losses(trainer), values, atol=rounding)
    for (name, p), q in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6, msg=name)
    assert criterion.state_dict().keys() == by_hand.state_dict().keys()
    for key, value in criterion.state_dict().items():
        torch.testing.assert_close(value, by_hand.state_dict()[key], atol=1e-6, rtol=1e-6, msg=key)


@pytest.mark.parametrize("ignored", [-100, 0])
def test_class_weights_in_accumulated_batches_are_those_of_one_batch(tmp_path: Path, ignored: int) -> None:
    """The mean over a step divides by the sum of all its weights, not each batch by its own."""
    weight = torch.tensor([5.0, 0.1, 1.0, 2.0, 0.5, 0.0])
    rows = texts(32)
    for row in rows[::5]:
        row["label"] = ignored
    data, model = Ordered(rows), bert()
    criterion = CrossEntropyLoss(CLASSES, weight=weight, ignore_index=ignored)
    trainer = train(tmp_path, criterion, data=data, gradient_accumulation_steps=4)
    optimizer, values = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(2):
        asked = [rows[i] for i in data.asked[16 * step : 16 * step + 16]]
        tokens, labels = (torch.tensor([row[key] for row in asked]) for key in ("input_ids", "label"))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(input_ids=tokens).logits, labels, weight=weight, ignore_index=ignored)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    np.testing.assert_allclose(losses(trainer), values, atol=1e-6)
    for (name, p), q in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6, msg=name)


def test_parameters_of_the_loss_are_optimised(tmp_path: Path) -> None:
    criterion = GaussianMixtureLoss(CLASSES, WIDTH)
    before = [p.clone() for p in criterion.parameters()]
    trainer = train(tmp_path, criterion)
    assert any(not torch.equal(p, q) for p, q in zip(criterion.parameters(), before, strict=True))
    assert trainer.optimizer.param_groups[-1]["weight_decay"] == 0


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", MR2Loss(CLASSES), max_steps=6, optim="adamw_torch")
    part = {"max_steps": 6, "optim": "adamw_torch", "save_steps": 3}
    train(tmp_path / "part", MR2Loss(CLASSES), **part)
    folder = tmp_path / "part" / "checkpoint-3"
    assert json.loads((folder / "classgap_loss.json").read_text())["loss"] == "mr2"
    resumed = train(tmp_path / "part", MR2Loss(CLASSES), resume=str(folder), **part)
    assert losses(resumed) == losses(whole)
    for key, value in whole.criterion.state_dict().items():
        assert torch.equal(value, resumed.criterion.state_dict()[key]), key
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(InputError, match="holds the state of mr2 for 6 classes, but the criterion is focal"):
        train(tmp_path / "part", FocalLoss(CLASSES), resume=str(folder), **part)
    (folder / "classgap_loss.safetensors").unlink()
    with pytest.raises(InputError, match="was saved without classgap"):
        train(tmp_path / "part", MR2Loss(CLASSES), resume=str(folder), **part)


def test_the_best_model_is_that_of_the_best_hard_third(tmp_path: Path) -> None:
    every = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "max_steps": 20, "learning_rate": 2.0}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "hard"}
    criterion = MR2Loss(CLASSES)
    held_out = texts(60, seed=5)
    trainer = train(
        tmp_path, criterion, data=texts(60), eval_dataset=held_out, compute_metrics=ClassMetrics(), **every, **best
    )
    found = [entry["eval_hard"] for entry in trainer.state.log_history if "eval_hard" in entry]
    assert trainer.state.best_metric == max(found)
    state = copy.deepcopy(criterion.state_dict())
    again = trainer.evaluate()
    assert again["eval_hard"] == max(found)
    for key, value in criterion.state_dict().items():  # that of the best step, and evaluation leaves it alone
        assert torch.equal(value, state[key])
    scores = trainer.predict(held_out).predictions
    report = audit(np.array([row["label"] for row in held_out]), scores=scores, n_boot=100)
    for name in ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_decile", "gap"):
        assert again[f"eval_{name}"] == pytest.approx(report.metrics[name].value)
    batchwise = ClassLossTrainer(
        trainer.model,
        arguments(tmp_path / "b", batch_eval_metrics=True),
        criterion=criterion,
        eval_dataset=held_out,
        compute_metrics=ClassMetrics(),
    )
    assert batchwise.evaluate()["eval_gap"] == again["eval_gap"]


def test_evaluation_loss_and_state(tmp_path: Path) -> None:
    criterion, held_out = MR2Loss(CLASSES), texts(10, seed=3)
    trainer = train(tmp_path, criterion, eval_dataset=held_out, per_device_eval_batch_size=10)
    state = copy.deepcopy(criterion.state_dict())
    value = trainer.evaluate()["eval_loss"]
    for key, tensor in criterion.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    tokens, labels = (torch.tensor([row[key] for row in held_out]) for key in ("input_ids", "label"))
    with torch.no_grad():
        logits, features = FeatureTap(trainer.model.eval())(input_ids=tokens)
        assert value == pytest.approx(criterion.eval()(logits, labels, features=features).item(), abs=1e-6)


def step_loss(trainer: Any, batch: dict[str, torch.Tensor], items: int | None = None) -> float:
    trainer.model.train()
    return trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=items).item()


def test_label_smoothing_and_ignored_labels(tmp_path: Path) -> None:
    model, rows = bert(), texts(8)
    tokens, labels = (torch.tensor([row[key] for row in rows]) for key in ("input_ids", "label"))
    logits = model(input_ids=tokens).logits
    smooth = ClassLossTrainer(
        model, arguments(tmp_path, label_smoothing_factor=0.2), criterion=CrossEntropyLoss(CLASSES)
    )
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2).item()
    assert step_loss(smooth, {"input_ids": tokens, "labels": labels}, 8) == pytest.approx(expected, abs=1e-6)
    plain = ClassLossTrainer(model, arguments(tmp_path), criterion=CrossEntropyLoss(CLASSES))
    some = labels.clone()
    some[::3] = -100
    expected = F.cross_entropy(logits, some).item()
    assert step_loss(plain, {"input_ids": tokens, "labels": some}, 5) == pytest.approx(expected, abs=1e-6)
    assert step_loss(plain, {"input_ids": tokens, "labels": some}, 20) == pytest.approx(expected / 4, abs=1e-6)
    assert step_loss(plain, {"input_ids": tokens, "labels": torch.full_like(labels, -100)}, 5) == pytest.approx(
        logits.sum().item(), abs=10
    )
    soft = {"input_ids": tokens, "labels": F.one_hot(labels, CLASSES).float()}  # 8 items, not 8·K
    items = plain._get_num_items_in_batch([soft, soft], torch.device("cpu"))
    expected = F.cross_entropy(logits, labels).item()
    assert step_loss(plain, soft, items) == pytest.approx(expected / 2, abs=1e-6)


def test_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(**layers, image_size=16, patch_size=8, num_labels=CLASSES))
    data = [{"pixel_values": torch.randn(3, 16, 16), "label": i % CLASSES} for i in range(16)]
    trainer = train(tmp_path, MR2Loss(CLASSES), model=model, data=data)
    assert np.isfinite(losses(trainer)).all()


def test_a_tapped_model_no_longer_loses_its_columns(tmp_path: Path) -> None:
    """Trainer drops the columns that the signature of ``forward`` does not name; of a tap it used to drop all."""
    from transformers import Trainer

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            labels = inputs.pop("labels")
            logits, features = model(**inputs)
            return MR2Loss(CLASSES)(logits, labels, features=features)

    trainer = Own(FeatureTap(bert()), arguments(tmp_path, label_names=["labels"]), train_dataset=texts())
    assert trainer.train().global_step == 2


def test_wrong_use_is_said(tmp_path: Path) -> None:
    options = arguments(tmp_path)
    with pytest.raises(InputError, match=r"supcon needs views, which Hugging Face's Trainer does not supply"):
        ClassLossTrainer(bert(), options, criterion=SupConLoss(CLASSES, WIDTH))
    with pytest.raises(InputError, match="criterion must be a loss of classgap"):
        ClassLossTrainer(bert(), options, criterion=torch.nn.CrossEntropyLoss())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="compute_loss_func cannot be combined"):
        ClassLossTrainer(bert(), options, criterion=MR2Loss(CLASSES), compute_loss_func=print)
    with pytest.raises(InputError, match="pass the plain model"):
        ClassLossTrainer(FeatureTap(bert()), options, criterion=MR2Loss(CLASSES))
    trainer = ClassLossTrainer(bert(), options, criterion=MR2Loss(CLASSES))
    with pytest.raises(InputError, match="must hold 'labels'"):
        trainer.compute_loss(trainer.model, {"input_ids": torch.ones(2, 3, dtype=torch.long)})


def test_metrics_take_what_trainer_gives() -> None:
    scores, labels = np.eye(3)[[0, 1, 1, 2, 0]], np.array([0, 1, 2, 2, -100])
    plain = ClassMetrics()(EvalPrediction(predictions=scores, label_ids=labels))
    assert plain["overall"] == 0.75
    with_states = ClassMetrics()(EvalPrediction(predictions=(scores, np.zeros((5, 2, 4))), label_ids=labels))
    assert with_states == plain
    absent = ClassMetrics()(EvalPrediction(predictions=np.eye(4)[[0, 1, 1, 2]], label_ids=labels[:4]))
    assert absent["balanced"] == pytest.approx(2.5 / 3)  # class 3 has no samples


def worker(rank: int, world: int, port: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=LOOPBACK)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    criterion = GaussianMixtureLoss(CLASSES, WIDTH, weight=[5.0, 0.1, 1.0, 2.0, 0.5, 0.0])
    options = {"ddp_backend": "gloo", "per_device_train_batch_size": 4 // world, "gradient_accumulation_steps": 4}
    trainer = train(Path(folder) / f"run{world}", criterion, data=texts(32), **options)
    found = {"model": trainer.model.state_dict(), "criterion": criterion.state_dict(), "losses": losses(trainer)}
    torch.save(found, Path(folder) / f"{world}-{rank}.pt")
    if world > 1:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_match_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started([sys.executable, __file__, "0", "1", str(port), str(tmp_path)]) as alone:
        assert alone.wait() == 0
    commands = [[sys.executable, __file__, str(rank), "2", str(port), str(tmp_path)] for rank in (0, 1)]
    with started(commands[0]) as first, started(commands[1]) as second:
        assert first.wait() == 0
        assert second.wait() == 0
    one, *two = (torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    np.testing.assert_allclose(two[0]["losses"], one["losses"], atol=5e-5)
    for part in ("model", "criterion"):
        for key, value in one[part].items():
            for other in two:
                torch.testing.assert_close(other[part][key], value, atol=1e-6, rtol=1e-5, msg=f"{part} {key}")


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
