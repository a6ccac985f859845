"""Malformed input of training and benchmarks: data, settings, recipes, suites and results files. One sentence, exit code 2."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classgap import registry
from classgap.checks import InputError
from classgap.data.array_sets import npz_source
from classgap.scripts import explained, load_script
from classgap.suites.records import read_records
from classgap.suites.suite import parse_seeds
from classgap.training import TrainConfig
from command_line import call

DATA: dict[str, Any] = {
    "x_train": np.ones((40, 4), np.float32), "y_train": np.arange(40) % 2,
    "x_test": np.ones((20, 4), np.float32), "y_test": np.arange(20) % 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"x_train": np.full((40, 4), "a"), "x_test": np.full((20, 4), "a")},
        {"x_train": np.zeros((40, 4), complex)},
        {"x_train": np.zeros((40, 4), "M8[s]")},
        {"x_train": np.zeros((40, 0)), "x_test": np.zeros((20, 0))},
        {"x_train": np.zeros((40, 0, 0), np.uint8), "x_test": np.zeros((20, 0, 0), np.uint8)},
        {"x_train": np.full((40, 4), 1e300)},
        {"y_train": np.full(40, 10**12)},
        {"y_train": np.full(40, 2**64 - 1, np.uint64)},
        {"y_train": np.full(40, "a")},
        {"class_names": np.array("ab")},
        {"class_names": np.array([["a"], ["b"]])},
        {"class_names": np.array(["a", "a"])},
        {"class_names": np.array(["a"])},
    ],
)
def test_malformed_training_archives_are_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", **DATA)
    assert npz_source("good", tmp_path / "good.npz").class_names == ("0", "1")
    np.savez(tmp_path / "bad.npz", **(DATA | changed))
    with pytest.raises(InputError):
        npz_source("bad", tmp_path / "bad.npz")


def test_class_names_as_bytes_are_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **DATA, class_names=np.array([b"cat", b"dog"]))
    assert npz_source("a", tmp_path / "a.npz").class_names == ("cat", "dog")


@pytest.mark.parametrize(
    "setting",
    ["seed=-1", f"seed={2**32}", "seed=" + "9" * 5000, "epochs=" + "9" * 5000, "optim.lr=nan"],
)
def test_numbers_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(InputError) as error:
        TrainConfig().override([setting])
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("method", "parameters", "words"),
    [
        ("cross_entropy", {"self": 1}, "unknown parameter"),
        ("drw", {"base": 42, "class_counts": [1, 2, 3]}, "must be text"),
        ("ncl", {"experts": 2.5, "class_counts": [1, 2, 3]}, "experts must be a whole number"),
        ("cross_entropy", {"weight": "abc"}, "weight must be 3 numbers"),
        ("logit_adjusted", {"class_counts": "abc"}, "class_counts must be 3 numbers"),
        ("logit_adjusted", {"class_counts": [1, [2], 3]}, "class_counts must be 3 numbers"),
    ],
)
def test_malformed_parameters_of_losses_are_refused(method: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        registry.get("loss", method).build(**({"num_classes": 3} | parameters))


def test_lists_and_arrays_instead_of_tensors_are_refused() -> None:
    """``AttributeError: 'list' object has no attribute 'dim'``."""
    import torch

    criterion = registry.get("loss", "mr2").build(num_classes=3)
    logits, target, features = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), torch.zeros(4, 5)
    for wrong in ([[0.0] * 3] * 4, np.zeros((4, 3)), "abc", 3):
        with pytest.raises(InputError, match="logits must be a tensor"):
            criterion(wrong, target, features=features)
        with pytest.raises(InputError, match="target must be a tensor"):
            criterion(logits, wrong, features=features)
        with pytest.raises(InputError, match="features must be a tensor"):
            criterion(logits, target, features=wrong)


@pytest.mark.parametrize("text", ["0:99999999999999", "a", "5:0", "-1", "", "0:", "9" * 5000, "1.5", str(2**32)])
def test_malformed_seeds_are_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_seeds(text)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"x = 1\nraise KeyError('oops')\n", r"line 2 \(raise KeyError\('oops'\)\): KeyError: 'oops'"),
        (b"def config(:\n", r"line 1 \(def config\(:\): SyntaxError"),
        (b"import nothing_like_this\n", r"line 1 .*No module named 'nothing_like_this'"),
        (b"\n\n1 / 0\n", "line 3 .*ZeroDivisionError"),
        (b"import sys\nsys.exit(0)\n", "line 2 .*SystemExit"),
        (b"\0\xff", "SyntaxError"),
        (b"x = '\xe9'\n", "utf-8"),
    ],
)
def test_an_error_in_a_file_of_the_user_names_its_line(text: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(text)
    with pytest.raises(InputError, match=f"recipe .*mine.py failed.*{words}"):
        load_script(tmp_path / "mine.py", "recipe", "mine_for_this_test")


def test_an_error_in_a_function_of_the_user_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def config(quick=False):\n    return {}['learning rate']\n")
    module = load_script(path, "recipe", "mine_for_this_test")
    with pytest.raises(InputError, match=r"line 2 \(return .*KeyError"), explained(path, "recipe"):
        module.config()
    assert "line 2" in call("train", path).sentence
    path.write_text(
        "from classgap.training import TrainConfig\ndef config(quick=False):\n    return TrainConfig(epochs=-2)\n"
    )
    assert "line 3 (return TrainConfig(epochs=-2)): epochs must be" in call("train", path).sentence


def test_a_run_says_which_settings_have_no_effect(tmp_path: Path) -> None:
    unused = {
        "optim.betas": "0.5,0.6",
        "data.view_augment": "crop",
        "model.freeze_norms": "true",
        "data.test_fraction": "0.4",
    }
    words = [word for name, value in unused.items() for word in ("--set", f"{name}={value}")]
    small = ["--set", "epochs=1", "--set", "data.per_class=3", "--set", "model=mlp-4"]
    done = call("train", *small, *words, "--out", tmp_path / "run")
    assert done.code == 0
    for name in unused:
        assert f"{name} has no effect" in " ".join((done.out + done.err).split())
    assert "no effect" not in call("train", *small, "--out", tmp_path / "plain").out


@pytest.mark.parametrize(
    "content",
    [b"\0\xff\xfe\x80", b"[1]\n[2]\n", b"3\n4\n", b"[" * 100_000 + b"\n{}\n", b"9" * 5000 + b"\n{}\n", b"x\ny\n"],
)
def test_malformed_results_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.jsonl"):
        read_records(tmp_path / "a.jsonl")
    for archive in (lzma.compress(content), lzma.compress(content)[:-9]):
        (tmp_path / "b.jsonl.xz").write_bytes(archive)
        with pytest.raises(InputError, match=r"b\.jsonl\.xz"):
            read_records(tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("settings", "words"),
    [(["teacher=/nope"], "does not learn from a teacher"), (["method.num_classes=3"], "cannot be set")],
)
def test_settings_that_would_have_no_effect_are_refused(settings: list[str], words: str, tmp_path: Path) -> None:
    chosen = [part for setting in ("epochs=1", "data.per_class=12", *settings) for part in ("--set", setting)]
    assert words in call("train", *chosen, "--out", tmp_path / "run").sentence


def test_more_devices_than_a_machine_has() -> None:
    """The number of devices became the length of a list."""
    assert "devices must be at most 9,999" in call("train", "--devices", "9" * 20).sentence


@pytest.mark.parametrize("odd", ["\x1b[31m", "../..", "[/x]"])
def test_the_folder_of_a_run_has_a_plain_name(odd: str) -> None:
    slug = TrainConfig().override([f"method={odd}", f"model={odd}"]).slug
    assert slug.isprintable()
    assert not {"/", "["} & set(slug)


def test_numbers_beyond_64_bits_are_refused() -> None:
    """torch cannot multiply a tensor with them."""
    with pytest.raises(InputError, match="lam must be a finite number"):
        registry.get("loss", "mr2").build(num_classes=3, lam=10**30)
