"""Small prediction files with a known confusion matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import save_file

from classgap import Predictions

NAMES = ["ant", "bee", "cat"]
TRUE = np.array([0, 0, 1, 1, 2, 2, 2])
PRED = np.array([0, 1, 1, 1, 2, 0, 2])
COUNTS = [[1, 1, 0], [0, 2, 0], [1, 0, 2]]


def confusion(found: Predictions) -> list[list[int]]:
    return found.confusion.counts.tolist()


def write(path: Path, columns: dict[str, Any]) -> Path:
    frame = pl.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


def archive(path: Path, **arrays: Any) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        names = arrays.pop("class_names", None)
        metadata = None if names is None else {"class_names": json.dumps(list(names))}
        save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path, metadata=metadata)
    return path
