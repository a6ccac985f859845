"""Why training with MR² as published stops: features, their rank and the terms of the loss, step by step.

    python benchmarks/evidence/collapse.py              # settings that collapse.json lacks; about 25 minutes on one core
    python benchmarks/evidence/collapse.py --draw       # only the picture

Every setting is trained for a few hundred steps. Measured on training batches, as the loss sees them: mean norm of the features,
the share of features above 0, their effective rank (exponential of the entropy of the squared singular values of the centred
features), the ratio of the scatter between classes to all scatter, both terms of the loss, and the training accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch
from evidence_common import DATA

from classgap.batchstats import class_sums
from classgap.measure.render import plot
from classgap.training import TrainConfig, TrainProgress
from classgap.training.run import start

RESULTS = Path(__file__).with_suffix(".json")
IMAGE = Path(__file__).resolve().parents[2] / "docs" / "images" / "evidence_collapse.svg"
EVERY = 5  # steps between measurements
AVERAGED = 4  # measurements at the end that the table averages
SHOWN = ("cross-entropy", "published, λ=0.5", "published, λ=0.1", "published, λ=0.01", "released", "MR² (default)")
PANELS = ("norm of the features", "effective rank", "representation term", "training accuracy")


@dataclass(frozen=True)
class Setting:
    """A run of this study.

    Attributes:
        starts_at: Step from which λ is not 0.
    """

    task: str
    name: str
    settings: tuple[str, ...]
    steps: int
    starts_at: int = 0


def settings() -> list[Setting]:
    """All runs: the methods on two networks, then one thing changed at a time on the cheaper one."""
    methods = {
        "cross-entropy": (),
        **{f"published, λ={lam:g}": _published(lam) for lam in (0.5, 0.1, 0.01)},
        "released": ("method=mr2_released",),
        "MR² (default)": ("method=mr2",),
    }
    images = ("data=npz:cifar100_100per.npz", "data.augment=crop,flip", "model=resnet20", "precision=bf16-mixed")
    rows = [Setting("ResNet-20 on CIFAR-100", name, (*images, *method), 210) for name, method in methods.items()]
    mlp = ("data=npz:cifar100_effnetlite0_pca256.npz", "data.per_class=100", "data.augment=none", "optim.lr=0.05")
    wide = (*mlp, "model=mlp-512")
    rows += [Setting("hidden layer on embeddings", name, (*wide, *method), 420) for name, method in methods.items()]
    sweep = "hidden layer on embeddings, one change at a time"
    changes: dict[str, tuple[str, ...]] = {
        **{f"λ={lam:g}": _published(lam) for lam in (1.0, 0.2, 0.05, 0.02, 0.005, 0.002)},
        **{
            f"batch {size}, λ={lam:g}": (f"batch={size}", *_published(lam)) for size in (32, 512) for lam in (0.5, 0.01)
        },
        **{f"width {width}, λ=0.01": (f"model=mlp-{width}", *_published(0.01)) for width in (64, 2048)},
        "learning rate 0.005, λ=0.5": ("optim.lr=0.005", *_published(0.5)),
        "learning rate warm-up of 4 epochs, λ=0.5": ("schedule.warmup=4", *_published(0.5)),
        "unit features (cosine head), λ=0.5": ("model.head=cosine", *_published(0.5, p=3)),
        "logits not divided (c̄=1), λ=0.5": (*_published(0.5), "method.c_bar=1"),
        "T=10·d, λ=0.5": ("method=mr2", "method.lam=0.5", "method.c_bar=2"),
        "T=10·d, λ=0.1": ("method=mr2", "method.lam=0.1", "method.c_bar=2"),
        **{f"10 classes, λ={lam:g}": ("data=npz:TEN", *_published(lam)) for lam in (0.5, 0.1, 0.01)},
    }
    rows += [Setting(sweep, name, (*wide, *change), 420) for name, change in changes.items()]
    rows += [
        Setting(sweep, f"λ={lam:g} from step {step} on", (*wide, *_published(lam)), step + 420, starts_at=step)
        for step, lam in ((210, 0.5), (210, 0.1), (700, 0.5))
    ]
    return rows


def _published(lam: float, **params: float) -> tuple[str, ...]:
    return (
        "method=mr2_published",
        f"method.lam={lam:g}",
        *(f"method.{name}={value}" for name, value in params.items()),
    )


def ten_classes(folder: Path) -> Path:
    """The first ten classes of the embeddings, in a file."""
    target = folder / "ten.npz"
    with np.load(DATA / "cifar100_effnetlite0_pca256.npz") as source:
        arrays = {name: source[name] for name in source.files}
    for split in ("train", "test"):
        rows = arrays[f"y_{split}"] < 10
        arrays |= {f"{kind}_{split}": arrays[f"{kind}_{split}"][rows] for kind in "xy"}
    np.savez(target, **{**arrays, "class_names": arrays["class_names"][:10]})
    return target


class EnoughSteps(Exception):
    """The last step that is wanted is done."""


class Probe:
    """Looks at the features of every training batch, and ends the run after the last step that is wanted."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        epochs = 1 + setting.steps // 7  # enough for every batch size and number of classes here
        changes = [text.replace("npz:TEN", f"npz:{ten_classes(folder.parent)}") for text in setting.settings]
        config = TrainConfig().override(["batch=128", "epochs=30", *changes])
        self.setting, self.records = setting, list[dict[str, float]]()
        self.trainer = start(config.override([f"epochs={max(epochs, config.epochs)}"]), folder)
        self.features = self.labels = self.hits = torch.zeros(0)
        self.trainer.model.register_forward_hook(lambda module, inputs, outputs: self._saw(outputs))
        self.trainer.criterion.register_forward_pre_hook(lambda module, inputs: setattr(self, "labels", inputs[1]))
        self.lam = getattr(self.trainer.criterion, "lam", 0.0)
        if setting.starts_at:
            self.trainer.criterion.lam = 0.0
        self.trainer.watch = self.after_step
        self.step = 0

    def _saw(self, outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
        if self.trainer.model.training:
            self.logits, self.features = outputs[0].detach().float(), outputs[1].detach().float()

    def after_step(self, position: TrainProgress) -> None:
        if position.note or position.record is not None:
            return
        if (
            self.step % EVERY == 0 and len(self.features) == self.trainer.config.batch
        ):  # the last one of an epoch is smaller
            self.records.append({"step": self.step, **self.measured()})
        self.step += 1
        if self.step == self.setting.starts_at:
            self.trainer.criterion.lam = self.lam
        if self.step >= self.setting.steps:
            raise EnoughSteps

    def measured(self) -> dict[str, float]:
        phi, labels = self.features, self.labels
        centred = phi - phi.mean(0)
        share = torch.linalg.svdvals(centred).square()
        share = share / share.sum().clamp_min(1e-30)
        sums, counts = class_sums(phi, labels, int(labels.max()) + 1)
        means = sums / counts.clamp_min(1)[:, None]
        terms = self.trainer.criterion.last
        rounded = {
            "norm": phi.norm(dim=1).mean(),
            "active": (phi > 0).float().mean(),
            "rank": torch.exp(-(share * share.clamp_min(1e-30).log()).sum()),
            "between": (means[labels] - phi.mean(0)).square().sum() / centred.square().sum().clamp_min(1e-30),
            "accuracy": (self.logits.argmax(1) == labels).float().mean(),
            "logit_term": terms.get("logit", torch.nn.functional.cross_entropy(self.logits, labels)),
            "rep_term": terms.get("rep", torch.zeros(())),
        }
        return {name: float(f"{float(value):.4g}") for name, value in rounded.items()}


def run(setting: Setting) -> list[dict[str, float]]:
    folder = Path(tempfile.mkdtemp())
    try:
        probe = Probe(setting, folder / "run")
        try:
            probe.trainer.run()
        except EnoughSteps:
            probe.trainer.release()
        return probe.records
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_of(records: list[dict[str, float]]) -> dict[str, float]:
    """Mean of the last measurements."""
    return {name: float(np.mean([row[name] for row in records[-AVERAGED:]])) for name in records[-1] if name != "step"}


def draw(found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Norm, rank, representation term and training accuracy over the steps, for the methods of the paper."""
    measures = {"norm": PANELS[0], "rank": PANELS[1], "rep_term": PANELS[2], "accuracy": PANELS[3]}
    tasks = [task for task in found if task in ("ResNet-20 on CIFAR-100", "hidden layer on embeddings")]
    rows = [
        {"task": task, "method": name, "step": row["step"], "measure": title, "value": row[key]}
        for task in tasks
        for name in SHOWN
        for row in found[task].get(name, [])
        for key, title in measures.items()
        if not (key == "rep_term" and row[key] <= 0) and not (key == "norm" and row[key] <= 0)
    ]
    colour = alt.Color(
        "method:N", sort=list(SHOWN), title=None, legend=alt.Legend(orient="bottom", columns=6, symbolStrokeWidth=3)
    )

    def panel(task: str, measure: str) -> alt.Chart:
        part = [row for row in rows if row["task"] == task and row["measure"] == measure]
        log = measure in PANELS[:3]
        y = alt.Y("value:Q", title=measure, scale=alt.Scale(type="log") if log else alt.Scale(domainMin=0))
        chart = alt.Chart(alt.Data(values=part), width=190, height=150, title=task if measure == PANELS[0] else "")
        return chart.mark_line(strokeWidth=1.5).encode(x=alt.X("step:Q", title="step"), y=y, color=colour)

    lines = [alt.hconcat(*(panel(task, measure) for measure in PANELS)) for task in tasks]
    plot.save(alt.vconcat(*lines), IMAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="only draw the picture from collapse.json")
    parser.add_argument("--task", default="", help="only tasks whose name starts so")
    arguments = parser.parse_args()
    os.environ.setdefault("CLASSGAP_DATA", str(DATA))
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.draw:
        for setting in settings():
            if setting.name in found.setdefault(setting.task, {}) or not setting.task.startswith(arguments.task):
                continue
            records = found[setting.task][setting.name] = run(setting)
            RESULTS.write_text(json.dumps(found))
            print(setting.task, "|", setting.name, {k: round(v, 3) for k, v in end_of(records).items()}, flush=True)
    draw(found)


if __name__ == "__main__":
    main()
