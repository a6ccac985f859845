"""How often multi-label verdicts and intervals are wrong, by simulation; docs/scores.md has such figures.

    python benchmarks/multi_label.py            # some minutes of processor time; writes benchmarks/multi_label.json

Samples have a common difficulty, so that the labels of one sample are right or wrong together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap import MultiLabelPredictions, compare_labels, fix_labels
from classgap.measure.statistics.f1 import LabelCounts

RARE = np.array([0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005] * 3)
SETTINGS = {  # prevalences of the labels, samples, rounds
    "10 labels of 30 %, 100 samples": (np.full(10, 0.3), 100, 400),
    "10 labels of 30 %, 500 samples": (np.full(10, 0.3), 500, 400),
    "10 labels of 30 %, 2000 samples": (np.full(10, 0.3), 2000, 200),
    "21 labels of 50 to 0.5 %, 500 samples": (RARE, 500, 400),
    "21 labels of 50 to 0.5 %, 2000 samples": (RARE, 2000, 200),
    "3 labels of 20 %, 300 samples": (np.full(3, 0.2), 300, 400),
    "80 labels of 5 %, 400 samples": (np.full(80, 0.05), 400, 400),
}
Draw = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


def draw(rng: np.random.Generator, prevalence: NDArray[Any], samples: int, shift: float) -> Draw:
    """True labels, and the predictions of two models; the second is shifted."""
    true = rng.random((samples, len(prevalence))) < prevalence
    base = 3 * true - 1.5 - 0.8 * rng.normal(size=(samples, 1)) + rng.normal(size=true.shape)
    before, after = (base + s + 0.7 * rng.normal(size=true.shape) > 0 for s in (0.0, shift))
    return true, before, after


def compare_rates(prevalence: NDArray[Any], samples: int, rounds: int) -> dict[str, float]:
    """Equal models: claims of the verdict and small p-values; different models: coverage of the intervals."""
    rng = np.random.default_rng(0)
    claims = small = tested = inside = known = macro = 0
    true, before, after = draw(rng, prevalence, 400_000, 0.5)
    truth = LabelCounts.gather(true, after).f1 - LabelCounts.gather(true, before).f1
    for _ in range(rounds):
        for shift in (0.0, 0.5):
            true, before, after = draw(rng, prevalence, samples, shift)
            found = compare_labels(*(MultiLabelPredictions.from_arrays(true, side) for side in (before, after)))
            rows = found.per_label[~np.isnan(found.per_label["delta"])]
            if shift == 0:
                claims += found.verdict.kind != "noise"
                small += int((rows["p_value"] < 0.05).sum())
                tested += len(rows)
                continue
            expected = truth[rows["name"].astype(int)]
            inside += int(((rows["low"] <= expected) & (expected <= rows["high"])).sum())
            known += len(rows)
            change = found.metrics["macro_f1"].delta
            macro += change.low <= expected.mean() <= change.high
    return {"false claims": claims / rounds, "p < 0.05": small / tested, "label interval covers": inside / known,
            "macro interval covers": macro / rounds}  # fmt: skip


def fix_claims(labels: int, samples: int, rounds: int) -> float:
    """Share of improvements that ``fix_labels`` claims if the present threshold is the best possible one."""
    rng = np.random.default_rng(1)
    many = rng.beta(0.5, 2, size=400_000)
    grid = np.linspace(0.05, 0.6, 111)
    f1 = [2 * (many * (many >= limit)).sum() / (many.sum() + (many >= limit).sum()) for limit in grid]
    best, claims = float(grid[int(np.argmax(f1))]), 0
    for seed in range(rounds):
        chance = rng.beta(0.5, 2, size=(samples, labels))
        true = rng.random(chance.shape) < chance
        claims += fix_labels(true, scores=chance, threshold=best, seed=seed, folds=3).helps
    return claims / rounds


def main() -> None:
    found: dict[str, Any] = {"compare": {}, "fix": {}}
    for title, setting in SETTINGS.items():
        found["compare"][title] = compare_rates(*setting)
        print(title, {key: round(value, 3) for key, value in found["compare"][title].items()}, flush=True)
    for labels, samples, rounds in ((8, 300, 200), (8, 900, 200), (30, 900, 60)):
        title = f"{labels} labels, {samples} samples, best threshold given"
        found["fix"][title] = fix_claims(labels, samples, rounds)
        print(title, found["fix"][title], flush=True)
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
