"""Speed of reading image files during training, against a torchvision ``DataLoader`` with the same number of workers.

python benchmarks/loading.py [--images 600] [--workers 2] [--rounds 5]

Writes JPEG files of 500 × 375 pixels, a common size in ImageNet, from smoothed noise to a temporary folder, then reads all of
them as a training epoch does: random resized crop of 224 pixels, horizontal flip, standardised floats in batches of 64. The other
side is ``ImageFolder`` in a ``DataLoader`` with the same transforms, once on PIL images and once on tensors. Rounds alternate
between the sides; printed and written to ``loading.json`` are medians of wall time and their ratios in this run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from machine import describe
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from classgap.data import Batches, Normalise, load_data, policies, shuffled

BATCH, SIDE = 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write_images(root: Path, count: int) -> None:
    """Files with the detail of a photograph: noise at several scales."""
    rng = np.random.default_rng(0)
    for i in range(count):
        pixels = np.zeros((375, 500, 3))
        for scale in (4, 16, 64):
            coarse = rng.uniform(0, 85, (375 // scale + 1, 500 // scale + 1, 3)).astype(np.uint8)
            pixels += np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC))
        place = root / ("test" if i % 20 == 0 else "train") / str(i % 2) / f"{i}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place, quality=90)


def ours(root: Path, workers: int) -> Callable[[int], Iterator[Tensor]]:
    data = load_data(str(root), size=SIDE, val_fraction=0, augment=("resized_crop", "flip"), workers=workers, memory=0)
    batches = Batches(
        data.train,
        batch=BATCH,
        order=shuffled(len(data.train), 0),
        normalise=Normalise(MEAN, STD),
        policies=policies(data.augment, data.mean),
    )
    return lambda epoch: (batch.x for batch in batches.epoch(epoch))


def torchvision_loader(root: Path, workers: int, tensors: bool) -> Callable[[int], Iterator[Tensor]]:
    crop_flip = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose(
        [v2.PILToTensor(), *crop_flip, *floats] if tensors else [*crop_flip, v2.PILToTensor(), *floats]
    )
    loader = DataLoader(ImageFolder(str(root / "train"), transform), BATCH, shuffle=True, num_workers=workers)
    return lambda epoch: (x for x, _ in loader)


def seconds(epoch: Iterator[Tensor]) -> float:
    start = time.perf_counter()
    images = sum(len(x) for x in epoch)
    return (time.perf_counter() - start) / images * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("images", 600), ("workers", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_images(root, asked.images)
        sides = {
            "classgap": ours(root, asked.workers),
            "torchvision on PIL images": torchvision_loader(root, asked.workers, tensors=False),
            "torchvision on tensors": torchvision_loader(root, asked.workers, tensors=True),
        }
        spent: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(asked.rounds):
            for side, epoch in sides.items():
                spent[side].append(seconds(epoch(turn)))
    mine = statistics.median(spent["classgap"])
    found = {
        "machine": describe(),
        "images": asked.images,
        "workers": asked.workers,
        "rounds": asked.rounds,
        "ms_per_image": {side: round(statistics.median(times), 2) for side, times in spent.items()},
        "ratio_to_classgap": {side: round(statistics.median(times) / mine, 2) for side, times in spent.items()},
    }
    (Path(__file__).parent / "loading.json").write_text(json.dumps(found, indent=2) + "\n")
    for side, times in spent.items():
        middle = statistics.median(times)
        print(f"{side:>26}  {middle:6.2f} ms per image  {middle / mine:5.2f} × the time of classgap")


if __name__ == "__main__":
    main()
