"""Methods of other installed packages: found by name, listed, and harmless when they are broken."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from classgap import registry
from classgap.checks import InputError

pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_method"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of ``examples/own_method``, built and installed by pip into a folder of its own."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools, with which pip builds the example package without a network")
    source = tmp_path_factory.mktemp("source") / "own_method"  # setuptools writes beside its sources
    shutil.copytree(EXAMPLE, source)
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def classgap(*words: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "classgap", *words],
        env=os.environ | {"PYTHONPATH": found},
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def test_train_finds_a_method_of_an_installed_package(installed: Path, tmp_path: Path) -> None:
    settings = ("method=confidence_penalty", "method.beta=0.2", "model=mlp-32", "data.per_class=60", "epochs=2")
    sets = [f"--set={text}" for text in settings]
    done = classgap("train", *sets, "--out", "run", "--accelerator", "cpu", path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["method"]["name"] == "confidence_penalty"
    assert (tmp_path / "run" / "predictions_test.npz").exists()


def test_methods_lists_and_explains_it(installed: Path, tmp_path: Path) -> None:
    done = classgap("methods", "confidence_penalty", path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "entropy of the prediction" in done.stdout
    assert "Pitfalls" in done.stdout


def test_without_the_package_the_name_is_unknown() -> None:
    with pytest.raises(InputError, match="unknown loss 'confidence_penalty'"):
        registry.get("loss", "confidence_penalty")


# Below, packages are made by hand: a module and the metadata that pip would have written.


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path; what tests declare from there is forgotten afterwards."""
    for kind in ("posthoc", "loss", "sampler"):
        registry._load(kind)  # what declares itself on import does so once, so it must not happen in the copy
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    return tmp_path


def offer(folder: Path, module: str, code: str, *entries: str, kind: str = "posthoc") -> None:
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[classgap.methods.{kind}]\n" + "".join(f"{e}\n" for e in entries))


DECLARED = '''
from classgap.registry import method
print("imported")

@method("{name}", kind="posthoc", family="test", paper="none")
class {cls}:
    """A method for this test."""
'''


def test_a_built_in_method_is_found_without_looking_at_packages(
    packages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(packages, "plug_lazy", DECLARED.format(name="lazy_one", cls="Lazy"), "lazy_one = plug_lazy:Lazy")
    assert registry.get("posthoc", "marc").name == "marc"
    assert registry.get("loss", "cross_entropy").name == "cross_entropy"
    registry.methods("sampler")
    assert "imported" not in capsys.readouterr().out
    assert registry.get("posthoc", "lazy_one").cls.__name__ == "Lazy"
    assert "lazy_one" in {m.name for m in registry.methods("posthoc")}
    assert capsys.readouterr().out == "imported\n"


def test_a_package_that_cannot_be_imported_is_named(packages: Path) -> None:
    offer(packages, "plug_broken", "import no_such_module_anywhere", "broken_one = plug_broken:Broken")
    with pytest.raises(
        InputError, match=r"posthoc 'broken_one' of plug_broken .* cannot be loaded: ModuleNotFoundError"
    ):
        registry.get("posthoc", "broken_one")
    with pytest.warns(UserWarning, match="'broken_one' of plug_broken"):
        names = {m.name for m in registry.methods("posthoc")}
    assert "marc" in names
    assert "broken_one" not in names


def test_an_entry_point_without_a_declaration_says_what_to_do(packages: Path) -> None:
    offer(packages, "plug_plain", "class Plain: ...", "plain_one = plug_plain:Plain")
    with pytest.raises(InputError, match=r"not declared there; decorate it with @method\('plain_one', kind='posthoc'"):
        registry.get("posthoc", "plain_one")


def test_a_package_cannot_replace_a_built_in_method(packages: Path) -> None:
    offer(packages, "plug_thief", DECLARED.format(name="marc", cls="MARC"), "marc = plug_thief:MARC")
    before = registry.get("posthoc", "marc").cls
    with pytest.warns(
        UserWarning, match=r"'marc' of plug_thief .* is not used: classgap\.posthoc\.estimators\.marc\.MARC"
    ):
        registry.methods("posthoc")
    assert registry.get("posthoc", "marc").cls is before
    with pytest.raises(InputError, match="declared twice"):
        importlib.import_module("plug_thief")  # not even when it is imported, and its class has the same name


def test_losses_of_packages_stay_away_from_the_half_without_torch(packages: Path) -> None:
    offer(packages, "plug_loss", "import torch", "some_loss = plug_loss:Some", kind="loss")
    code = "import sys; from classgap import registry; registry.methods('posthoc'); print('torch' in sys.modules)"
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
