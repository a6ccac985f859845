"""After training: a run as a predictor, and files that audit, compare and fix read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import classgap
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.data import load_source
from classgap.training import TrainConfig, load_run, train
from image_files import write_folder, write_image

SMALL = ["data.per_class=13", "epochs=1", "batch=24", "optim.lr=0.05", "model=mlp-16"]


def _fit(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model=resnet20", "data.per_class=4"],
        ["method=dbm"],
        ["model.head=cosine"],
        ["model.head=causal"],
        ["method=ncl"],
        ["method=lgm"],
        ["method=mr2", "precision=64-true"],
        ["stage=crt"],
        ["stage=marc"],
        ["stage=disalign"],
        ["stage=gap_dial", "stage.strength=1", "stage.ridge=1"],
        ["stage=gap_dial", "stage.strength=1", "stage.ridge=1", "method=dbm"],
    ],
    ids="+".join,
)
def test_a_loaded_run_predicts_what_training_wrote(tmp_path: Path, settings: list[str]) -> None:
    _fit(tmp_path, *settings)
    found = load_run(tmp_path).outputs("digits")
    with np.load(tmp_path / "predictions_test.npz") as saved:
        for name in ("scores", "features"):
            np.testing.assert_allclose(getattr(found, name), saved[name], rtol=1e-4, atol=1e-4)
        if "stage=disalign" not in settings:  # whose scores are not those of a linear layer
            for name in ("weight", "bias", "margin_norms"):
                assert (getattr(found, name) is None) == (name not in saved)
                if name in saved:
                    np.testing.assert_allclose(getattr(found, name), saved[name], rtol=1e-4, atol=1e-4)
        assert found.y_true.tolist() == saved["y_true"].tolist()
        assert found.train_counts.tolist() == saved["train_counts"].tolist()


def test_arrays_tensors_and_data_sets(tmp_path: Path) -> None:
    _fit(tmp_path)
    run, source = load_run(tmp_path), load_source("digits")
    whole = run.predict("digits")
    assert isinstance(whole, classgap.Predictions)
    assert whole.scores_kind == "logits"
    x, y = source.x_test, source.y_test
    for samples in (x, torch.from_numpy(np.asarray(x))):
        assert np.array_equal(run.predict(samples, y).scores, whole.scores)
        assert np.array_equal(run.scores(samples), whole.scores)
    assert np.array_equal(run.predict(x, y.astype(str)).y_true, whole.y_true)
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(np.asarray(x)), torch.from_numpy(y))
    assert np.array_equal(run.predict(pairs).scores, whole.scores)
    assert run.predict("digits", part="train").num_samples == 797
    assert np.array_equal(classgap.predict(tmp_path, "digits").scores, whole.scores)
    assert classgap.audit(whole).overall.value == pytest.approx((whole.y_pred == whole.y_true).mean())
    for bad, message in (
        ((x[:, :, :4], y), r"trained on samples of shape \(1, 8, 8\), these have \(1, 4, 8\)"),
        ((x,), "needs true labels"),
        ((x, y + 3), r"class indices in \[0, 10\)"),
        (("digits", y), "pass them for arrays only"),
        ((x, ["cat"] * len(y)), "does not know the classes cat"),
    ):
        with pytest.raises(InputError, match=message):
            run.predict(*bad)
    for part, message in (
        ("val", "no validation part"),
        ("all", "for folders and tables"),
        ("tset", "did you mean 'test'"),
    ):
        with pytest.raises(InputError, match=message):
            run.predict("digits", part=part)


def _run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_what_was_done_with_the_samples_is_told(tmp_path: Path) -> None:
    """Files that were left out, and numbers that are taken for classes with names."""
    pytest.importorskip("torchvision")
    root = write_folder(tmp_path / "photos", {"train": 9, "test": 4}, size=(8, 8))
    _fit(tmp_path / "run", f"data={root}", "data.per_class=8", workers=0)
    bad = next((root / "test" / "ant").iterdir())
    bad.write_bytes(bad.read_bytes()[:40])
    words = ("predict", tmp_path / "run", root, "--out", tmp_path / "found.csv", "--workers", 0)
    said = _run(*words, "--skip-corrupt")
    assert f"note: 1 of 12 images cannot be decoded and are left out: test/ant/{bad.name}" in said
    assert "11 samples" in said
    files = [path.relative_to(root) for path in sorted((root / "test").glob("*/*")) if path != bad]
    numbers = {"ant": 2, "bee": 1, "cat": 0}
    (root / "list.txt").write_text("".join(f"{path} {numbers[path.parent.name]}\n" for path in files))
    said = _run("predict", tmp_path / "run", root / "list.txt", *words[3:])
    assert (
        "note: the labels are numbers and are taken as positions among the classes of the network: 0 as ant, 1" in said
    )


def test_a_folder_from_training_to_report(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    root = write_folder(tmp_path / "photos", {"train": 15, "test": 12}, size=(18, 15), suffix=".jpg")
    _fit(tmp_path / "run", f"data={root}", "data.size=10", "data.resize=12", "data.per_class=12", workers=0)
    run = load_run(tmp_path / "run")
    found = run.predict(str(root), workers=0)
    with np.load(tmp_path / "run" / "predictions_test.npz") as saved:
        np.testing.assert_allclose(found.scores, saved["scores"], rtol=1e-4, atol=1e-5)
        assert found.ids is not None
        assert found.ids.tolist() == saved["ids"].tolist()
    some = write_folder(tmp_path / "some", {"": 3}, classes=("bee", "cat"), size=(30, 40))
    assert run.predict(str(some), workers=0).y_true.tolist() == [1] * 3 + [2] * 3
    assert run.predict(str(some), part="test", workers=2).num_samples == 2  # divided as a training run would
    assert run.predict(str(root), part="train", workers=0).num_samples == 45
    write_image(some / "dog" / "a.png", 0)
    with pytest.raises(InputError, match="does not know the classes dog"):
        run.predict(str(some), workers=0)
    with pytest.raises(InputError, match=r"has no images of the part val \(it has test, train\)"):
        run.predict(str(root), part="val", workers=0)
    for ending in ("npz", "csv", "parquet"):
        out = tmp_path / f"found.{ending}"
        assert "36 samples, 3 classes" in _run("predict", tmp_path / "run", root, "--out", out, "--workers", 0)
        read = classgap.Predictions.read(out, classgap.Columns(id="ids" if ending == "npz" else "id"), rows=True)
        assert read.classes == ("ant", "bee", "cat")
        np.testing.assert_allclose(read.scores, found.scores, rtol=1e-4, atol=1e-5)
        assert read.y_true.tolist() == found.y_true.tolist()
    assert "36 samples" in _run("audit", tmp_path / "found.csv")
    for column in ("id", "ids"):  # an archive calls them ids, a table has one id per row
        assert "36 samples" in _run("compare", tmp_path / "found.npz", tmp_path / "found.csv", "--id", column)
    assert "36 samples" in _run("compare", tmp_path / "found.npz", tmp_path / "run" / "predictions_test.npz")
    _run("fix", tmp_path / "found.npz", "--out", tmp_path / "fixed", "--folds", 2)
    assert (tmp_path / "fixed" / "report.html").exists()


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    _fit(tmp_path / "run")
    folder = tmp_path / "run"
    with pytest.raises(InputError, match=r"there is no run in .*: it lacks run\.json"):
        load_run(tmp_path)
    with pytest.raises(InputError, match=r"--out must end in \.npz, \.csv, \.parquet, got 'a\.txt'"):
        CliRunner().invoke(app, ["predict", str(folder), "digits", "--out", "a.txt"], catch_exceptions=False)
    weights = (folder / "model.safetensors").read_bytes()
    about = json.loads((folder / "run.json").read_text())
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match=r"model\.safetensors cannot be loaded"):
        load_run(folder)
    (folder / "model.safetensors").write_bytes(weights)
    other = {**about, "config": {**about["config"], "model": {"name": "mlp-8"}}}
    (folder / "run.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match=r"cannot be loaded into the network of run\.json: .*size mismatch"):
        load_run(folder)
    (folder / "run.json").write_text(json.dumps({key: value for key, value in about.items() if key != "data"}))
    with pytest.raises(InputError, match="an earlier version wrote it"):
        load_run(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="is not finished; continue it: classgap train --resume"):
        load_run(folder)
    _fit(tmp_path / "lgm", "method=lgm")
    (tmp_path / "lgm" / "checkpoint.pt").unlink()
    with pytest.raises(InputError, match="learns parameters of its own"):
        load_run(tmp_path / "lgm")
