"""What one step of MR² and of compact logits costs, as ratios to cross-entropy in one run: CPU time of one thread.

python benchmarks/loss_step.py                 # print the table and write benchmarks/loss_step.json
python benchmarks/loss_step.py --network       # also: epochs of ResNet-32 on random images with either loss (minutes)
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import describe
from torch import Tensor

from classgap.losses import CompactLogitsLoss, CrossEntropyLoss, MR2Loss
from classgap.models import build_model

SHAPES = [(100, 128, 64), (1000, 512, 512), (1000, 512, 2048), (8142, 1024, 2048)]
LIMITS = {(100, 128, 64): 6.0, (1000, 512, 2048): 2.5, (8142, 1024, 2048): 2.0}


def loop_over_classes(
    logits: Tensor, target: Tensor, features: Tensor, state: dict[str, Tensor], lam: float = 0.1
) -> Tensor:
    """MR² with a Python loop over classes: the obvious way to write it, and the yardstick for doing without."""
    num_classes = logits.shape[1]
    pull = logits.new_zeros(())
    for k in range(num_classes):
        mine = features[target == k]
        if len(mine) == 0:
            continue
        with torch.no_grad():
            mean = mine.mean(0)
            state["mean"][k] = 0.9 * state["mean"][k] + 0.1 * mean.square().sum()
            state["spread"][k] = 0.9 * state["spread"][k] + 0.1 * (mine - mean).square().sum(1).mean()
        if len(mine) > 1:
            distances = (mine[:, None] - mine[None]).square().sum(2) - 2 * state["spread"].mean()
            others = ~torch.eye(len(mine), dtype=torch.bool)
            excess = distances[others].view(len(mine), -1)
            pull = pull + torch.logsumexp(F.pad(excess, (1, 0)), 1).sum()
    root = (state["mean"] + state["spread"]).pow(1 / 3)
    gamma = 2.0 * num_classes * root / root.sum()
    return F.cross_entropy(logits / gamma[target][:, None], target) + lam * pull / len(target)


def seconds(steps: dict[str, Callable[[], None]], budget: float) -> dict[str, float]:
    """Best time of each step; rounds alternate so that a busy moment of the machine hits all alike."""
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    repeats = {name: max(1, int(0.004 / _once(step))) for name, step in steps.items()}
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                step()
            best[name] = min(best[name], (time.process_time() - start) / repeats[name])
    return best


def _once(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def measure_losses(budget: float) -> list[dict[str, object]]:
    rows = []
    for classes, batch, width in SHAPES:
        torch.manual_seed(0)
        logits = torch.randn(batch, classes, requires_grad=True)
        features = torch.randn(batch, width, requires_grad=True)
        target = torch.randint(classes, (batch,))

        def step(
            loss: Callable[[], Tensor], logits: Tensor = logits, features: Tensor = features
        ) -> Callable[[], None]:
            def run() -> None:
                logits.grad = features.grad = None
                loss().backward()

            return run

        steps = {"cross-entropy": step(lambda z=logits, y=target: F.cross_entropy(z, y))}
        for criterion in (
            MR2Loss(classes),
            MR2Loss.published(classes),
            MR2Loss.released(classes),
            CompactLogitsLoss(classes),
        ):
            steps[criterion.name] = step(lambda c=criterion, z=logits, y=target, x=features: c(z, y, features=x))
        if width == 512:
            state = {"mean": torch.ones(classes), "spread": torch.ones(classes)}
            steps["loop over classes"] = step(
                lambda z=logits, y=target, x=features, s=state: loop_over_classes(z, y, x, s)
            )
        times = seconds(steps, budget)
        for name, value in times.items():
            rows.append(
                {
                    "classes": classes,
                    "batch": batch,
                    "features": width,
                    "loss": name,
                    "ms": round(value * 1e3, 3),
                    "ratio": round(value / times["cross-entropy"], 2),
                    "limit": LIMITS.get((classes, batch, width)) if name in ("mr2", "compact_logits") else None,
                }
            )
    return rows


def measure_network(steps: int = 12, rounds: int = 4) -> dict[str, float]:
    """Seconds for some steps of ResNet-32 at batch 128 with either loss, alternating; the ratio of the best rounds."""
    torch.manual_seed(0)
    model = build_model("resnet32", 100, (3, 32, 32)).to(memory_format=torch.channels_last)
    images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    target = torch.randint(100, (128,))
    taps: list[Tensor] = []
    head = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
    head.register_forward_pre_hook(lambda _, inputs: taps.append(inputs[0]))
    criteria = {"cross-entropy": CrossEntropyLoss(100), "mr2": MR2Loss(100)}
    best = dict.fromkeys(criteria, float("inf"))
    for _ in range(rounds):
        for name, criterion in criteria.items():
            start = time.process_time()
            for _ in range(steps):
                taps.clear()
                logits = model(images)
                criterion(logits, target, features=taps[-1]).backward()
                model.zero_grad()
            best[name] = min(best[name], time.process_time() - start)
    return {
        "cross-entropy_s": best["cross-entropy"],
        "mr2_s": best["mr2"],
        "ratio": best["mr2"] / best["cross-entropy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="store_true", help="also time ResNet-32 with either loss")
    parser.add_argument("--seconds", type=float, default=8.0, help="time spent on each shape")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure_losses(arguments.seconds)
    print(f"{'K':>6} {'B':>5} {'d':>5}  {'loss':<18} {'ms':>9} {'ratio':>7}  limit")
    for row in rows:
        print(
            f"{row['classes']:>6} {row['batch']:>5} {row['features']:>5}  {row['loss']:<18} {row['ms']:>9.3f} "
            f"{row['ratio']:>6.2f}×  {row['limit'] or ''}"
        )
    result: dict[str, object] = {"machine": describe(), "losses": rows}
    if arguments.network:
        result["resnet32"] = network = measure_network()
        print(f"ResNet-32 steps with MR² cost {network['ratio']:.3f}× those with cross-entropy")
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
