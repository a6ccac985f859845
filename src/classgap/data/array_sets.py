"""Published sets that are arrays in memory: digits, MNIST, Fashion-MNIST, CIFAR. Also a user's own NumPy archive."""

from __future__ import annotations

import dataclasses
import gzip
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from classgap.checks import InputError, class_indices, reading
from classgap.data.items import Array, FileOptions, Source
from classgap.predictions.archives import read_npz
from classgap.predictions.labels import check_names, names_of

CIFAR_PIXELS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
FASHION_FOLDERS = ("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist")  # the latter by Debian's package
FASHION_CLASSES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_COLOURS = (1, 3, 4)  # channels of grey, RGB and RGBA
_MOST_CLASSES = 1_000_000
_NPZ_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def digits(root: Path, options: FileOptions) -> Source:
    """Handwritten digits of scikit-learn."""
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


def two_moons(root: Path, options: FileOptions) -> Source:
    """Points in the plane: 380 of one moon and 20 of the other, tested on 1000 of each; drawn with a fixed seed."""
    from sklearn.datasets import make_moons

    train, test = (
        make_moons(counts, noise=0.12, random_state=seed) for counts, seed in (((380, 20), 3), ((1000, 1000), 4))
    )
    x_train, x_test = (points.astype(np.float32) for points, _ in (train, test))
    return Source("two_moons", x_train, _ints(train[1]), x_test, _ints(test[1]), ("head", "tail"))


# --- the IDX files of MNIST -------------------------------------------------------------------------------------------


def mnist(root: Path, options: FileOptions) -> Source:
    """Handwritten digits; flipping them changes what they show, so no augmentation is usual."""
    return _idx_set("mnist", root / "MNIST" / "raw", tuple(str(k) for k in range(10)))


def fashion_mnist(root: Path, options: FileOptions) -> Source:
    """Clothes; also where Debian's package puts them."""
    folder = next((root / folder for folder in FASHION_FOLDERS if (root / folder).is_dir()), root)
    return _idx_set("fashion_mnist", folder, tuple(FASHION_CLASSES.split(",")), ("crop", "flip"))


def _idx_set(name: str, folder: Path, class_names: tuple[str, ...], augment: tuple[str, ...] = ()) -> Source:
    arrays = [
        _read_idx(name, folder, f"{part}-{kind}-ubyte")
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    x_train, y_train, x_test, y_test = arrays
    for part, x, y in (("train", x_train, y_train), ("t10k", x_test, y_test)):
        if x.ndim != 3 or y.ndim != 1 or (len(y) and y.max() >= len(class_names)):
            raise InputError(
                f"{folder}: the {part} files must hold images, and labels from 0 to {len(class_names) - 1}, got shapes {x.shape} "
                f"and {y.shape}; {_again(name)}"
            )
        if len(x) != len(y):
            raise InputError(f"{folder}: the {part} files have {len(x)} images, but {len(y)} labels; {_again(name)}")
    return _images(name, x_train[:, None], y_train, x_test[:, None], y_test, class_names, augment=augment)


def _read_idx(name: str, folder: Path, file: str) -> Array:
    """An array in the IDX format: two zero bytes, type, rank, big-endian sizes, then the bytes."""
    path = next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)
    if path is None:
        raise InputError(f"{folder} lacks {file}[.gz]; {_again(name)}")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rank = raw[3]
        if raw[2] != 8:
            raise ValueError(f"type {raw[2]}, not bytes")
        shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
        # A copy: torch wants arrays that can be written.
        return np.frombuffer(bytearray(raw), np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise InputError(f"{path} is damaged or cut off ({error}); {_again(name)}") from error


def _again(name: str) -> str:
    return f"remove the file and run `classgap data prepare {name}`"


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def cifar10(root: Path, options: FileOptions) -> Source:
    """CIFAR-10 in its version for Python."""
    folder = root / "cifar-10-batches-py"
    train = [_unpickle("cifar10", folder / f"data_batch_{i}") for i in range(1, 6)]
    test, meta = (_unpickle("cifar10", folder / file) for file in ("test_batch", "batches.meta"))
    return _cifar("cifar10", folder, train, [test], "labels", (meta, "label_names"))


def cifar100(root: Path, options: FileOptions) -> Source:
    """CIFAR-100 in its version for Python, with its 100 fine labels."""
    folder = root / "cifar-100-python"
    train, test, meta = (_unpickle("cifar100", folder / file) for file in ("train", "test", "meta"))
    return _cifar("cifar100", folder, [train], [test], "fine_labels", (meta, "fine_label_names"))


def cifar10_lt(root: Path, options: FileOptions) -> Source:
    """The long tail of CIFAR-10."""
    return dataclasses.replace(cifar10(root, options), name="cifar10_lt", profile="exponential")


def cifar100_lt(root: Path, options: FileOptions) -> Source:
    """The long tail of CIFAR-100."""
    return dataclasses.replace(cifar100(root, options), name="cifar100_lt", profile="exponential")


def _cifar(name: str, folder: Path, train: list[Any], test: list[Any], key: str, meta: tuple[Any, str]) -> Source:
    arrays = []
    with reading(folder, f"the data set {name}"):
        class_names = [str(label) for label in meta[0][meta[1]]]
        for batches in (train, test):
            images = [np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32) for batch in batches]
            labels = np.concatenate([np.asarray(batch[key], dtype=np.int64) for batch in batches])
            class_indices(key, labels, len(class_names), rows=sum(map(len, images)))
            arrays += [np.concatenate(images), labels]
    x_train, y_train, x_test, y_test = arrays
    return _images(name, x_train, y_train, x_test, y_test, tuple(class_names), CIFAR_PIXELS, ("crop", "flip"))


