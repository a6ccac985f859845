"""Every registered loss, optimiser and sampler trains a small network on real digits for two epochs: finite and useful.

The loop here is what a user writes by hand; it reads what a method needs from its declaration.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from classgap import registry
from classgap.heads import CosineHead, FeatureTap
from classgap.losses import ClassLoss
from classgap.models import Experts
from classgap.samplers import EpochSampler, PByQSampler

CLASSES, WIDTH, EPOCHS, BATCH = 10, 32, 2, 32
LONG_TAIL = [120 - 11 * k for k in range(CLASSES)]  # 120 down to 21 training samples a class


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels with a mild long tail, and balanced test ones."""
    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images, order = images.float() / 16, torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = [], []
    for k, count in enumerate(LONG_TAIL):
        members = order[labels[order] == k]
        train.append(members[:count])
        test.append(members[-50:])
    return images[torch.cat(train)], labels[torch.cat(train)], images[torch.cat(test)], labels[torch.cat(test)]


def network(cosine: bool) -> FeatureTap:
    head = CosineHead(WIDTH, CLASSES) if cosine else nn.Linear(WIDTH, CLASSES)
    return FeatureTap(nn.Sequential(nn.Linear(64, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), head))


def build(spec: registry.Method) -> ClassLoss:
    wanted = inspect.signature(spec.cls).parameters
    offered = {"num_features": WIDTH, "class_counts": LONG_TAIL, "epochs": EPOCHS, "slots": 256}
    params = {key: value for key, value in offered.items() if key in wanted}
    criterion: ClassLoss = spec.build(num_classes=CLASSES, **params)
    return criterion


def train(criterion: ClassLoss, data: Any, *, sampler: EpochSampler | None = None, wrap: Any = None) -> float:
    """Balanced accuracy on the test images after training as the declaration asks."""
    images, labels, test_images, test_labels = data
    cosine, views = "cosine_head" in criterion.needs, getattr(criterion, "views", 1)
    members = criterion.experts if "experts" in criterion.needs else 1
    model = Experts(network(cosine) for _ in range(members)) if "experts" in criterion.needs else network(cosine)
    if "teacher" in criterion.needs:
        criterion.bind_teacher(taught(images, labels))
    base = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.03, momentum=0.9)
    optimizer = base if wrap is None else wrap(base)

    def training_pass():
        model.eval()
        with torch.no_grad():
            logits, features = model(images)
        model.train()
        yield logits, labels, features, torch.arange(len(labels))

    for epoch in range(EPOCHS):
        model.train()
        criterion.train()
        criterion.start_epoch(epoch, training_pass)
        order = torch.randperm(len(labels)) if sampler is None else sampler(epoch)
        for rows in order.split(BATCH):
            if len(rows) < 2:
                continue
            x = torch.cat([images[rows] + 0.05 * torch.randn(len(rows), 64) for _ in range(views)])
            y, index = labels[rows].repeat(views), rows.repeat(views)

            def backward(x=x, y=y, index=index, epoch=epoch) -> None:
                logits, features = model(x)
                loss = criterion(logits, y, features=features, index=index, epoch=epoch)
                assert torch.isfinite(loss)
                loss.backward()

            criterion.observe(x)
            optimizer.zero_grad()
            backward()
            if wrap is not None:
                with optimizer.perturbed(model, criterion):
                    backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = criterion.scores(*model(test_images))
    return (scores.argmax(1) == test_labels).float().mean().item()


def taught(images: Tensor, labels: Tensor) -> nn.Module:
    teacher = network(cosine=False)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1, momentum=0.9)
    for rows in torch.arange(len(labels)).repeat(3).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(teacher(images[rows])[0], labels[rows]).backward()
        optimizer.step()
    return teacher


@pytest.mark.parametrize("spec", registry.methods("loss"), ids=lambda spec: spec.name)
def test_every_loss_learns(spec, digits):
    torch.manual_seed(0)
    assert train(build(spec), digits) > 0.3  # chance is 0.1


@pytest.mark.parametrize("spec", registry.methods("optimizer"), ids=lambda spec: spec.name)
@pytest.mark.parametrize("loss", ["cross_entropy", "mr2", "gml", "lff"])
def test_every_optimiser_learns_also_with_stateful_losses(spec, loss, digits):
    torch.manual_seed(0)
    criterion = build(registry.get("loss", loss))
    assert train(criterion, digits, wrap=lambda base: spec.build(base=base)) > 0.3


@pytest.mark.parametrize("spec", registry.methods("sampler"), ids=lambda spec: spec.name)
def test_every_sampler_feeds_training(spec, digits):
    torch.manual_seed(0)
    params = {"classes": 8, "samples": 4} if spec.cls is PByQSampler else {}
    sampler = spec.build(labels=digits[1], **params)
    assert train(build(registry.get("loss", "cross_entropy")), digits, sampler=sampler) > 0.3
