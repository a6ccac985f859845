"""Every loss × every trainer: what is predicted and measured is what the loss ranks classes by, or the loss is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from classgap import registry
from classgap.checks import InputError
from classgap.heads import CosineHead, FeatureTap
from classgap.integrations.criteria import check_criterion
from classgap.integrations.scalars import class_counts, class_scalars
from classgap.losses import ClassLoss, CrossEntropyLoss
from classgap.testing.inputs import build

pytestmark = pytest.mark.filterwarnings("ignore")  # advice of the trainers on workers, loggers and precision
CLASSES, WIDTH = 5, 8


class LowestWins(CrossEntropyLoss):
    """A loss of somebody else, which ranks classes in the opposite order."""

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        return -logits


every_loss = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(lambda spec=spec: build(spec), id=spec.name) for spec in registry.methods("loss")),
        pytest.param(lambda: LowestWins(CLASSES), id="lowest_wins"),
    ],
)


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(n_class=CLASSES, return_X_y=True)
    return (X[:89] / 16).astype(np.float32), y[:89].astype(np.int64)


class Net(nn.Module):
    def __init__(self, cosine: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU())
        self.head = CosineHead(WIDTH, CLASSES) if cosine else nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return self.head(self.body(x))


def cosine(criterion: ClassLoss) -> bool:
    return "cosine_head" in criterion.needs


def is_supplied(criterion: ClassLoss) -> bool:
    try:
        check_criterion(criterion, "a trainer")
    except InputError:
        return False
    return True


def expected(model: nn.Module, criterion: ClassLoss) -> np.ndarray:
    """Scores by hand, from the head and its input."""
    with torch.no_grad():
        features = model.body(torch.tensor(digits()[0]))
        logits = model.head(features)
        return criterion.scores(logits, model.head.unit(features) if cosine(criterion) else features).numpy()


@every_loss
def test_skorch(make: Any) -> None:
    pytest.importorskip("skorch")
    from classgap.integrations.skorch import ClassLossNet

    X, y = digits()
    net = ClassLossNet(Net, module__cosine=cosine(make()), criterion=make(), max_epochs=2, lr=0.1, verbose=0)
    if not is_supplied(make()):
        with pytest.raises(InputError, match="which skorch does not supply"):
            net.initialize()
        return
    net.fit(X, y)
    model = net.module_.model if isinstance(net.module_, FeatureTap) else net.module_
    scores = expected(model, net.criterion_)
    np.testing.assert_array_equal(net.predict(X), scores.argmax(1))
    np.testing.assert_allclose(net.predict_proba(X), torch.tensor(scores).softmax(1), atol=1e-5)
    rows = net.get_split_datasets(X, y)[1].indices
    assert net.history[-1, "valid_acc"] == pytest.approx((scores[rows].argmax(1) == y[rows]).mean())


@every_loss
def test_transformers(make: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from classgap.integrations.transformers import ClassLossTrainer, ClassMetrics

    X, y = digits()
    data, criterion = [{"x": x, "labels": k} for x, k in zip(X, y, strict=True)], make()
    model = Net(cosine(criterion))
    options = TrainingArguments(
        str(tmp_path), max_steps=3, learning_rate=0.1, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    if not is_supplied(criterion):
        with pytest.raises(InputError, match="which Hugging Face's Trainer does not supply"):
            ClassLossTrainer(model, options, criterion=criterion)
        return
    trainer = ClassLossTrainer(model, options, criterion=criterion, train_dataset=data, compute_metrics=ClassMetrics())
    trainer.train()
    scores = expected(model, criterion)
    found = trainer.predict(data)
    np.testing.assert_allclose(found.predictions, scores, atol=1e-5)
    for name, value in class_scalars(*class_counts(y, scores.argmax(1), CLASSES)).items():
        assert found.metrics[f"test_{name}"] == pytest.approx(value), name
    unlabelled = trainer.predict([{"x": x} for x in X])  # the last batch has one row
    np.testing.assert_allclose(unlabelled.predictions, scores, atol=1e-5)


@every_loss
def test_lightning(make: Any, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from classgap.integrations.lightning import AuditCallback

    class Module(lightning.LightningModule):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.criterion, self.key = make(), key
            self.net = FeatureTap(Net(cosine(self.criterion)))

        def validation_step(self, batch: Any, _: int) -> Any:
            logits, features = self.net(batch[0])
            scores = self.criterion.scores(logits, features) if self.key == "scores" else logits
            return {self.key: scores, "target": batch[1]}

    if "experts" in make().needs:
        return  # several networks, which is the business of the module
    X, y = digits()
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y)), 30)
    for key in ("scores", "logits"):
        module, callback = Module(key), AuditCallback(folder=tmp_path, page=False)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
        trainer = lightning.Trainer(default_root_dir=tmp_path, callbacks=[callback], **quiet)
        if key == "logits" and not module.criterion.ranks_by_output:
            with pytest.raises(InputError, match=r"does not rank classes by the logits; return .*criterion\.scores"):
                trainer.validate(module, loader, verbose=False)
            continue
        (found,) = trainer.validate(module, loader, verbose=False)
        scores = expected(module.net.model, module.criterion)
        for name, value in class_scalars(*class_counts(y, scores.argmax(1), CLASSES)).items():
            assert found[f"val/{name}"] == pytest.approx(value), name


@every_loss
def test_timm(make: Any) -> None:
    pytest.importorskip("timm.task")
    from classgap.integrations.timm import ClassLossTask

    X, y = (torch.tensor(part) for part in digits())
    criterion = make()
    model = Net(cosine(criterion))
    if not is_supplied(criterion) or not criterion.ranks_by_output:
        with pytest.raises(InputError, match=r"which timm (does not supply|measures)"):
            ClassLossTask(model, criterion)
        return
    task = ClassLossTask(model, criterion)
    with torch.no_grad():
        output = task.eval()(X, y)["output"]
    np.testing.assert_array_equal(output.argmax(1), expected(model, criterion).argmax(1))