class _ArraysOnly(pickle.Unpickler):
    """A pickle of arrays, lists and texts; anything else in it is refused, since loading it could run code."""

    _ALLOWED = frozenset({("_codecs", "encode"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return super().find_class("numpy._core.multiarray" if hasattr(np, "_core") else module, name)
        if (module, name) in self._ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no data")


def _unpickle(name: str, path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; {_again(name)}") from error
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise InputError(f"{path} is damaged or cut off ({error}); {_again(name)}") from error


# --- a NumPy archive --------------------------------------------------------------------------------------------------


def npz_source(name: str, path: Path) -> Source:
    """A user's arrays: ``x_train``, ``y_train``, ``x_test``, ``y_test`` and optionally ``class_names``."""
    arrays = read_npz(path)
    missing = [key for key in _NPZ_ARRAYS if key not in arrays]
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}); wanted are x_train and x_test, "
            "images uint8 (N, H, W[, C]) or (N, C, H, W), or vectors (N, d), y_train and y_test, and optionally class_names"
        )
    x_train, y_train, x_test, y_test = (arrays[key] for key in _NPZ_ARRAYS)
    for key, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        _check_pair(path, key, x, y)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise InputError(f"{path}: x_train holds samples of {x_train.shape[1:]}, x_test of {x_test.shape[1:]}")
    classes = int(max(y_train.max(), y_test.max())) + 1
    given = names_of(arrays["class_names"], f"{path}: class_names") if "class_names" in arrays else range(classes)
    names = tuple(check_names([str(name) for name in given]))
    if len(names) < classes:
        raise InputError(f"{path}: class_names has {len(names)} entries but labels go up to {classes - 1}")
    if x_train.ndim == 2:
        with np.errstate(over="ignore"):
            vectors = [x.astype(np.float32) for x in (x_train, x_test)]
        if not all(np.isfinite(x).all() for x in vectors):
            raise InputError(f"{path}: x_train and x_test must fit into float32, but some values are beyond 3e38")
        return Source(name, vectors[0], _ints(y_train), vectors[1], _ints(y_test), names)
    return _images(name, _channels_first(x_train), y_train, _channels_first(x_test), y_test, names)


def _channels_first(images: Array) -> Array:
    """(N, C, H, W) of images whose channels, if they have any, come last; or first, where only the first can be colours."""
    if images.ndim == 3:
        return images[:, None]
    first, last = (images.shape[axis] in _COLOURS for axis in (1, 3))
    if not first and not last:  # other numbers of channels: the side that is shorter than both others
        first, last = (images.shape[axis] < min(images.shape[2], images.shape[4 - axis]) for axis in (1, 3))
        if not first and not last:
            raise InputError(
                f"images must be (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1, 3 or 4 channels, got {images.shape}"
            )
    return images if first and not last else images.transpose(0, 3, 1, 2)


def _check_pair(path: Path, part: str, x: Array, y: Array) -> None:
    vectors = x.ndim == 2 and x.dtype.kind in "biuf"
    if not (vectors or (x.ndim in (3, 4) and x.dtype == np.uint8)) or 0 in x.shape[1:]:
        raise InputError(
            f"{path}: x_{part} must be images uint8 (N, H, W[, C]) or (N, C, H, W), or vectors (N, d), got {x.dtype} of shape "
            f"{x.shape}"
        )
    if vectors and not np.isfinite(x).all():
        raise InputError(f"{path}: x_{part} holds nan or infinite values; drop or repair those rows")
    if y.ndim != 1 or len(y) != len(x) or len(y) == 0:
        raise InputError(f"{path}: y_{part} must hold one label for each of the {len(x)} samples, got shape {y.shape}")
    if y.dtype.kind not in "iu" or y.min() < 0:
        least = f" with minimum {y.min()}" if y.dtype.kind in "iuf" else ""
        raise InputError(f"{path}: y_{part} must hold class indices from 0, got {y.dtype}{least}")
    if y.max() >= _MOST_CLASSES:
        raise InputError(f"{path}: y_{part} must hold class indices below {_MOST_CLASSES:,}, got {y.max():,}")


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
