"""The warning that all features have become the same, and what the log says about features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.collapse import has_collapsed
from classgap.training.epoch import EpochMeter

SMALL = ["data.per_class=50", "epochs=4", "model=mlp-32", "batch=64", "checkpoint_steps=3"]
COUNTS = np.full(10, 5)


def fit(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def test_published_mr2_is_noticed_once(tmp_path: Path) -> None:
    notes: list[str] = []

    def watch(position: TrainProgress) -> None:
        notes.extend([position.note] if "collapsed" in position.note else [])

    result = fit(tmp_path, "method=mr2_published", watch=watch)
    (note,) = notes
    assert "method.lam" in note
    assert "method=mr2" in note
    assert [entry["warning"] for entry in result.history if "warning" in entry] == [note]
    first, last = result.history[0]["features"], result.history[-1]["features"]
    assert last["scatter"] < 0.01 * first["start"]
    assert last["norm"] < 0.01 * first["norm"]


@pytest.mark.parametrize(
    "settings",
    [
        ["method=cross_entropy"],
        ["method=mr2"],
        ["method=compact_logits"],
        ["method=arcface"],
        ["method=supcon", "method.ce_weight=0"],  # trains no classifier: accuracy stays at chance
        ["method=cross_entropy", "optim.lr=0.0001"],  # learns nothing in four epochs
        ["method=cross_entropy", "data.profile=exponential", "data.imbalance=50"],
        ["model=resnet20", "data.per_class=10", "epochs=2"],
    ],
    ids=" ".join,
)
def test_no_warning(tmp_path: Path, settings: list[str]) -> None:
    result = fit(tmp_path, *settings)
    assert not [entry for entry in result.history if "warning" in entry]


def record(scatter: float, accuracy: float) -> dict[str, Any]:
    return {"features": {"scatter": scatter}, "train": {"accuracy": accuracy}}


def test_both_conditions_are_needed() -> None:
    assert has_collapsed([record(0.1, 0.1)], 1.0, COUNTS)
    assert not has_collapsed([record(0.1, 0.4)], 1.0, COUNTS)  # drawn together, and told apart
    assert not has_collapsed([record(0.9, 0.1)], 1.0, COUNTS)
    assert not has_collapsed([record(0.4, 0.1)] * 2, 1.0, COUNTS)
    assert has_collapsed([record(0.4, 0.1)] * 3, 1.0, COUNTS)
    assert not has_collapsed([record(0.1, 0.1)], None, COUNTS)


def meter(batches: list[tuple[torch.Tensor, ...]], saves: tuple[int, ...] = ()) -> dict[str, Any]:
    found = EpochMeter(7, torch.device("cpu"))
    for step, (features, labels, scores) in enumerate(batches):
        found.add(scores, features, labels, {"loss": scores.mean()})
        if step in saves:
            state = found.state_dict()
            found = EpochMeter(7, torch.device("cpu"))
            found.load_state_dict(state)
    return found.record()


@pytest.mark.parametrize("width", [2.0, 1e-3])
def test_sums_of_an_epoch(width: float) -> None:
    """Against a loop over batches and classes in double precision, also where deviations are small beside the features."""
    torch.manual_seed(0)
    sizes = [12, 1, 30, 2, 17, 25, 0, 9, 40, 3, 8]
    batches = [(3 + width * torch.randn(n, 5), torch.randint(6, (n,)), torch.randn(n, 7)) for n in sizes]
    found = meter(batches)
    scatter, freedom = np.zeros((2, 7))
    total, rows, norms = 0.0, 0, []
    for features, labels, _ in batches:
        x, y = features.double().numpy(), labels.numpy()
        norms.extend((x**2).sum(1))
        if len(x):
            total, rows = total + ((x - x.mean(0)) ** 2).sum(), rows + len(x) - 1
        for k in set(y.tolist()):
            mine = x[y == k]
            scatter[k] += ((mine - mine.mean(0)) ** 2).sum()
            freedom[k] += len(mine) - 1
    np.testing.assert_allclose(found["spread"]["per_class"][:6], np.sqrt(scatter[:6] / freedom[:6]), rtol=1e-4)
    assert np.isnan(found["spread"]["per_class"][6])
    assert found["features"]["norm"] == pytest.approx(np.sqrt(np.mean(norms)), rel=1e-5)
    assert found["features"]["scatter"] == pytest.approx(
        np.sqrt(total / rows), rel=1e-5, abs=1e-3 * found["features"]["norm"]
    )
    accuracy = [(scores.argmax(1) == labels) for _, labels, scores in batches]
    assert found["train"]["accuracy"] == pytest.approx(torch.cat(accuracy).double().mean().item())


def test_sums_do_not_depend_on_where_an_epoch_was_saved() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(20, 5), torch.randint(7, (20,)), torch.randn(20, 7)) for _ in range(21)]
    batches[4][0][3, 2] = torch.nan  # one batch that is left out of the statistics of features
    whole, cut = meter(batches), meter(batches, saves=(2, 3, 11, 19))
    assert whole["train"] == cut["train"]
    assert whole["features"] == cut["features"]
    assert whole["spread"]["per_class"].tolist() == cut["spread"]["per_class"].tolist()
    assert np.isfinite(whole["spread"]["per_class"]).all()
