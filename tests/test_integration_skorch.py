"""skorch with losses of classgap: the same as a plain loop, probabilities that sum to 1, searches, pickles and saved state."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("skorch")

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from classgap.checks import InputError
from classgap.heads import CosineHead, FeatureTap
from classgap.integrations.sklearn import hard_third
from classgap.integrations.skorch import ClassLossNet
from classgap.losses import CrossEntropyLoss, GaussianMixtureLoss, LDAMLoss, MR2Loss, SupConLoss

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Small(nn.Sequential):
    def __init__(self, cosine: bool = False) -> None:
        super().__init__(nn.Linear(64, 16), nn.ReLU(), CosineHead(16, 10) if cosine else nn.Linear(16, 10))


def digits(number: int = 160) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return (X[:number] / 16).astype(np.float32), y[:number].astype(np.int64)


def net(criterion: Any, base: type[ClassLossNet] = ClassLossNet, **more: Any) -> ClassLossNet:
    torch.manual_seed(0)
    quick = {"max_epochs": 2, "lr": 0.1, "batch_size": 20, "train_split": None, "verbose": 0}
    return base(Small, criterion=criterion, criterion__num_classes=10, **quick | more)


class Accumulating(ClassLossNet):
    """Gradient accumulation as skorch's documentation has it."""

    def get_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().get_loss(*args, **kwargs) / 4

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        self.seen = getattr(self, "seen", 0) + 1
        step = self.train_step_single(batch, **fit_params)
        if self.seen % 4 == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
        return step


@pytest.mark.parametrize(
    ("loss", "more"),
    [(CrossEntropyLoss, {}), (MR2Loss, {}), (GaussianMixtureLoss, {"criterion__num_features": 16})],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_equals_a_plain_loop(loss: Any, more: Any, accumulate: int) -> None:
    X, y = digits()
    found = net(loss, ClassLossNet if accumulate == 1 else Accumulating, **more).initialize()
    plain = found.module_.model if isinstance(found.module_, FeatureTap) else found.module_
    model, criterion = copy.deepcopy(plain), copy.deepcopy(found.criterion_)
    tap = FeatureTap(model)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    found.partial_fit(X, y)
    for _ in range(2):
        for i, rows in enumerate(torch.arange(len(X)).split(20)):
            logits, features = tap(torch.tensor(X)[rows])
            (criterion(logits, torch.tensor(y)[rows], features=features) / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6)
    for key, value in criterion.state_dict().items():
        torch.testing.assert_close(found.criterion_.state_dict()[key], value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("cosine", [False, True])
def test_probabilities_sum_to_one(cosine: bool) -> None:
    X, y = digits()
    more = {"criterion__class_counts": np.bincount(y), "module__cosine": True} if cosine else {}
    found = net(LDAMLoss if cosine else MR2Loss, **more).fit(X, y)
    probabilities = found.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found.predict(X), probabilities.argmax(1))
    if cosine:  # at the scale of the loss: cosines alone would give nearly equal probabilities
        assert probabilities.max() > 0.9
    assert net(CrossEntropyLoss, predict_nonlinearity=None).fit(X, y).predict_proba(X).min() < 0


def test_evaluation_leaves_the_state_alone_and_pickles_keep_it(tmp_path: Path) -> None:
    X, y = digits()
    found = net(MR2Loss, max_epochs=3).fit(X, y)
    state = copy.deepcopy(found.criterion_.state_dict())
    found.predict(X), found.score(X, y)
    again = pickle.loads(pickle.dumps(found))
    found.save_params(f_params=tmp_path / "m.pt", f_criterion=tmp_path / "c.pt")
    loaded = net(MR2Loss).initialize()
    loaded.load_params(f_params=tmp_path / "m.pt", f_criterion=tmp_path / "c.pt")
    for other in (found, again, loaded):
        for key, value in other.criterion_.state_dict().items():
            assert torch.equal(value, state[key]), key
        np.testing.assert_allclose(other.predict_proba(X), found.predict_proba(X), rtol=1e-6)
    Small().load_state_dict(torch.load(tmp_path / "m.pt"))  # the weights keep the names of the module


def test_in_a_search_on_the_hard_third() -> None:
    X, y = digits(300)
    search = GridSearchCV(net(MR2Loss, lr=0.5), {"criterion__lam": [0.0, 1.0]}, scoring=hard_third, cv=2).fit(X, y)
    assert set(search.cv_results_["params"][0]) == {"criterion__lam"}
    assert 0 <= search.best_score_ <= 1


class WithSoftmax(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(1)


class WithHidden(Small):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x, x


def test_labels_as_text_and_probabilities_are_refused() -> None:
    X, y = digits()
    with pytest.raises(InputError, match=r"y must hold class indices from 0, got 'c\d'; encode the labels"):
        net(MR2Loss).fit(X, np.array([f"c{k}" for k in y]))
    with pytest.raises(InputError, match="module must return logits, got probabilities that sum to 1; leave out"):
        net(CrossEntropyLoss).set_params(module=WithSoftmax).fit(X, y)


def test_further_outputs_of_the_module_are_left_alone() -> None:
    X, y = digits()
    found = net(CrossEntropyLoss).set_params(module=WithHidden).fit(X, y)
    np.testing.assert_allclose(found.predict_proba(X), net(CrossEntropyLoss).fit(X, y).predict_proba(X), rtol=1e-5)


def test_a_loss_that_skorch_cannot_supply_is_refused() -> None:
    with pytest.raises(InputError, match="supcon needs views, which skorch does not supply"):
        net(SupConLoss, criterion__num_features=16).initialize()
