"""skorch: MR² on image embeddings in a scikit-learn search by the hard third, and the same steps as a plain loop.

python examples/integration_skorch.py FOLDER     # with cifar100_effnetlite0_pca256.npz
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from plain_loop import ACCUMULATE, LR, STEPS, compare, embeddings, plain_loop
from sklearn.model_selection import GridSearchCV
from torch import nn

from classgap.integrations.sklearn import SCORERS, hard_third
from classgap.integrations.skorch import ClassLossNet
from classgap.losses import MR2Loss


class Module(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 100))


class Accumulating(ClassLossNet):
    """Gradient accumulation as in the documentation of skorch."""

    def get_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().get_loss(*args, **kwargs) / ACCUMULATE

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        self.seen = getattr(self, "seen", 0) + 1
        step = self.train_step_single(batch, **fit_params)
        if self.seen % ACCUMULATE == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
        return step


def main(folder: Path) -> None:
    x, y, test, y_test, _ = embeddings(folder)
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:6000]
    x, y = x[some], y[some]
    settings = {"criterion": MR2Loss, "criterion__num_classes": 100, "train_split": None, "verbose": 0}
    first = slice(0, 64 * STEPS * ACCUMULATE)
    net = Accumulating(Module, lr=LR, max_epochs=1, batch_size=64, **settings).initialize()
    by_hand = copy.deepcopy(net.module_.model), copy.deepcopy(net.criterion_)
    net.partial_fit(x[first].numpy(), y[first].numpy())
    plain_loop(*by_hand, zip(x[first].split(64), y[first].split(64), strict=True))
    compare("skorch", (net.module_.model, net.criterion_), by_hand, (x, y))

    net = ClassLossNet(Module, lr=0.5, max_epochs=5, batch_size=200, **settings)
    search = GridSearchCV(net, {"criterion__lam": [0.0, 0.001]}, scoring=hard_third, cv=2)
    search.fit(x.numpy(), y.numpy())
    probabilities = search.predict_proba(test.numpy())
    print("chosen:", search.best_params_, "· largest error of a row sum:", abs(probabilities.sum(1) - 1).max())
    print({name: round(float(scorer(search, test.numpy(), y_test.numpy())), 3) for name, scorer in SCORERS.items()})


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
