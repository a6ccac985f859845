"""NPZ and safetensors archives as mappings from name to NumPy array. An array is read when it is asked for; pickles never are.

Sizes are checked before memory is taken: a small file can claim, or expand to, more data than fits into memory.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, printable

Arrays = Mapping[str, NDArray[Any]]

_SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip
_KINDS = "biufUS"  # booleans, numbers and text


def read_archive(path: Path) -> Arrays:
    """The arrays of an ``.npz`` or ``.safetensors`` file."""
    return read_npz(path) if path.suffix.lower() == ".npz" else read_safetensors(path)


class _Archive(Mapping[str, NDArray[Any]]):
    """A mapping that reads an array when it is asked for."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.names:
            raise KeyError(name)
        try:
            return self._read(name)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # whatever a decoder raises for damaged bytes
            reason = printable(" ".join(str(error).split())[:200])
            raise InputError(
                f"array {name!r} in {self.path} is damaged and cannot be read ({reason}); write the file again"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def _read(self, name: str) -> NDArray[Any]:
        raise NotImplementedError

    def _load(
        self, name: str, stream: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], size: int
    ) -> NDArray[Any]:
        """The next ``size`` bytes of ``stream`` as an array in C order, if they are exactly what the shape needs."""
        count = math.prod(map(int, shape))
        if count * dtype.itemsize != size or (size == 0 and count):
            raise InputError(
                f"array {name!r} in {self.path} claims the shape {_shown(shape)} of {dtype}, but holds {size:,} bytes; "
                "write the file again"
            )
        if size > memory_limit():
            raise InputError(
                f"array {name!r} in {self.path} takes {size / 1e9:.1f} GB, more than half the memory of this machine; "
                "measure a part of the samples, or save numbers as float16"
            )
        data = np.empty(size, np.uint8)
        done = 0
        while done < size:
            read = stream.readinto(data[done:])  # type: ignore[attr-defined]
            if not read:
                raise EOFError(f"{done:,} of {size:,} bytes")
            done += read
        return data.view(dtype).reshape(shape) if size else np.empty(shape, dtype)


# ---------------------------------------------------------------- NPZ


class _Npz(_Archive):
    def _read(self, name: str) -> NDArray[Any]:
        with zipfile.ZipFile(self.path) as archive:
            member = archive.getinfo(_member(archive, name))
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read_header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, fortran, dtype = read_header(stream)
                _check_dtype(self.path, name, dtype)
                array = self._load(
                    name, stream, dtype, shape[::-1] if fortran else shape, member.file_size - stream.tell()
                )
                stream.read(1)  # at the end of the member, its checksum is compared
        return array.T if fortran else array


def read_npz(path: Path) -> Arrays:
    """The arrays of an NPZ file. Pickled arrays are rejected, since loading a pickle executes code."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        raise InputError(f"{path} is a single array (.npy), not an NPZ archive; write it with numpy.savez(…, y_true=…)")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} ends in .npz but is not an NPZ archive; write it with numpy.savez")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception as error:  # damaged directories of archives raise many kinds of error
        raise InputError(f"{path} is a damaged NPZ archive ({error}); write it again") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} holds two arrays named {twice!r}; write it again with one of them")
    return _Npz(path, names)


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name


def _check_dtype(path: Path, name: str, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise InputError(
            f"array {name!r} in {path} is pickled (dtype object), which is unsafe to load; "
            "save it as numbers or as fixed-width text: np.asarray(names, dtype=str)"
        )
    if dtype.kind not in _KINDS:
        raise InputError(f"array {name!r} in {path} must hold numbers, text or booleans, got {dtype}")


# ---------------------------------------------------------------- safetensors


class _Safetensors(_Archive):
    def __init__(self, path: Path, header: Mapping[str, Any], start: int) -> None:
        self.header, self.start = header, start
        metadata = header.get("__metadata__") or {}
        self.class_names = metadata.get("class_names")
        names = [name for name in header if name != "__metadata__"]
        super().__init__(path, [*names, *(["class_names"] if self.class_names is not None else [])])

    def _read(self, name: str) -> NDArray[Any]:
        if name == "class_names" and self.class_names is not None:
            return np.array(_parse_names(self.path, self.class_names), dtype=str)
        entry = self.header[name]
        if entry["dtype"] not in _SAFETENSORS_DTYPES:
            raise InputError(f"tensor {name!r} in {self.path} has dtype {entry['dtype']}; save it as float32 or int64")
        first, last = entry["data_offsets"]
        with self.path.open("rb") as stream:
            stream.seek(self.start + first)
            dtype = np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]])
            array = self._load(name, stream, dtype, tuple(entry["shape"]), last - first)
        if entry["dtype"] != "BF16":
            return array
        return (array.astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path: Path) -> Arrays:
    """The tensors of a safetensors file (bfloat16 as float32); class names come from its metadata."""
    import safetensors

    try:
        with safetensors.safe_open(path, framework="numpy"):  # checks the header: offsets, shapes, types
            pass
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} ends in .safetensors but cannot be read as safetensors ({' '.join(str(error).split())[:200]})"
        ) from None
    return _Safetensors(path, header, 8 + size)


def _parse_names(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"metadata 'class_names' of {path} must be a JSON list of strings, got {text[:60]!r}")
    return names


# ---------------------------------------------------------------- limits


def memory_limit() -> int:
    """Bytes that one array may take: half the memory of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 36


def _shown(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 60 else f"{text[:60]}…"
