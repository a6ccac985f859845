"""Methods in a file of the user: found by name here and in worker processes, from plugins, recipes and suites."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import classgap
from classgap import registry
from classgap.checks import InputError
from classgap.cli.app import app

pytest.importorskip("torch")

from classgap.testing import check_loss
from classgap.training.recipes import load_recipe


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test declares, and where from, is forgotten afterwards; files are in a folder of their own."""
    for kind in ("loss", "posthoc"):
        registry._load(kind)
    for name in ("_METHODS", "_PLUGINS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(registry.PLUGINS, "")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def new_method(name: str) -> Path:
    done = CliRunner().invoke(app, ["new-method", name])
    assert done.exit_code == 0, done.output
    assert f"--plugin {name}.py" in done.output
    return Path(f"{name}.py")


def test_the_template_passes_the_checks_of_every_loss() -> None:
    registry.load_plugin(new_method("fresh"))
    check_loss("fresh")
    assert registry.get("loss", "fresh").cls.__name__ == "FreshLoss"
    assert sys.modules["fresh"].FreshLoss is registry.get("loss", "fresh").cls  # what `import fresh` gives


def test_the_checks_notice_a_broken_loss() -> None:
    """A gradient that is not that of the value: the entropy is detached."""
    file = new_method("unsound")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("dim=1)\n        return", "dim=1).detach()\n        return"), encoding="utf-8")
    registry.load_plugin(file)
    with pytest.raises(RuntimeError, match="Jacobian mismatch") as caught:
        check_loss("unsound")
    assert "unsound fails check_gradients_are_those_of_the_value" in caught.value.__notes__[0]


def test_verbs_know_the_methods_of_a_plugin() -> None:
    new_method("mine")
    done = CliRunner().invoke(app, ["methods", "mine", "--plugin", "mine.py"])
    assert done.exit_code == 0, done.output
    assert "Cross-entropy minus a multiple" in done.output
    done = CliRunner().invoke(app, ["train", "--set=method=mine", "--quick", "--accelerator=cpu", "--plugin=mine.py"])
    assert done.exit_code == 0, done.output
    assert "digits · mlp · mine" in done.output


SUITE = """
import mine
from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig

def suite():
    base = TrainConfig().override(["data=digits", "data.per_class=10", "model=mlp-16", "epochs=1"])
    return Suite("own", (Task("digits", base),), (Variant("erm"), Variant("mine", "mine", {"beta": 0.2})), seeds=(0,))
"""


def test_bench_workers_know_the_methods_of_a_suite() -> None:
    new_method("mine")
    Path("own.py").write_text(SUITE)
    report = classgap.bench("own.py", only=["digits/mine"], out="jobs")
    assert not report.failed
    assert [report.results[job.key].variant for job in report.jobs] == ["mine"]


def test_a_recipe_finds_its_neighbours_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_method("beside")
    Path("own_recipe.py").write_text(
        "def config(quick=False):\n"
        "    import beside\n"
        "    from classgap.training import TrainConfig\n"
        "    return TrainConfig().override(['method=beside'])\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_recipe(tmp_path / "own_recipe.py").method.name == "beside"
    assert registry.get("loss", "beside").space["beta"].default == 0.1


def test_a_file_is_run_once_however_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    file = new_method("once")
    file.write_text(file.read_text(encoding="utf-8") + "\nprint('ran')\n", encoding="utf-8")
    registry.load_plugin("once.py")
    registry.load_plugin(file.resolve())
    registry.get("loss", "once")
    assert capsys.readouterr().out == "ran\n"
    assert os.environ[registry.PLUGINS] == str(file.resolve())


def test_what_cannot_be_loaded_is_one_sentence() -> None:
    Path("faulty.py").write_text("import classgap\n\n1 / 0\n")
    with pytest.raises(InputError, match=r"plugin .*faulty.py failed in line 3 \(1 / 0\): ZeroDivisionError"):
        registry.load_plugin("faulty.py")
    os.environ[registry.PLUGINS] = ""
    for wrong in ("gone.py", "faulty.txt"):
        with pytest.raises(InputError, match="must be an existing Python file"):
            registry.load_plugin(wrong)
    with pytest.raises(InputError, match=r"unknown loss 'nowhere'.* --plugin FILE"):
        registry.get("loss", "nowhere")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["My-Loss"], "lower-case"), (["focal"], "already"), (["ok", "--out=ok.txt"], "ending in .py")],
)
def test_new_method_refuses(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["new-method", *words])
    assert isinstance(done.exception, InputError)
    assert sentence in str(done.exception)
