"""A file of features: the outputs of a frozen network for every sample of a data set, written once and mapped into memory.

The file is in the format of safetensors: ``x_train``, ``y_train``, ``x_test``, ``y_test`` and, where the data have them,
``x_val`` and ``y_val``; ``ids_…`` are names of samples as JSON. It is written under another name and renamed when it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.checks import InputError, class_indices, reading, whole
from classgap.data.items import Items, JoinedItems, Source

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bf16": torch.bfloat16}
_CODES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "U8": torch.uint8}
_NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.int16, "I64": np.int64, "U8": np.uint8}
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Layout:
    """Where each tensor is in a file of features."""

    header: dict[str, Any]
    start: int

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.start + max(
            int(entry["data_offsets"][1]) for name, entry in self.header.items() if name != "__metadata__"
        )

    def offset(self, name: str) -> int:
        """First byte of a tensor."""
        return self.start + int(self.header[name]["data_offsets"][0])

    @property
    def about(self) -> dict[str, Any]:
        """What the file says about itself."""
        found: dict[str, Any] = json.loads(self.header.get("__metadata__", {}).get("classgap", "{}"))
        return found


def make_layout(tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]], about: dict[str, Any]) -> tuple[Layout, bytes]:
    """The layout of a file with these tensors, and its first bytes."""
    codes = {dtype: code for code, dtype in _CODES.items()}
    header: dict[str, Any] = {"__metadata__": {"classgap": json.dumps(about)}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + dtype.itemsize * int(np.prod(shape))
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)  # every tensor begins where a processor likes it to
    return Layout(header, 8 + len(text)), struct.pack("<Q", len(text)) + text


def read_layout(path: Path) -> Layout:
    """The layout of a file of features; anything else is an error."""
    with reading(path, "a file of features, which classgap features writes"):
        with path.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > 100_000_000:
                raise ValueError("no header")
            header = json.loads(handle.read(length))
        layout = Layout(header, 8 + length)
        if path.stat().st_size != layout.size or not layout.about:
            raise InputError(f"{path} is no complete file of features; write it with classgap features")
        _check_header(header, layout.about)
    return layout


def _check_header(header: dict[str, Any], about: dict[str, Any]) -> None:
    """Every tensor has the type and the shape of its part, and takes as many bytes as that."""
    names = about["class_names"], about["fingerprint"], about["model"], about["data"]
    if not all(isinstance(text, str) for text in (*names[0], *names[1:])):
        raise TypeError("names must be text")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        shape = [whole("shape", size, low=0) for size in entry["shape"]]
        if begin < 0 or end - begin != math.prod(shape) * _CODES[entry["dtype"]].itemsize:
            raise ValueError(f"{name} does not have the bytes of its shape {shape}")
    for part in ("train", "test", *(["val"] if "x_val" in header else [])):
        x, y = header[f"x_{part}"], header[f"y_{part}"]
        if len(x["shape"]) != 2 or not x["dtype"].endswith(("F16", "F32")) or y["dtype"] != "I64":
            raise ValueError(f"x_{part} and y_{part} must be a matrix and a vector, got {x} and {y}")
        if y["shape"] != x["shape"][:1] or x["shape"][1] != header["x_train"]["shape"][1]:
            raise ValueError(f"x_{part} and y_{part} have other shapes: {x['shape']}, {y['shape']}")


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Some rows of a tensor of features in a file, read when they are asked for, as float32.

    Attributes:
        names: What tells all rows of the tensor apart.
    """

    path: Path
    tensor: str
    rows: NDArray[np.int64]
    names: Sequence[str] | None = None
    random: bool = False

    @cached_property
    def _mapped(self) -> tuple[NDArray[Any], torch.dtype]:
        layout = read_layout(self.path)
        entry = layout.header[self.tensor]
        shape = tuple(entry["shape"])
        mapped = np.memmap(self.path, _NUMPY[entry["dtype"]], "r", layout.offset(self.tensor), shape)
        return mapped, _CODES[entry["dtype"]]

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name != "_mapped"
        }  # each process maps the file itself

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of an array."""
        return (len(self), self._mapped[0].shape[1])

    @property
    def ids(self) -> list[str]:
        """Names of the samples, or their positions."""
        return [str(row) for row in self.rows] if self.names is None else [self.names[row] for row in self.rows]

    def take(self, rows: Any) -> FeatureRows:
        """These rows, in this order."""
        return dataclasses.replace(self, rows=self.rows[np.asarray(rows, dtype=np.int64)])

    def joined(self, other: Any) -> Items:
        """These rows and then others, of this tensor or of another one in a file."""
        if not isinstance(other, FeatureRows) or (other.path, other.tensor) != (self.path, self.tensor):
            return JoinedItems.of(self, other)
        return dataclasses.replace(self, rows=np.concatenate([self.rows, other.rows]))

    def batch(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> Tensor:
        """Features (B, d), float32."""
        mapped, dtype = self._mapped
        found = torch.from_numpy(np.ascontiguousarray(mapped[self.rows[np.asarray(rows, dtype=np.int64)]]))
        return (found.view(dtype) if dtype == torch.bfloat16 else found).float()

    def whole(self) -> Tensor:
        """All rows in memory."""
        return self.batch(np.arange(len(self)).tolist())


def feature_source(name: str, path: Path) -> Source:
    """A file of features as a data set; its rows stay in the file until they are needed."""
    layout = read_layout(path)
    about = layout.about

    def column(tensor: str) -> Any:
        entry = layout.header[tensor]
        mapped = np.memmap(path, _NUMPY[entry["dtype"]], "r", layout.offset(tensor), tuple(entry["shape"]))
        return np.array(mapped)

    def rows(part: str) -> tuple[FeatureRows, Any]:
        y = column(f"y_{part}")
        class_indices(f"y_{part} in {path}", y, len(about["class_names"]), rows=len(y))
        names = None
        if f"ids_{part}" in layout.header:
            with reading(path, "a file of features"):
                names = [str(name) for name in json.loads(column(f"ids_{part}").tobytes())]
                if len(names) != len(y):
                    raise ValueError(f"ids_{part} has {len(names)} entries for {len(y)} samples")
        return FeatureRows(path, f"x_{part}", np.arange(len(y)), names), y

    x_train, y_train = rows("train")
    x_test, y_test = rows("test")
    x_val, y_val = rows("val") if "x_val" in layout.header else (None, None)
    return Source(
        name,
        x_train,
        y_train,
        x_test,
        y_test,
        tuple(about["class_names"]),
        x_val=x_val,
        y_val=y_val,
        members=np.frombuffer(about["fingerprint"].encode(), dtype=np.uint8),
        notes=(f"features of {about['model']} for {about['data']}",),
    )
