"""Images in files: read when they are needed, resized and cropped as torchvision does it."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.checks import InputError
from classgap.data.items import FileOptions
from classgap.data.workers import in_order

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
IMAGENET_PIXELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CHUNK = 64  # images that a worker decodes at once while a whole set is read
_PROBED = 64  # images whose headers are looked at for a common size
_SHOWN = 5


class Names:
    """Many file names in two arrays: worker processes share this memory, a list of strings would be copied into each of them.

    Example:
        >>> Names(["a.png", "b/c.png"])[1]
        'b/c.png'
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self.text = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = self.ends[row - 1] if row else 0
        return os.fsdecode(self.text[start : self.ends[row]].tobytes())


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Some images of a folder, decoded to RGB when they are asked for.

    Attributes:
        root: Folder that the names are relative to.
        rows: Which of the names belong to this set.
        size: Height and width of every image this gives.
        shorter: Length of the shorter side before the centre of ``size`` is cut out; ``None`` if all files must have ``size``.
        random: Whether training images are random parts of the file (``resized_crop``).
        crop_scale: Smallest share of the area of such a part.
        interpolation: How images are resized, ``"bilinear"`` or ``"bicubic"``.
        pictures: Images of a Hugging Face data set in place of files, in the order of the names.
    """

    root: str
    names: Names
    rows: NDArray[np.int64]
    size: tuple[int, int]
    shorter: int | None = None
    random: bool = False
    crop_scale: float = 0.08
    interpolation: str = "bilinear"
    pictures: Any = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of an array of all images."""
        return (len(self), 3, *self.size)

    @property
    def ids(self) -> list[str]:
        """Names of the files, relative to the root."""
        return [self.names[row] for row in self.rows]

    def take(self, rows: Any) -> ImageFiles:
        """These images, in this order."""
        return dataclasses.replace(self, rows=self.rows[np.asarray(rows, dtype=np.int64)])

    def randomly(self) -> ImageFiles:
        """The same images, of which training sees random parts."""
        return dataclasses.replace(self, random=True)

    def joined(self, other: ImageFiles) -> ImageFiles:
        """These images and then those of another set of the same files."""
        return dataclasses.replace(self, rows=np.concatenate([self.rows, other.rows]))

    def batch(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> Tensor:
        """Images uint8 (B, 3, H, W); with ``seeds`` a random part of each file, a function of its seed."""
        parts = self._random_parts(rows, seeds) if seeds is not None else [self._centre(row) for row in rows]
        return torch.stack(parts)

    def whole(self, row: int) -> Tensor:
        """An image in its own size."""
        if self.pictures is None:
            return decode(self._path(row))
        found = self.pictures[int(self.rows[row])]["image"]
        if found is None:
            raise InputError(
                f"row {self.rows[row]} of {self.root} has no image; drop such rows, or set data.skip_corrupt=true"
            )
        return decode(self._path(row) if found["bytes"] is not None else found["path"], found["bytes"])

    def _path(self, row: int) -> str:
        return os.path.join(self.root, self.names[self.rows[row]])

    def _centre(self, row: int) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        image = self.whole(row)
        height, width = self.size
        if self.shorter is None:
            if image.shape[1:] != self.size:
                raise InputError(
                    f"image {self._path(row)} has {image.shape[2]}×{image.shape[1]} pixels, but the first ones have "
                    f"{width}×{height}; "
                    "choose a size for all of them, e.g. data.size=224"
                )
            return image
        resized = F.resize(image, [self.shorter], F.InterpolationMode(self.interpolation), antialias=True)
        centre: Tensor = F.center_crop(resized, [height, width])
        return centre

    def _random_parts(self, rows: Sequence[int], seeds: Sequence[int]) -> list[Tensor]:
        from torchvision.transforms import v2

        mode = v2.InterpolationMode(self.interpolation)
        transform = v2.RandomResizedCrop(self.size, scale=(self.crop_scale, 1.0), interpolation=mode, antialias=True)
        images = []
        with torch.random.fork_rng(devices=[]):
            for row, seed in zip(rows, seeds, strict=True):
                torch.default_generator.manual_seed(seed)
                images.append(transform(self.whole(row)))
        return images


def decode(path: str, content: bytes | None = None) -> Tensor:
    """The image in a file (or of this content), uint8 (3, H, W) in RGB; an error names one that is missing or damaged."""
    from PIL import Image

    try:
        with Image.open(path if content is None else io.BytesIO(content)) as opened:
            return pixels_of_picture(opened, f"image {path}")
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"image {path} is missing; restore it, or take it out of the set") from error
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(
            f"image {path} cannot be decoded ({_first_line(error)}): it is damaged, cut off, or not an image. Repair or "
            "remove it, or set data.skip_corrupt=true to leave such files out"
        ) from error


