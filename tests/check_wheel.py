"""Install a wheel in a clean environment and use it there, first without torch, then with it. Run by ``make wheel``.

    python tests/check_wheel.py dist --torch link

The new environment is made by ``venv`` in a temporary folder; pip installs the wheel and its dependencies from the package
index. Torch takes gigabytes, so there are two ways to add it:

``--torch install``  pip installs the extra ``[torch]``, as a user does.
``--torch link``     the distributions that ``[torch]`` requires, directly or indirectly, are linked from the environment that
                     runs this script. Nothing else of that environment is visible, so a dependency that is missing in the
                     metadata of the wheel is missing here too. What is not tested is that pip can install these
                     distributions; the workflow on GitHub uses ``install``.
``--torch none``     stop after the half without torch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WITHOUT_TORCH = """
import importlib.util, pathlib, sys
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
import classgap

assert importlib.util.find_spec("torch") is None, "torch is installed: this environment does not test the half without it"
assert pathlib.Path(classgap.__file__).is_relative_to(sys.prefix), classgap.__file__
assert classgap.__version__ == sys.argv[1], (classgap.__version__, sys.argv[1])
x, y = load_digits(return_X_y=True)
model = LogisticRegression(C=0.01, max_iter=1000).fit(x[:600] / 16, y[:600])
scores = x[600:] / 16 @ model.coef_.T + model.intercept_
with open("predictions.csv", "w") as file:
    file.write("label,prediction\\n")
    file.writelines(f"digit {a},digit {b}\\n" for a, b in zip(y[600:], scores.argmax(1), strict=True))
np.savez("logits.npz", scores=scores, y_true=y[600:])
report = classgap.audit(y[600:], scores=scores, features=x[600:] / 16, head=(model.coef_, model.intercept_))
report.to_html("page.html")
assert pathlib.Path("page.html").stat().st_size > 100_000
print(report)
"""

WITH_TORCH = """
import pathlib, sys
import torch
import classgap
from classgap.losses import MR2Loss

assert pathlib.Path(classgap.__file__).is_relative_to(sys.prefix), classgap.__file__
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
criterion = MR2Loss(4)
features, target = torch.randn(32, 8), torch.arange(32) % 4
optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
losses = []
for _ in range(20):
    loss = criterion(model(features), target, features=features)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in 20 steps, torch {torch.__version__}")
"""


class Environment:
    """A virtual environment and an empty working folder; commands see neither PYTHONPATH nor the source tree."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "venv", folder / "work"
        self.work.mkdir()
        venv.create(self.home, with_pip=True)
        # pip's own index settings stay; everything that could make another classgap visible goes.
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}

    @property
    def bin(self) -> Path:
        return self.home / ("Scripts" if os.name == "nt" else "bin")

    @property
    def packages(self) -> Path:
        return next(self.home.glob("lib/python*/site-packages"))

    def run(self, title: str, *command: str, fails: bool = False) -> str:
        """Run a program of the environment; stop everything unless it ends as wanted."""
        start = time.perf_counter()
        done = subprocess.run(
            [str(self.bin / command[0]) + (".exe" if os.name == "nt" else ""), *command[1:]],
            cwd=self.work,
            env=self.variables,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if (done.returncode != 0) != fails:
            sys.exit(f"{title}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        print(f"  ok  {title} ({time.perf_counter() - start:.1f} s)", flush=True)
        return done.stdout + done.stderr

    def has(self, *names: str) -> None:
        for name in names:
            if not (self.work / name).is_file():
                sys.exit(f"{name} was not written")


def required(wheel_metadata: importlib.metadata.PackageMetadata, extra: str) -> set[str]:
    """Names of every distribution that ``classgap[extra]`` needs here, read from the metadata of what is installed."""
    found: set[str] = set()
    queue = [(text, extra) for text in wheel_metadata.get_all("Requires-Dist") or []]
    seen = set(queue)
    while queue:
        text, wanted = queue.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": wanted}):
            continue
        name = canonicalize_name(requirement.name)
        installed = importlib.metadata.distribution(name)
        if not requirement.specifier.contains(installed.version, prereleases=True):
            sys.exit(f"{name} {installed.version} is here, but {text} is required")
        found.add(name)
        new = {(line, e) for line in installed.requires or [] for e in ("", *requirement.extras)} - seen
        seen |= new
        queue += new
    return found


def link(environment: Environment, wheel: Path) -> list[str]:
    """Make what ``[torch]`` requires visible in the environment, and nothing else; returns the names linked."""
    metadata = next(d for d in importlib.metadata.distributions(path=[str(wheel)])).metadata
    present = {
        canonicalize_name(d.metadata["Name"])
        for d in importlib.metadata.distributions(path=[str(environment.packages)])
    }
    linked = sorted(required(metadata, "torch") - present)
    for name in linked:
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            target = environment.packages / top
            if not target.exists():
                target.symlink_to(distribution.locate_file(top).resolve())
    return linked


def check_without_torch(environment: Environment, version: str) -> None:
    print("without torch")
    run = environment.run
    print("     ", run("import, audit, page", "python", "-W", "error", "-c", WITHOUT_TORCH, version).strip())
    run("classgap audit of a CSV", "classgap", "audit", "predictions.csv", "--out", "report")
    environment.has("report/report.html", "report/report.json", "report/report.md")
    gate = run(
        "classgap audit as a gate", "classgap", "audit", "predictions.csv", "--fail-if", "overall > 0.1", fails=True
    )
    if "gate" not in gate:
        sys.exit(f"the gate gave no reason:\n{gate}")
    run("classgap fix of an NPZ", "classgap", "fix", "logits.npz", "--out", "fixed")
    environment.has("fixed/methods.md")
    sentence = run("classgap train asks for torch", "classgap", "train", fails=True)
    if "pip install 'classgap[torch]'" not in sentence or "Traceback" in sentence:
        sys.exit(f"classgap train without torch should say how to install it, it said:\n{sentence}")


def check_with_torch(environment: Environment) -> None:
    print("with torch")
    run = environment.run
    print("     ", run("twenty steps with MR²", "python", "-W", "error", "-c", WITH_TORCH).strip())
    settings = [f"--set={text}" for text in ("method=mr2", "model=mlp-32", "epochs=3", "data.per_class=60")]
    run("classgap train on digits", "classgap", "train", *settings, "--out", "run", "--accelerator", "cpu")
    run("classgap audit of the run", "classgap", "audit", "run/predictions_test.npz", "--fail-if", "overall < 0.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel, or the folder that holds it")
    parser.add_argument("--torch", choices=("install", "link", "none"), default="install")
    arguments = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):  # what the programs print may not fit the encoding of a log on Windows
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    wheel = arguments.wheel.resolve()
    if wheel.is_dir():
        (wheel,) = wheel.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="classgap-wheel-") as folder:
        environment = Environment(Path(folder))
        environment.run("remove setuptools", "python", "-m", "pip", "uninstall", "--yes", "--quiet", "setuptools")
        environment.run("install the wheel", "python", "-m", "pip", "install", "--quiet", str(wheel))
        environment.run("dependencies agree", "python", "-m", "pip", "check")
        check_without_torch(environment, wheel.name.split("-")[1])
        if arguments.torch == "none":
            return
        if arguments.torch == "link":
            print("  linked:", ", ".join(link(environment, wheel)))
        else:
            environment.run("install [torch]", "python", "-m", "pip", "install", "--quiet", f"{wheel}[torch]")
        environment.run("dependencies agree", "python", "-m", "pip", "check")
        check_with_torch(environment)


if __name__ == "__main__":
    main()
