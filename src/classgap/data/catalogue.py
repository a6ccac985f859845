"""The published data sets by name: what belongs to them, where it comes from, and how it is read."""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classgap.checks import InputError
from classgap.data import array_sets, file_sets, remotes
from classgap.data.downloads import DownloadError, Remote, Tell, download, unpack
from classgap.data.images import IMAGENET_PIXELS
from classgap.data.items import FileOptions, Source
from classgap.data.listing import Listing
from classgap.data.own import listed_source

Pixels = tuple[tuple[float, ...], tuple[float, ...]]
Reader = Callable[[Path, FileOptions], Source]
INAT_PIXELS = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))


@dataclass(frozen=True)
class KnownSet:
    """A row of ``classgap data list``.

    Attributes:
        about: What it holds.
        read: Reads it from the folder of all data sets.
        counts: Published number of training, validation and test samples.
        classes: Published number of classes.
        needs: Files and folders that must be there; ``"a|b"`` where either will do.
        remotes: What ``prepare`` downloads.
        manual: What the user has to do where it cannot be downloaded.
        finish: What is left to do after everything is there.
    """

    about: str
    read: Reader
    counts: tuple[int, int, int]
    classes: int
    needs: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    manual: str = ""
    finish: Callable[[Path], None] | None = None

    def missing(self, root: Path) -> list[str]:
        """What of it is not there."""
        return [need for need in self.needs if not any((root / path).exists() for path in need.split("|"))]

    def load(self, name: str, root: Path, options: FileOptions) -> Source:
        """The set, complete unless ``options.partial`` allows some to be missing."""
        if missing := self.missing(root):
            raise InputError(
                f"{name} is not in {root}: {missing[0].replace('|', ' or ')} is missing; run `classgap data prepare {name}`, "
                "or point CLASSGAP_DATA or data.root at the folder that has it"
            )
        source = self.read(root, options)
        if not (problem := self._mismatch(name, source)):
            return source
        if not options.partial:
            raise InputError(f"{problem}; restore what is missing, or set data.partial=true to use what is there")
        return dataclasses.replace(
            source, notes=(*source.notes, f"{problem}: results are not comparable with published ones")
        )

    def _mismatch(self, name: str, source: Source) -> str:
        found = (len(source.y_train), 0 if source.y_val is None else len(source.y_val), len(source.y_test))
        for part, here, published in zip(("training", "validation", "test"), found, self.counts, strict=True):
            if here != published:
                return f"{name} has {here} {part} samples here, but {published} are published"
        seen = len(np.unique(source.y_train))
        return "" if seen == self.classes else f"{name} has {seen} classes here, but {self.classes} are published"

    def prepare(self, name: str, root: Path, tell: Tell | None = None) -> Source:
        """Download what is missing, verify and unpack it, and check the whole set; can be repeated after an interruption."""
        if self.missing(root):
            for position, remote in enumerate(self.remotes):
                try:
                    archive = download(remote, root, tell)
                except DownloadError as error:
                    further = [other for other in self.remotes[position + 1 :] if not other.path(root).exists()]
                    also = "".join(f"; {other.url} belongs at {other.path(root)}" for other in further)
                    raise InputError(f"{error}{also}") from error
                if remote.unpack:
                    unpack(archive, root / remote.folder)
            if self.finish is not None:
                self.finish(root)
        if (missing := self.missing(root)) and self.manual:
            raise InputError(
                f"{name} lacks {missing[0].replace('|', ' or ')} in {root}. {self.manual.format(root=root)}"
            )
        return self.load(name, root, FileOptions(size=32))


def _files(name: str, listing: Callable[[Path], Listing], pixels: Pixels = IMAGENET_PIXELS) -> Reader:
    def read(root: Path, options: FileOptions) -> Source:
        return listed_source(name, listing(root), options, pixels=pixels)

    return read


def _unpack_imagenet(root: Path) -> None:
    """Unpack the three official archives where they are there, by torchvision; under another name until all is there."""
    from torchvision.datasets import imagenet

    folder = root / "imagenet"
    for part, parse in (("train", imagenet.parse_train_archive), ("val", imagenet.parse_val_archive)):
        archive = folder / f"ILSVRC2012_img_{part}.tar"
        if (folder / part).exists() or not archive.exists():
            continue
        devkit = folder / "ILSVRC2012_devkit_t12.tar.gz"
        if part == "val" and not devkit.exists():
            continue
        try:
            if part == "val":
                imagenet.parse_devkit_archive(str(folder))
            parse(str(folder), folder=f"{part}.unpacking")
        except (RuntimeError, tarfile.TarError, EOFError) as error:  # its checksum differs, or it ends too early
            which = archive if part == "train" else f"{archive} or {devkit}"
            raise InputError(f"{which} is damaged or cut off; download it again") from error
        (folder / f"{part}.unpacking").replace(folder / part)


_PARTS = ("train", "val", "test")
_PLACES_FOLDERS = ("places365/data_256_standard|places365/data_256|places365/train", "places365/val_256|places365/val")
_IMAGENET_MANUAL = (
    "ImageNet may not be passed on: sign in at image-net.org, download ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and "
    "ILSVRC2012_devkit_t12.tar.gz to {root}/imagenet, and run this command again to unpack them; or link the folders "
    "train/WNID/… and val/WNID/… that you have to {root}/imagenet."
)
_CARS_MANUAL = (
    "Its authors no longer offer a download: get cars_train.tgz, cars_test.tgz, car_devkit.tgz and "
    "cars_test_annos_withlabels.mat from a copy you trust and unpack them in {root}/stanford_cars."
)


def _inside(folder: str, *files: str) -> tuple[str, ...]:
    return tuple("|".join(f"{folder}/{file}" for file in names.split("|")) for names in files)


