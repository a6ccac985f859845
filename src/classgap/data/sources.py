"""Data sets by name (``digits``, ``fashion_mnist``, ``cifar10``, ``cifar100``) or by the path of a folder, table or archive."""

from __future__ import annotations

import gzip
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classgap.checks import InputError, did_you_mean
from classgap.data.items import Array, FileOptions, Source
from classgap.data.own import own_source
from classgap.data.tables import LISTS, TABLES
from classgap.data.texts import Encode

_CIFAR_PIXELS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_NPZ_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Known:
    """A row of ``classgap data list``."""

    load: Callable[[Path, bool], Source]
    present: Callable[[Path], bool]
    about: str


def data_root() -> Path:
    """Folder of downloaded data sets: ``$CLASSGAP_DATA``, or a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    return Path(os.environ.get("CLASSGAP_DATA", Path(cache) / "classgap"))


def load_source(
    name: str, *, download: bool = False, files: FileOptions | None = None, encode: Encode | None = None
) -> Source:
    """The data set called ``name``; only with ``download`` is anything fetched.

    Args:
        name: A name of ``classgap data list``, or the path of your own data: a folder of images (``PATH/train/CLASS/…`` beside
            ``PATH/test`` or ``PATH/val``, or ``PATH/CLASS/…``), a ``.csv``, ``.tsv`` or ``.parquet`` table with columns ``path``
            (of images) or ``text``, ``label`` and optionally ``split``, a folder with such a table for each part
            (``train.csv``, ``test.csv``), a ``.txt`` or ``.lst`` file with a path and a label per line, a folder that
            ``datasets.Dataset.save_to_disk`` wrote, or an ``.npz`` archive.
        files: How images in files are read.
        encode: Turns texts into a tensor; the tokeniser of a text model.
    Example:
        >>> source = load_source("digits")
        >>> source.x_train.shape, source.x_test.shape
        ((797, 1, 8, 8), (1000, 1, 8, 8))
    """
    kind, _, path = name.partition(":")
    if kind == "npz" and path:
        return _npz(name, _own_path(path))
    if kind == "dataset":
        raise InputError(
            f"data={name} stands for torch data sets given in Python; pass them: train(…, data=(train, test))"
        )
    if name in SOURCES:
        return SOURCES[name].load(data_root(), download)
    if not _is_path(name):
        raise InputError(did_you_mean(name, [*SOURCES, "PATH of a folder, table or .npz file"], what="data set"))
    place = own_listing(name)
    return _npz(name, _own_path(name)) if place is None else own_source(name, place, files or FileOptions(), encode)


def own_listing(name: str) -> Path | None:
    """The folder, table or list of samples that ``name`` is the path of; ``None`` for a known name and for an archive."""
    if name in SOURCES or name.startswith(("npz:", "dataset:")) or not _is_path(name):
        return None
    place = _own_path(name)
    if place.is_file() and place.suffix.lower() == ".npz":
        return None
    if place.is_file() and place.suffix.lower() not in (*TABLES, *LISTS):
        raise InputError(
            f"data={name} must be a folder of images, a {', '.join(TABLES)} table, a {', '.join(LISTS)} list of images or an "
            ".npz archive; this file is none of them"
        )
    return place


def _is_path(name: str) -> bool:
    known = Path(name).suffix.lower() in (".npz", *TABLES, *LISTS)
    return known or "/" in name or os.sep in name or any(place.exists() for place in _places(name))


def _places(name: str) -> tuple[Path, Path]:
    """A relative path is looked for in the current folder, then among the data sets."""
    path = Path(name).expanduser()
    return path, data_root() / path


def _own_path(name: str) -> Path:
    found = next((place for place in _places(name) if place.exists()), None)
    if found is None:
        raise InputError(
            f"there is no file or folder {name}; a relative path is looked for in {Path.cwd()} and in {data_root()}, which "
            "CLASSGAP_DATA changes"
        )
    return found


def _digits(root: Path, download: bool) -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    # The package publishes no split: 100 test images per class, drawn with a fixed seed.
    rng = np.random.RandomState(0)
    test = np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:100] for k in range(10)]))
    train = np.setdiff1d(np.arange(len(labels)), test)
    names = tuple(str(k) for k in range(10))
    return _images("digits", images[train], labels[train], images[test], labels[test], names)


def _fashion_mnist(root: Path, download: bool) -> Source:
    folder = _fashion_folder(root)
    if folder is None:
        if not download:
            raise InputError(
                f"fashion_mnist is neither in {root} nor in {_DEBIAN_FASHION_MNIST}; "
                "run `classgap data prepare fashion_mnist` (31 MB) or install Debian's dataset-fashion-mnist"
            )
        from torchvision import datasets

        datasets.FashionMNIST(str(root), download=True)
        folder = root / "FashionMNIST" / "raw"
    arrays = [
        _read_idx(folder, f"{part}-{kind}-ubyte")
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    x_train, y_train, x_test, y_test = arrays
    names = tuple(_FASHION.split(","))
    return _images("fashion_mnist", x_train[:, None], y_train, x_test[:, None], y_test, names, augment=("crop", "flip"))


def _fashion_folder(root: Path) -> Path | None:
    folders = (root / "FashionMNIST" / "raw", _DEBIAN_FASHION_MNIST)
    return next((f for f in folders if _idx_file(f, "train-images-idx3-ubyte") is not None), None)


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _read_idx(folder: Path, name: str) -> Array:
    """An array in the IDX format of MNIST: two zero bytes, type, rank, big-endian sizes, then the bytes."""
    path = _idx_file(folder, name)
    if path is None:
        raise InputError(f"{folder} lacks {name}[.gz]; remove the folder and run `classgap data prepare fashion_mnist`")
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
    return np.frombuffer(bytearray(raw), np.uint8, offset=4 + 4 * rank).reshape(shape)  # writable, as torch wants


def _cifar(classes: int) -> Callable[[Path, bool], Source]:
    def load(root: Path, download: bool) -> Source:
        from torchvision import datasets

        reader = datasets.CIFAR10 if classes == 10 else datasets.CIFAR100
        try:
            train, test = (reader(str(root), train=part, download=download) for part in (True, False))
        except RuntimeError as error:
            raise InputError(
                f"cifar{classes} is not in {root}; run `classgap data prepare cifar{classes}` (170 MB), "
                f"or point CLASSGAP_DATA at the folder that has it"
            ) from error
        x_train, x_test = (part.data.transpose(0, 3, 1, 2) for part in (train, test))
        names, labels = tuple(train.classes), [np.asarray(part.targets) for part in (train, test)]
        return _images(f"cifar{classes}", x_train, labels[0], x_test, labels[1], names, _CIFAR_PIXELS, ("crop", "flip"))

    return load


def _npz(name: str, path: Path) -> Source:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} cannot be read as a NumPy archive without pickles ({error}); was it cut off?"
        ) from error
    missing = [key for key in _NPZ_ARRAYS if key not in arrays]
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}); wanted are x_train and x_test, "
            "images uint8 (N, H, W[, C]) or vectors (N, d), y_train and y_test, and optionally class_names"
        )
    x_train, y_train, x_test, y_test = (arrays[key] for key in _NPZ_ARRAYS)
    for key, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        _check_pair(path, key, x, y)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise InputError(f"{path}: x_train holds samples of {x_train.shape[1:]}, x_test of {x_test.shape[1:]}")
    classes = int(max(y_train.max(), y_test.max())) + 1
    names = tuple(str(n) for n in arrays.get("class_names", np.arange(classes)))
    if len(names) < classes:
        raise InputError(f"{path}: class_names has {len(names)} entries but labels go up to {classes - 1}")
    if x_train.ndim == 2:
        vectors = [x.astype(np.float32) for x in (x_train, x_test)]
        return Source(name, vectors[0], _ints(y_train), vectors[1], _ints(y_test), names)
    planes = [x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) for x in (x_train, x_test)]
    return _images(name, planes[0], y_train, planes[1], y_test, names)


def _check_pair(path: Path, part: str, x: Array, y: Array) -> None:
    if x.ndim not in (2, 3, 4) or (x.ndim > 2 and x.dtype != np.uint8):
        raise InputError(
            f"{path}: x_{part} must be images uint8 (N, H, W[, C]) or vectors (N, d), got {x.dtype} of shape {x.shape}"
        )
    if x.ndim == 2 and not np.isfinite(x).all():
        raise InputError(f"{path}: x_{part} holds nan or infinite values; drop or repair those rows")
    if y.ndim != 1 or len(y) != len(x) or len(y) == 0:
        raise InputError(f"{path}: y_{part} must hold one label for each of the {len(x)} samples, got shape {y.shape}")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise InputError(f"{path}: y_{part} must hold class indices from 0, got {y.dtype} with minimum {y.min()}")


def _images(
    name: str,
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    class_names: tuple[str, ...],
    pixels: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    augment: tuple[str, ...] = (),
) -> Source:
    mean, std = pixels or _channel_statistics(x_train)
    images = [np.ascontiguousarray(x) for x in (x_train, x_test)]
    return Source(name, images[0], _ints(y_train), images[1], _ints(y_test), class_names, mean, std, augment)


def _channel_statistics(images: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the scale [0, 1], from exact histograms."""
    mean, std = [], []
    values = np.arange(256) / 255
    for channel in range(images.shape[1]):
        share = np.bincount(images[:, channel].ravel(), minlength=256) / images[:, channel].size
        mean.append(float(share @ values))
        std.append(max(float(np.sqrt(share @ values**2 - mean[-1] ** 2)), 1 / 255))
    return tuple(mean), tuple(std)


def _ints(labels: Array) -> Array:
    return np.asarray(labels, dtype=np.int64)


SOURCES: dict[str, Known] = {
    "digits": Known(_digits, lambda root: True, "handwritten digits 8×8, 797 + 1000 images, part of scikit-learn"),
    "fashion_mnist": Known(
        _fashion_mnist, lambda root: _fashion_folder(root) is not None, "clothes 28×28, 60,000 + 10,000 images"
    ),
    "cifar10": Known(
        _cifar(10),
        lambda root: (root / "cifar-10-batches-py").is_dir(),
        "photographs 32×32, 50,000 + 10,000, 10 classes",
    ),
    "cifar100": Known(
        _cifar(100),
        lambda root: (root / "cifar-100-python").is_dir(),
        "photographs 32×32, 50,000 + 10,000, 100 classes",
    ),
}
