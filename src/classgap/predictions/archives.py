"""Read NPZ and safetensors archives into plain NumPy arrays. Pickles are never loaded."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError

Arrays = dict[str, NDArray[Any]]

_SAFETENSORS_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip


def read_npz(path: Path) -> Arrays:
    """All arrays of an NPZ file. Pickled arrays are rejected, since loading a pickle executes code."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} ends in .npz but is not an NPZ archive; write it with numpy.savez")
    arrays: Arrays = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = _read_member(path, archive, name)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise InputError(f"{path} is a damaged NPZ archive ({error}); write it again") from None
    return arrays


def _read_member(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        array = archive[name]
    except ValueError as error:
        if "pickle" not in str(error).lower():
            raise InputError(f"array {name!r} in {path} cannot be read ({error})") from None
        raise InputError(
            f"array {name!r} in {path} is pickled (dtype object), which is unsafe to load; "
            "save it as numbers or as fixed-width text: np.asarray(names, dtype=str)"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"member {name!r} of {path} is not a NumPy array; write the file with numpy.savez")
    return array


def read_safetensors(path: Path) -> Arrays:
    """All tensors of a safetensors file (bfloat16 as float32); class names come from its metadata."""
    import safetensors

    data = path.read_bytes()
    try:
        deserialize: Any = safetensors.deserialize
        tensors = deserialize(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (safetensors.SafetensorError, ValueError) as error:
        raise InputError(f"{path} ends in .safetensors but cannot be read as safetensors ({error})") from None
    arrays = {name: _tensor(path, name, entry) for name, entry in tensors}
    names = header.get("__metadata__", {}).get("class_names")
    if names is not None:
        arrays["class_names"] = np.array(_parse_names(path, names), dtype=str)
    return arrays


def _tensor(path: Path, name: str, entry: dict[str, Any]) -> NDArray[Any]:
    if entry["dtype"] == "BF16":
        halves = np.frombuffer(entry["data"], dtype="<u2").astype(np.uint32)
        return np.reshape((halves << 16).view(np.float32), entry["shape"])
    if entry["dtype"] not in _SAFETENSORS_DTYPES:
        raise InputError(f"tensor {name!r} in {path} has dtype {entry['dtype']}; save it as float32 or int64")
    dtype = _SAFETENSORS_DTYPES[entry["dtype"]]
    return np.reshape(np.frombuffer(entry["data"], dtype=dtype), entry["shape"])


def _parse_names(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"metadata 'class_names' of {path} must be a JSON list of strings, got {text[:60]!r}")
    return names
