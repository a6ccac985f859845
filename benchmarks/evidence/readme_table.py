"""Write README's table of results from the committed runs.

python benchmarks/evidence/readme_table.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from page import EQUAL, MORE, Found, committed_results, turned_to

from classgap.measure import Comparison
from classgap.measure.render.plain import points

README = Path(__file__).resolve().parents[2] / "README.md"
PROBE, HIDDEN = "linear probe on embeddings", "hidden layer on embeddings"
OURS = "`CompactLogitsLoss` (ours)"
LONGER = "cross-entropy, three times the epochs (cost of training × 3)"
# Setting, method, and the committed result: suite:task/variant. "=" in front: the reference is trained with as many samples.
ROWS = (
    (f"{HIDDEN}, 100 samples per class", "`MR2Loss`", "embeddings:mlp/MR²"),
    ("", OURS, "embeddings:mlp/compact logits"),
    (
        "",
        "ours, then gap dial and refit, 150 samples per class on both sides",
        "=embeddings:mlp/compact logits + gap dial, refit",
    ),
    (f"{PROBE}, 100 samples per class", "`MR2Loss`", "embeddings:linear/MR²"),
    ("", OURS, "embeddings:linear/compact logits"),
    (
        f"{PROBE}, long tail, 400 to 4 samples per class",
        "`CompactLogitsLoss(class_counts=…)` (ours)",
        "embeddings:linear, tail 100/compact logits",
    ),
    (
        "fine-tuning EfficientNet-Lite0 for 3 epochs, CIFAR-100 at 64 pixels",
        "`MR2Loss`",
        "finetune:EfficientNet-Lite0/MR²",
    ),
    ("", "`MR2Loss(fit_power=0)`, the constant weight of the paper", "finetune:EfficientNet-Lite0/MR², constant λ"),
    ("", OURS, "finetune:EfficientNet-Lite0/compact logits"),
    (
        "",
        "cross-entropy, ensemble of 3 with mirrored views (cost of training × 3, of prediction × 6)",
        "finetune:EfficientNet-Lite0/cross_entropy, ensemble of 3, flipped views",
    ),
    ("", LONGER, "finetune:EfficientNet-Lite0/cross_entropy, 3 × the epochs"),
    ("the same for 9 epochs on both sides", "`MR2Loss`", "finetune:EfficientNet-Lite0, 9 epochs/MR²"),
    ("", OURS, "finetune:EfficientNet-Lite0, 9 epochs/compact logits"),
    (
        "",
        "ours, then mirrored views and a gap dial of strength 1 (cost of prediction × 2)",
        "finetune:EfficientNet-Lite0, 9 epochs/compact logits, flipped views + gap dial",
    ),
    ("CIFAR-10 images, 500 per class, small network", "`MR2Loss(fit_power=0)`", "cifar10:wrn-10-1/MR², constant λ"),
    ("", "cross-entropy again, other seeds", "cifar10:wrn-10-1/cross_entropy, re-run"),
    ("", LONGER, "remedies_images:wrn-10-1/cross_entropy, 3 × the epochs"),
    ("CIFAR-100 images, 100 per class, small network", "`MR2Loss(fit_power=0)`", "cifar100:wrn-10-1/MR², constant λ"),
)
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)


def with_table(readme: str) -> str:
    """The text with the table between its two marks written again."""
    found = committed_results()
    measured = dict(_named(found)) | {f"={name}": row for name, row in _named(turned_to(found, MORE, *EQUAL))}
    lines = ["| setting | method | Δ overall | Δ hard | Δ easy | seeds |", "|---|---|---|---|---|---|"]
    for setting, method, name in ROWS:
        comparison, seeds = measured[name]
        thirds = comparison.groups["cross"]
        deltas = (comparison.metrics["overall"].delta, thirds["hard"].delta, thirds["easy"].delta)
        cells = (f"{points(d.value)} [{points(d.low)}, {points(d.high)}]" for d in deltas)
        lines.append(f"| {setting} | {method} | {' | '.join(cells)} | {seeds} |")
    return BLOCK.sub(lambda _: "\n".join(lines) + "\n", readme)


def _named(found: Found) -> Iterator[tuple[str, tuple[Comparison, int]]]:
    """Every comparison as ``suite:task/variant``, with the number of its runs."""
    for suite, _, tables in found:
        for table in tables:
            seeds = {row.variant.name: len(row.seeds) for row in table.rows}
            for name, comparison in table.comparisons.items():
                yield f"{suite.name}:{table.task.name}/{name}", (comparison, seeds[name])


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    print(f"written: {README.name}")
