"""``classgap fix`` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file
from scipy.special import softmax

from classgap.cli import main
from classgap.posthoc import fix, load
from classgap.posthoc.figure import _rows
from posthoc_data import Task, long_tailed_task

Run = Callable[..., tuple[int, str, str]]
NAMES = np.array(["ant", "bee", "cat", "dog", "eel"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["classgap", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def task() -> Task:
    return long_tailed_task(per_class=120)


def test_chosen_method_head_predictions_and_report_are_written(run: Run, task: Task, tmp_path: Path) -> None:
    file, out = tmp_path / "val.npz", tmp_path / "fixed"
    np.savez(
        file,
        features=task.features,
        weight=task.weight,
        bias=task.bias,
        y_true=task.y,
        class_names=NAMES,
        train_counts=task.counts,
    )
    code, printed, error = run("fix", file, "--out", out, "--folds", 2)
    assert code == 0, error
    assert "Chosen by hard_if_overall_holds" in printed
    assert {"report.html", "report.md", "report.json", "methods.md", "head.safetensors", "predictions.csv"} <= {
        p.name for p in out.iterdir()
    }
    assert (out / "figures" / "frontier.png").stat().st_size > 5000
    method = load(out / "method")
    head = load_file(out / "head.safetensors")
    folded = NAMES[(task.features @ head["weight"].T + head["bias"]).argmax(1)]
    table = pl.read_csv(out / "predictions.csv")
    np.testing.assert_array_equal(table["after"].to_numpy(), folded)
    np.testing.assert_array_equal(method.predict(task.scores, features=task.features), folded)
    report = json.loads((out / "report.json").read_text())
    change = 100 * report["groups"]["cross"]["hard"]["delta"]["value"]  # text, tile and figure show the same number
    assert f"classes that were hard before {change:+.1f} [" in " ".join(printed.split())
    ring = [row for row in _rows(fix(file, folds=2)) if row["chosen"]]
    assert [row["hard"] for row in ring] == pytest.approx([change])
    assert report["num_samples"] == (table["part"] == "report").sum()


def test_nothing_but_reports_when_nothing_helps(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", scores=rng.normal(size=(180, 3)), y_true=np.repeat(np.arange(3), 60))
    code, printed, _ = run("fix", tmp_path / "noise.npz", "--out", tmp_path / "out", "--folds", 2)
    assert code == 0
    assert "No significant improvement" in printed
    assert "not fitted: crt (needs features)" in printed
    assert not (tmp_path / "out" / "method").exists()
    assert not (tmp_path / "out" / "predictions.csv").exists()
    assert (tmp_path / "out" / "methods.md").exists()


def test_table_of_logits_with_other_names(run: Run, task: Task, tmp_path: Path) -> None:
    columns = {f"logit_{n}": task.scores[:, k] for k, n in enumerate(NAMES)} | {"animal": NAMES[task.y]}
    pl.DataFrame(columns).write_csv(tmp_path / "val.csv")
    (tmp_path / "counts.csv").write_text(
        "class,count\n" + "\n".join(f"{n},{c}" for n, c in zip(NAMES, task.counts, strict=True))
    )
    code, printed, _ = run(
        "fix", tmp_path / "val.csv", "--true", "animal", "--scores", "logit_", "--train-counts", tmp_path / "counts.csv",
        "--rule", "best_overall", "--folds", 2, "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0
    assert "Chosen by best_overall" in printed
    assert not (tmp_path / "out" / "head.safetensors").exists()


def test_labels_alone_are_not_enough(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("y_true,y_pred\na,a\nb,a\n")
    code, _, error = run("fix", tmp_path / "p.csv", "--out", tmp_path / "out")
    assert code == 2
    assert "fix needs true labels and scores" in error


def test_unknown_rule_is_named_before_work(run: Run, task: Task, tmp_path: Path) -> None:
    np.savez(tmp_path / "val.npz", scores=task.scores, y_true=task.y)
    code, _, error = run("fix", tmp_path / "val.npz", "--rule", "best", "--out", tmp_path / "out")
    assert code == 2
    assert "unknown value for rule" in error
    assert not (tmp_path / "out").exists()


def test_help_teaches(run: Run) -> None:
    code, printed, _ = run("fix", "--help")
    assert code == 0
    for word in ("NOT", "hard_if_overall_holds", "classgap.posthoc.load", "head.safetensors"):
        assert word in printed


@pytest.mark.parametrize("stored", ["logits", "probabilities", "scaled"])
def test_a_layer_is_written_only_if_it_predicts_as_the_method(
    run: Run, task: Task, tmp_path: Path, stored: str
) -> None:
    file, out = tmp_path / "val.npz", tmp_path / "fixed"
    logits = task.features @ task.weight.T + task.bias
    scores = {"logits": logits, "probabilities": softmax(logits, axis=1), "scaled": 4 * logits}[stored]
    layer = {"features": task.features, "weight": task.weight, "bias": task.bias}
    np.savez(file, scores=scores, y_true=task.y, train_counts=task.counts, **layer)
    code, printed, error = run("fix", file, "--out", out, "--folds", 2, "--rule", "best_hard")
    assert code == 0, error
    path = out / "head.safetensors"
    note = "head.safetensors is not written" in " ".join(printed.split())
    assert path.exists() is not note
    assert ("head.safetensors is not written" in (out / "methods.md").read_text()) is note
    if path.exists():
        head = load_file(path)
        after = pl.read_csv(out / "predictions.csv")["after"].to_numpy()
        assert ((task.features @ head["weight"].T + head["bias"]).argmax(1) == after).mean() > 0.99
    else:
        assert stored == "scaled"
