"""``cross_entropy`` takes the place of ``torch.nn.CrossEntropyLoss``: options, targets, ignored labels, copies."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.losses import CrossEntropyLoss, FocalLoss, MR2Loss, SeesawLoss

K = 5
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.25])
CASES = list(itertools.product(("mean", "sum", "none"), (None, WEIGHT), (0.0, 0.2)))


def batch(rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, K, generator=generator), torch.randint(K, (rows,), generator=generator)


def value_and_gradient(criterion: nn.Module, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    loss = criterion(logits, target)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), grad


@pytest.mark.parametrize("targets", ["labels", "some ignored", "own ignore_index", "probabilities"])
def test_every_option_gives_what_torch_gives(targets: str) -> None:
    logits, labels = batch()
    ignore_index = 255 if targets == "own ignore_index" else -100
    target = labels.clone()
    if targets == "probabilities":
        target = logits.flip(0).softmax(1)
    elif targets != "labels":
        target[[1, 5, 6]] = ignore_index
    for reduction, weight, smoothing in CASES:
        options = {"reduction": reduction, "weight": weight, "label_smoothing": smoothing, "ignore_index": ignore_index}
        mine = value_and_gradient(CrossEntropyLoss(K, **options), logits, target)
        theirs = value_and_gradient(nn.CrossEntropyLoss(**options), logits, target)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, msg=f"{reduction}, weight {weight is not None}, smoothing {smoothing}")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
def test_only_ignored_samples_give_zero_where_torch_gives_nan(reduction: str, weight: Tensor | None) -> None:
    logits, _ = batch(3)
    target = torch.full((3,), -100)
    loss, grad = value_and_gradient(CrossEntropyLoss(K, reduction=reduction, weight=weight), logits, target)
    torch_loss, _ = value_and_gradient(nn.CrossEntropyLoss(reduction=reduction, weight=weight), logits, target)
    assert torch.equal(loss, torch.zeros(3) if reduction == "none" else torch.tensor(0.0))
    assert torch.equal(loss, torch_loss.nan_to_num())
    assert not grad.any()


def test_other_losses_weight_and_smooth_as_cross_entropy_does() -> None:
    """Focal with gamma 0 is cross-entropy, and goes through the general code."""
    logits, target = batch()
    target[3] = -100
    for reduction, weight, smoothing in CASES:
        options = {"reduction": reduction, "weight": weight, "label_smoothing": smoothing}
        mine = value_and_gradient(FocalLoss(K, gamma=0.0, **options), logits, target)
        theirs = value_and_gradient(nn.CrossEntropyLoss(**options), logits, target)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reduction": "avg"}, "unknown value for reduction 'avg'"),
        ({"weight": [1.0, 2.0]}, "weight must have 5 entries"),
        ({"weight": [1.0, 2.0, -1.0, 1.0, 1.0]}, "weight must hold finite numbers"),
        ({"label_smoothing": 1.5}, "label_smoothing must be"),
    ],
)
def test_bad_options_get_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        CrossEntropyLoss(K, **options)


def test_without_an_ignore_index_such_labels_are_errors() -> None:
    logits, target = batch()
    target[0] = -100
    with pytest.raises(InputError, match=r"class indices in \[0, 5\)"):
        CrossEntropyLoss(K, ignore_index=None)(logits, target)


def test_a_loss_inside_a_model_has_an_average_of_its_own() -> None:
    """EMA of weights: buffers of the loss are copied, or averaged, and the loss of the model keeps its own."""
    model = nn.ModuleDict({"net": nn.Linear(4, K), "criterion": MR2Loss(K)})
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    for step in range(3):
        features = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
        model["criterion"](model["net"](features), batch()[1], features=features).backward()
        average.update_parameters(model)
    mine, averaged = model["criterion"].state_dict(), average.module["criterion"].state_dict()
    assert mine.keys() == averaged.keys()
    assert any(not torch.equal(mine[key], averaged[key]) for key in mine)


class Block(nn.Module):
    """A network whose head runs inside a checkpointed segment."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.head, self.reentrant = nn.Linear(4, 8), nn.Linear(8, K), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda z: self.head(self.body(z).relu()), x, use_reentrant=self.reentrant)


def test_features_of_a_checkpointed_segment_keep_their_gradient() -> None:
    torch.manual_seed(0)
    tap, criterion = FeatureTap(Block(reentrant=False)), MR2Loss(K)
    logits, features = tap(torch.randn(12, 4, requires_grad=True))
    assert features.requires_grad
    criterion(logits, batch()[1], features=features).backward()
    assert tap.model.body.weight.grad.any()


def test_features_without_a_gradient_are_refused() -> None:
    tap = FeatureTap(Block(reentrant=True))
    with pytest.raises(InputError, match="use_reentrant=False"):
        tap(torch.randn(12, 4, requires_grad=True))


def test_weights_by_name_are_refused():
    pd = pytest.importorskip("pandas")
    with pytest.raises(InputError, match=r"weight must be in the order of the classes"):
        CrossEntropyLoss(3, weight=pd.Series([1.0, 2.0, 3.0], index=[1, 0, 2]))
    assert CrossEntropyLoss(3, weight=pd.Series([1.0, 2.0, 3.0]).to_numpy()).class_weight.tolist() == [1, 2, 3]


def test_counts_of_seesaw_keep_their_precision():
    criterion = SeesawLoss(2).bfloat16()
    for _ in range(30):
        criterion(torch.zeros(20, 2), torch.zeros(20, dtype=torch.long))
    assert criterion.seen_counts.tolist() == [600, 0]


def test_several_labels_per_sample_are_told_so():
    logits, labels = batch()
    target = nn.functional.one_hot(labels, K).float()
    target[0] = 1.0
    with pytest.raises(InputError, match="several labels per sample need a loss for multi-label data"):
        CrossEntropyLoss(K)(logits, target)
    with pytest.raises(InputError, match="divide by the row sum"):
        CrossEntropyLoss(K)(logits, 2.5 * target)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_parts_of_a_batch_add_up_by_their_divisors(weight: Tensor | None) -> None:
    logits, target = batch()
    target[[2, 9]] = -100
    criterion = FocalLoss(K, weight=weight)
    rows = torch.arange(12).split(5)
    divisors = [criterion.divisor(target[part]) for part in rows]
    parts = [criterion(logits[part], target[part]) * d for part, d in zip(rows, divisors, strict=True)]
    torch.testing.assert_close(sum(parts) / sum(divisors), criterion(logits, target))
