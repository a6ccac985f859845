"""Features of a frozen network in a file: what is in it, what interruption leaves, and heads trained on it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

import classgap
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.data import load_data
from classgap.heads import FeatureTap
from classgap.models import build_model
from classgap.training import extracting as module
from classgap.training.extracting import features


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("weights") / "mlp.pt"
    torch.save(build_model("mlp-16", 10, (1, 8, 8)).state_dict(), path)
    return path


def extract(weights: Path, out: Path, **options: Any) -> module.FeaturesFile:
    return features("mlp-16", "digits", out, settings=[f"model.pretrained={weights}"], **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bf16", 1e-2)])
def test_features_are_the_inputs_of_the_head(weights: Path, tmp_path: Path, dtype: str, tolerance: float) -> None:
    done = extract(weights, tmp_path / "f.safetensors", dtype=dtype)
    assert (done.samples, done.width, done.resumed) == (1797, 16, 0)
    data = load_data("digits", val_fraction=0)
    tap = FeatureTap(build_model("mlp-16", 10, (1, 8, 8), pretrained=str(weights)))
    from classgap.data import Normalise

    with torch.no_grad():
        expected = tap(Normalise(data.mean, data.std)(data.test.x))[1]
    with safe_open(tmp_path / "f.safetensors", "pt") as file:  # the library reads what was written without it
        found = file.get_tensor("x_test").float()
        assert torch.equal(file.get_tensor("y_train"), data.train.y)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    again = load_data(str(tmp_path / "f.safetensors"), val_fraction=0)
    assert torch.equal(again.test.x, found)
    assert again.class_names == data.class_names


def test_heads_train_alike_in_memory_and_from_the_file(weights: Path, tmp_path: Path) -> None:
    extract(weights, tmp_path / "f.safetensors")
    settings = [f"data={tmp_path / 'f.safetensors'}", "model=linear", "method=logit_adjusted", "epochs=8"]
    settings += ["optim=adamw", "optim.lr=0.05"]
    inside = classgap.train(settings=settings, folder=tmp_path / "inside")
    mapped = classgap.train(settings=settings, folder=tmp_path / "mapped", memory=0)
    assert (inside.test.scores == mapped.test.scores).all()
    assert (inside.test.y_pred == inside.test.y_true).mean() > 0.6
    found = classgap.load_run(tmp_path / "inside").outputs(str(tmp_path / "f.safetensors"))
    np.testing.assert_allclose(found.scores, inside.test.scores, rtol=1e-5, atol=1e-5)


def test_rows_travel_to_other_processes(weights: Path, tmp_path: Path) -> None:
    extract(weights, tmp_path / "f.safetensors")
    data = load_data(str(tmp_path / "f.safetensors"), memory=0)
    rows = pickle.loads(pickle.dumps(data.train.x))
    assert torch.equal(rows.batch([5, 3]), data.train.x.batch([5, 3]))


class Killed(Exception):
    pass


@pytest.mark.parametrize("clean", [True, False], ids=["interrupted", "killed"])
def test_continues_where_it_stopped(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    out, whole = tmp_path / "f.safetensors", tmp_path / "whole.safetensors"
    extract(weights, whole)
    monkeypatch.setattr(module, "_FLUSH_SECONDS", 0.0)
    if not clean:  # a killed process writes nothing at its end
        monkeypatch.setattr(module._Unfinished, "__exit__", lambda self, *error: self.handle.close())

    def stop(done: int, total: int) -> None:
        if done > 900:
            raise Killed

    with pytest.raises(Killed):
        extract(weights, out, watch=stop, batch=100)
    assert not out.exists()
    with pytest.raises(InputError, match="there is no file"):
        load_data(str(out))
    monkeypatch.undo()
    done = extract(weights, out, batch=100)
    assert 600 < done.resumed <= 1000
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.safetensors", "whole.safetensors"]


def test_slow_extractions_are_saved_by_time(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were saved after 16 MB of features, which takes hours with a slow network and few features."""
    clock = itertools.count(step=6.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    saved: list[int] = []
    flush = module._Unfinished._flush
    monkeypatch.setattr(module._Unfinished, "_flush", lambda self: (saved.append(self.done), flush(self)))
    extract(weights, tmp_path / "f.safetensors", batch=200)
    assert saved[:3] == [400, 797, 1197]


def test_another_network_does_not_continue(weights: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        extract(weights, tmp_path / "f.safetensors", watch=stop)
    assert extract(weights, tmp_path / "f.safetensors", dtype="bf16").resumed == 0


def test_full_disk_is_noticed_at_once(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        extract(weights, tmp_path / "f.safetensors")
    assert error.value.filename == str(tmp_path / "f.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_of_features(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="it is damaged"):
        load_data(str(tmp_path / "x.safetensors"))
    done = extract(weights, tmp_path / "cut.safetensors")
    done.path.write_bytes(done.path.read_bytes()[:-1])
    with pytest.raises(InputError, match="no complete file of features"):
        load_data(str(done.path))
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        features("mlp", "digits", tmp_path / "f.npz")


def test_random_weights_are_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["features", "mlp-16", "digits", "--out", str(tmp_path / "f.safetensors")])
    assert "note: the network has random weights" in done.output
    assert "1,797 samples" in done.output
    quick = ["model.frozen=true", "epochs=1", "data.per_class=12"]
    said = [said_by_a_run(tmp_path / name, [*quick, f"model={name}"]) for name in ("mlp-8", "linear")]
    assert ["random weights" in text for text in said] == [True, False]


def said_by_a_run(folder: Path, settings: list[str]) -> str:
    notes: list[str] = []
    classgap.train(settings=settings, folder=folder, watch=lambda progress: notes.append(progress.note or ""))
    return " ".join(notes)


def test_features_of_a_run(tmp_path: Path) -> None:
    run = classgap.train(settings=["model=mlp-16", "epochs=1", "data.per_class=16"], folder=tmp_path / "run")
    features(tmp_path / "run", "digits", tmp_path / "f.safetensors")
    found = load_data(str(tmp_path / "f.safetensors"), val_fraction=0)
    np.testing.assert_allclose(found.test.x, run.test.features, rtol=1e-4, atol=1e-5)


def test_samples_that_the_network_cannot_take_are_refused(tmp_path: Path) -> None:
    """Features of features, or other images, were a traceback."""
    classgap.train(settings=["epochs=1", "data.per_class=3", "model=mlp-4"], folder=tmp_path / "run")
    classgap.features(tmp_path / "run", "digits", tmp_path / "f.safetensors", settings=["data.per_class=3"])
    with pytest.raises(InputError, match=r"cannot take the samples of .*f\.safetensors, of shape \(4,\)"):
        classgap.features(tmp_path / "run", str(tmp_path / "f.safetensors"), tmp_path / "g.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.safetensors", "run"]


def test_refit_with_a_validation_part_that_stays_in_the_file(tmp_path: Path) -> None:
    """Rows of the validation part were read from the training part when the file was mapped into memory."""
    rng, arrays = np.random.default_rng(0), {}
    for part, each in (("train", 10), ("val", 6), ("test", 4)):
        arrays[f"y_{part}"] = np.repeat(np.arange(3), each)
        arrays[f"x_{part}"] = (rng.normal(size=(3 * each, 5)) + arrays[f"y_{part}"][:, None]).astype(np.float32)
    about = {"class_names": ["a", "b", "c"], "fingerprint": "one", "model": "m", "data": "d"}
    save_file(arrays, tmp_path / "f.safetensors", {"classgap": json.dumps(about)})
    settings = [f"data={tmp_path / 'f.safetensors'}", "model=linear", "epochs=2", "batch=8", "stage=gap_dial"]
    settings += ["stage.refit=true"]
    found = [classgap.train(folder=tmp_path / str(m), settings=settings, memory=m).test.scores for m in (0, 100)]
    np.testing.assert_array_equal(found[0], found[1])
    items = load_data(str(tmp_path / "f.safetensors"), memory=0)
    assert items.val is not None
    joined = items.train.joined(items.val).take(torch.tensor([35, 1, 40])).joined(items.test)
    rows = [arrays["x_val"][5], arrays["x_train"][1], arrays["x_val"][10], *arrays["x_test"]]
    np.testing.assert_array_equal(next(joined.read([torch.arange(15)])).numpy(), rows)
    assert joined.ids == ["5", "1", "10", *map(str, range(12))]