SOURCES: dict[str, KnownSet] = {
    "digits": KnownSet("handwritten digits 8×8, part of scikit-learn", array_sets.digits, (797, 0, 1000), 10),
    "two_moons": KnownSet("points in the plane, one class is rare", array_sets.two_moons, (400, 0, 2000), 2),
    "mnist": KnownSet(
        "handwritten digits 28×28",
        array_sets.mnist,
        (60_000, 0, 10_000),
        10,
        _inside("MNIST/raw", *(f"{file}|{file}.gz" for file in remotes.IDX_FILES)),
        remotes.MNIST,
    ),
    "fashion_mnist": KnownSet(
        "clothes 28×28",
        array_sets.fashion_mnist,
        (60_000, 0, 10_000),
        10,
        tuple(
            "|".join(f"{folder}/{file}{end}" for folder in array_sets.FASHION_FOLDERS for end in ("", ".gz"))
            for file in remotes.IDX_FILES
        ),
        remotes.FASHION_MNIST,
    ),
    "cifar10": KnownSet(
        "photographs 32×32", array_sets.cifar10, (50_000, 0, 10_000), 10, ("cifar-10-batches-py",), remotes.CIFAR10
    ),
    "cifar100": KnownSet(
        "photographs 32×32", array_sets.cifar100, (50_000, 0, 10_000), 100, ("cifar-100-python",), remotes.CIFAR100
    ),
    "cifar10_lt": KnownSet(
        "long tail of CIFAR-10 (data.imbalance, 100 by default; data.profile=exponential or step)",
        array_sets.cifar10_lt,
        (50_000, 0, 10_000),
        10,
        ("cifar-10-batches-py",),
        remotes.CIFAR10,
    ),
    "cifar100_lt": KnownSet(
        "long tail of CIFAR-100 (as cifar10_lt)",
        array_sets.cifar100_lt,
        (50_000, 0, 10_000),
        100,
        ("cifar-100-python",),
        remotes.CIFAR100,
    ),
    "imagenet": KnownSet(
        "photographs of ImageNet-1k (ILSVRC 2012)",
        _files("imagenet", file_sets.imagenet),
        (1_281_167, 0, 50_000),
        1000,
        ("imagenet/train", "imagenet/val"),
        manual=_IMAGENET_MANUAL,
        finish=_unpack_imagenet,
    ),
    "imagenet_lt": KnownSet(
        "long tail of ImageNet-1k: 5 to 1280 images per class",
        _files("imagenet_lt", file_sets.imagenet_lt),
        (115_846, 20_000, 50_000),
        1000,
        (*_inside("imagenet_lt", *(f"ImageNet_LT_{part}.txt" for part in _PARTS)), "imagenet/train", "imagenet/val"),
        remotes.IMAGENET_LT,
        manual=_IMAGENET_MANUAL,
        finish=_unpack_imagenet,
    ),
    "inat18": KnownSet(
        "species of iNaturalist 2018: 2 to 1000 images per class",
        _files("inat18", file_sets.inat18, INAT_PIXELS),
        (437_513, 0, 24_426),
        8142,
        _inside(
            "inat18", "train_val2018", "iNaturalist18_train.txt|train2018.json", "iNaturalist18_val.txt|val2018.json"
        ),
        remotes.INAT18,
    ),
    "places365": KnownSet(
        "scenes of Places365-Standard, 256×256",
        _files("places365", file_sets.places365),
        (1_803_460, 0, 36_500),
        365,
        (
            *_inside("places365", "categories_places365.txt", "places365_train_standard.txt", "places365_val.txt"),
            *_PLACES_FOLDERS,
        ),
        remotes.PLACES365,
    ),
    "places_lt": KnownSet(
        "long tail of Places365: 5 to 4980 images per class",
        _files("places_lt", file_sets.places_lt),
        (62_500, 7_300, 36_500),
        365,
        (*_inside("places_lt", *(f"Places_LT_{part}.txt" for part in _PARTS)), *_PLACES_FOLDERS),
        remotes.PLACES_LT,
    ),
    "stanford_cars": KnownSet(
        "makes, models and years of cars",
        _files("stanford_cars", file_sets.stanford_cars),
        (8144, 0, 8041),
        196,
        _inside(
            "stanford_cars",
            "devkit/cars_meta.mat",
            "devkit/cars_train_annos.mat",
            "cars_test_annos_withlabels.mat",
            "cars_train",
            "cars_test",
        ),
        manual=_CARS_MANUAL,
    ),
    "oxford_pets": KnownSet(
        "breeds of cats and dogs of Oxford-IIIT Pet",
        _files("oxford_pets", file_sets.oxford_pets),
        (3680, 0, 3669),
        37,
        ("oxford-iiit-pet/images", "oxford-iiit-pet/annotations"),
        remotes.OXFORD_PETS,
    ),
    "flowers102": KnownSet(
        "flowers of Flowers-102",
        _files("flowers102", file_sets.flowers102),
        (1020, 1020, 6149),
        102,
        _inside("flowers-102", "jpg", "imagelabels.mat", "setid.mat"),
        remotes.FLOWERS102,
    ),
    "food101": KnownSet(
        "dishes of Food-101",
        _files("food101", file_sets.food101),
        (75_750, 0, 25_250),
        101,
        ("food-101/images", "food-101/meta"),
        remotes.FOOD101,
    ),
    "fgvc_aircraft": KnownSet(
        "variants of aircraft of FGVC-Aircraft",
        _files("fgvc_aircraft", file_sets.fgvc_aircraft),
        (3334, 3333, 3333),
        100,
        ("fgvc-aircraft-2013b/data/images", "fgvc-aircraft-2013b/data/variants.txt"),
        remotes.FGVC_AIRCRAFT,
    ),
}