def pixels_of_picture(picture: Any, name: str, *, grey: bool = False) -> Tensor:
    """The pixels of a PIL image, uint8 (3, H, W), or (1, H, W) if ``grey``.

    Of 16 bits the upper 8 are kept, as Pillow itself does for colours; it would cut off grey values above 255. Numbers of 32
    bits have no common scale and are refused.
    """
    from torchvision.transforms.v2 import functional as F

    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG"):
        values = np.asarray(picture).astype(np.int64) >> 8
        deep = torch.from_numpy(values.clip(0, 255).astype(np.uint8))[None]
        return deep if grey else deep.expand(3, -1, -1).contiguous()
    if picture.mode in ("I", "F"):
        raise InputError(
            f"{name} has pixels of 32 bits (mode {picture.mode}), whose scale is not known; convert it to 8 or 16 bits"
        )
    image: Tensor = F.pil_to_tensor(picture.convert("L" if grey else "RGB"))
    return image


def open_images(
    root: str, names: Sequence[str], options: FileOptions, pictures: Any = None
) -> tuple[ImageFiles, list[int]]:
    """The images of these names, of a size still to be chosen, and the rows of those to be used.

    With ``options.skip_corrupt`` every file is decoded once, to leave out those that cannot be.
    """
    files = ImageFiles(
        root,
        Names(names),
        np.arange(len(names)),
        (1, 1),
        crop_scale=options.crop_scale,
        interpolation=options.interpolation,
        pictures=pictures,
    )
    kept = _sound(files, options.workers) if options.skip_corrupt else list(range(len(names)))
    if not kept:
        raise InputError(f"none of the {len(names)} images of {root} can be decoded")
    return files.take(kept), kept


def with_size(files: ImageFiles, size: int | None, resize: int | None) -> ImageFiles:
    """The images as squares.

    Args:
        size: Side of the squares; without it all files must have the same size, and keep it.
        resize: Length of the shorter side before the centre is cut out; ``size`` by default.
    """
    shorter = shorter_side(size, resize)
    if size is None:
        return dataclasses.replace(files, size=_common_size(files))
    return dataclasses.replace(files, size=(size, size), shorter=shorter)


def shorter_side(size: int | None, resize: int | None) -> int:
    """Length of the shorter side before the centre is cut out; 0 where images keep their size."""
    if size is None:
        if resize is not None:
            raise InputError(f"data.resize={resize} needs data.size, the side of the centre that is cut out of it")
        return 0
    shorter = size if resize is None else resize
    if shorter < size:
        raise InputError(f"data.resize={shorter} must not be less than data.size={size}, which is cut out of it")
    return shorter


def read_all(files: ImageFiles, workers: int) -> Tensor:
    """All images in memory, uint8 (N, 3, H, W)."""
    whole = torch.empty(files.shape, dtype=torch.uint8)
    starts = range(0, len(files), _CHUNK)
    for start, images in zip(starts, in_order(_Chunks(files), starts, workers), strict=True):
        whole[start : start + len(images)] = images
    return whole


@dataclass(frozen=True, eq=False)
class _Chunks:
    files: ImageFiles

    def __call__(self, start: int) -> Tensor:
        return self.files.batch(range(start, min(start + _CHUNK, len(self.files))))


@dataclass(frozen=True, eq=False)
class _Check:
    files: ImageFiles

    def __call__(self, start: int) -> list[int]:
        """Rows of this chunk that can be decoded."""
        return [row for row in range(start, min(start + _CHUNK, len(self.files))) if self._sound(row)]

    def _sound(self, row: int) -> bool:
        try:
            self.files.whole(row)
        except InputError:
            return False
        return True


def _sound(files: ImageFiles, workers: int) -> list[int]:
    starts = range(0, len(files), _CHUNK)
    return [row for rows in in_order(_Check(files), starts, workers) for row in rows]


def _common_size(files: ImageFiles) -> tuple[int, int]:
    """Height and width of a few images spread over the set, which must agree."""
    from PIL import Image

    sizes: dict[tuple[int, int], str] = {}
    for row in np.unique(np.linspace(0, len(files) - 1, _PROBED).astype(int)):
        path = files._path(int(row))
        if files.pictures is not None:
            height, width = files.whole(int(row)).shape[1:]
            sizes.setdefault((height, width), path)
            continue
        try:
            with Image.open(path) as image:
                sizes.setdefault((image.height, image.width), path)
        except OSError:
            decode(path)  # says what is wrong with it
    if len(sizes) > 1:
        shown = ", ".join(f"{width}×{height}" for height, width in list(sizes)[:_SHOWN])
        raise InputError(
            f"data.size is needed: the images of {Path(files.root)} have different sizes ({shown}); e.g. data.size=224"
        )
    return next(iter(sizes))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
