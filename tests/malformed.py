"""Builds prediction files that are damaged, hostile or unusual. Nothing binary is committed."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

HEADER = "y_true,y_pred\n"
SCORES = "y_true,score_0,score_1\n"
Y, DIGITS = np.arange(60) % 3, "9" * 5000
LARGEST = Y.astype(np.uint64) + np.uint64(2**64 - 3)
Content = bytes | str | Callable[[Path], object]


def arrays(**more: Any) -> dict[str, Any]:
    """Arrays of a good archive: three classes, 60 samples."""
    rng = np.random.default_rng(0)
    return {"y_true": Y, "scores": 3 * np.eye(3)[Y] + rng.normal(size=(60, 3)), **more}


def npz(**content: Any) -> Callable[[Path], object]:
    return lambda path: np.savez_compressed(path, **content)


def members(content: Mapping[str, bytes], *, method: int = zipfile.ZIP_STORED) -> bytes:
    """A ZIP archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(text: str) -> bytes:
    """An NPZ archive whose first array has this header, followed by 24 bytes."""
    line = text.encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + bytes(24)
    return members({"y_true.npy": array, "y_pred.npy": npy(np.arange(3))})


def described(kind: str, shape: str) -> bytes:
    return header(f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}")


def marked(place: int, central: int, value: int) -> bytes:
    """An archive with one byte of every member's headers changed, e.g. the compression method."""
    data = bytearray(members({"y_true.npy": npy(np.arange(3)), "y_pred.npy": npy(np.arange(3))}))
    for signature, offset in ((b"PK\x03\x04", place), (b"PK\x01\x02", central)):
        at = data.find(signature)
        while at >= 0:
            data[at + offset] = value
            at = data.find(signature, at + 4)
    return bytes(data)


def tensors(entries: Any, *, size: int | None = None) -> bytes:
    """A safetensors file with this header, given as JSON or bytes, and 48 bytes of data."""
    head = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(head) if size is None else size) + head + np.arange(3).tobytes() * 2


def entry(first: int = 0, **changed: Any) -> dict[str, Any]:
    return {"dtype": "I64", "shape": [3], "data_offsets": [first, first + 24], **changed}


def labels(**changed: Any) -> dict[str, Any]:
    return {"y_true": entry(**changed), "y_pred": entry(24)}


def parquet(**columns: Any) -> Callable[[Path], object]:
    return lambda path: pl.DataFrame(columns).write_parquet(path)


def with_bias(bias: Any) -> Callable[[Path], object]:
    rng = np.random.default_rng(1)
    return npz(**arrays(features=rng.normal(size=(60, 4)), weight=rng.normal(size=(3, 4)), bias=bias))


def with_score(value: float) -> Callable[[Path], object]:
    found = arrays()
    found["scores"][3, 1] = value
    return npz(**found)


# Files that must be refused with one sentence, by name; the ending of the name says the format.
REFUSED: dict[str, Content] = {
    "one array.npz": npy(np.arange(3)),
    "no archive.npz": b"nothing",
    "cut off.npz": members({"y_true.npy": npy(Y), "y_pred.npy": npy(Y)})[:-40],
    "unknown compression.npz": marked(8, 10, 99),
    "encrypted.npz": marked(6, 8, 1),
    "array twice.npz": members({"y_true.npy": npy(Y), "y_true": npy(Y), "y_pred.npy": npy(Y)}),
    "text member.npz": members({"y_true": b"hello", "y_pred.npy": npy(Y)}),
    "huge shape.npz": described("'<i8'", "(1000000000000,)"),
    "overflowing shape.npz": described("'<i8'", "(4294967296, 4294967296)"),
    "negative shape.npz": described("'<i8'", "(-3,)"),
    "shape with 5000 digits.npz": described("'<i8'", f"({DIGITS},)"),
    "shape of floats.npz": described("'<i8'", "(3.0,)"),
    "empty text.npz": described("'<U0'", "(3000000000000,)"),
    "pickled.npz": described("'|O'", "(3,)"),
    "structured.npz": described("[('a', '<i8')]", "(3,)"),
    "void.npz": described("'|V8'", "(3,)"),
    "complex.npz": described("'<c16'", "(1,)"),
    "dates.npz": described("'<M8[s]'", "(3,)"),
    "half a header.npz": header("{'descr'"),
    "code in the header.npz": header("__import__('os').abort()"),
    "deep header.npz": header("(" * 900 + ")" * 900),
    "bias matrix.npz": with_bias(np.zeros((60, 3))),
    "bias number.npz": with_bias(np.float64(1)),
    "bias text.npz": with_bias(np.array(["a", "b", "c"])),
    "bias short.npz": with_bias(np.zeros(2)),
    "bias nan.npz": with_bias(np.full(3, np.nan)),
    "names matrix.npz": npz(**arrays(class_names=np.array([["a"], ["b"], ["c"]]))),
    "names fractions.npz": npz(**arrays(class_names=np.array([0.5, 1, 2]))),
    "names not UTF-8.npz": npz(**arrays(class_names=np.array([b"\xff", b"b", b"c"]))),
    "names twice.npz": npz(**arrays(class_names=np.array(["a", "a", "b"]))),
    "names short.npz": npz(**arrays(class_names=np.array(["a"]))),
    "names booleans.npz": npz(**arrays(class_names=np.array([True, False, True]))),
    "counts matrix.npz": npz(**arrays(train_counts=np.ones((3, 1), int))),
    "counts fractions.npz": npz(**arrays(train_counts=np.ones(3) / 2)),
    "counts negative.npz": npz(**arrays(train_counts=np.array([-1, 2, 3]))),
    "counts text.npz": npz(**arrays(train_counts=np.array(["1", "2", "3"]))),
    "counts huge.npz": npz(**arrays(train_counts=np.full(3, 2**63 + 5, np.uint64))),
    "score nan.npz": with_score(np.nan),
    "score inf.npz": with_score(np.inf),
    "labels matrix.npz": npz(y_true=np.zeros((60, 2), int), y_pred=Y),
    "labels fractions.npz": npz(y_true=np.full(60, 0.5), y_pred=Y),
    "labels none.npz": npz(y_true=np.array([], int), y_pred=np.array([], int)),
    "labels beyond the scores.npz": npz(y_true=np.full(60, 10**12), scores=arrays()["scores"]),
    "labels not UTF-8.npz": npz(y_true=np.array([b"\xff\xfe"] * 60), y_pred=np.array([b"\xff\xfe"] * 60)),
    "labels of other length.npz": npz(y_true=Y, y_pred=Y[:50]),
    "metadata list.safetensors": tensors({"__metadata__": [], **labels()}),
    "metadata number.safetensors": tensors({"__metadata__": {"class_names": 3}, **labels()}),
    "names no JSON.safetensors": tensors({"__metadata__": {"class_names": "abc"}, **labels()}),
    "names deep.safetensors": tensors({"__metadata__": {"class_names": "[" * 100_000}, **labels()}),
    "deep header.safetensors": tensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "overflowing shape.safetensors": tensors(labels(shape=[2**62, 4])),
    "negative shape.safetensors": tensors(labels(shape=[-3])),
    "shape with 5000 digits.safetensors": tensors(b'{"y_true":{"dtype":"I64","shape":[' + DIGITS.encode() + b"]}}"),
    "offsets beyond the end.safetensors": tensors(labels(data_offsets=[0, 10**12])),
    "unknown dtype.safetensors": tensors(labels(dtype="F8_E4M3", shape=[24])),
    "no dtype.safetensors": tensors({"y_true": {"shape": [3]}, "y_pred": entry(24)}),
    "header list.safetensors": tensors([1]),
    "header not UTF-8.safetensors": tensors(b'{"\xff":1}'),
    "header size.safetensors": tensors(labels(), size=2**63),
    "zeros.safetensors": bytes(8),
    "three bytes.safetensors": bytes(3),
    "latin1.csv": HEADER.encode() + "é,é\nb,b\n".encode("latin1"),
    "utf16.csv": (HEADER + "a,a\n").encode("utf-16"),
    "lone surrogate.csv": HEADER.encode() + b"\xed\xa0\x80,b\nb,b\n",
    "header only.csv": HEADER,
    "blank.csv": "\n\n\n",
    "nothing.csv": "",
    "zero byte.csv": HEADER + "a\0b,a\0b\nb,b\n",
    "row too short.csv": HEADER + "a,a\nb\n",
    "row too long.csv": HEADER + "a,a\nb,b,a\n",
    "open quote.csv": HEADER + '"a,a\nb,b\n',
    "one column.csv": "y_true\na\n",
    "column twice.csv": "y_true,y_pred,y_pred\na,a,b\nb,b,b\n",
    "column twice in another case.csv": "y_true,Y_TRUE,y_pred\na,b,a\n",
    "column twice with a space.csv": "y_true,y_pred, y_pred\na,a,b\n",
    "more samples than numbers.csv": "y_true,y_pred,n\na,a,9223372036854775807\na,a,9223372036854775807\nb,b,1\n",
    "no label.csv": HEADER + "a,\nb,b\n",
    "nan among numbers.csv": HEADER + "1,1\nnan,nan\n",
    "text score.csv": SCORES + "0,a,b\n1,1,2\n",
    "late text score.csv": SCORES + "0,1,2\n" * 11_000 + "1,a,2\n",
    "no score.csv": SCORES + "0,,1\n1,1,0\n",
    "nan score.csv": SCORES + "0,nan,1\n1,1,0\n",
    "huge score.csv": SCORES + "0,1e999,1\n1,1,0\n",
    "missing score column.csv": "y_true,score_0,score_2\n0,1,2\n1,1,2\n",
    "no Parquet.parquet": b"PAR1" + bytes(100),
    "lists as labels.parquet": parquet(y_true=[[1], [2]], y_pred=[1, 2]),
    "no labels.parquet": parquet(y_true=[None, None], y_pred=[None, None]),
    "lists of text.parquet": parquet(y_true=[0, 1], scores=[["a", "b"], ["c", "d"]]),
    "list with a gap.parquet": parquet(y_true=[0, 1], scores=[[1.0, None], [0.0, 1.0]]),
    "no list.parquet": parquet(y_true=[0, 1], scores=[None, [0.0, 1.0]]),
    "lists of other lengths.parquet": parquet(y_true=[0, 1], scores=[[1.0], [0.0, 1.0]]),
}  # fmt: skip

# Unusual files that are read, with the accuracy that is true.
READ: dict[str, tuple[Content, float]] = {
    "lzma.npz": (members({"y_true.npy": npy(Y), "y_pred.npy": npy(Y)}, method=zipfile.ZIP_LZMA), 1),
    "with a text file.npz": (members({"y_true.npy": npy(Y), "y_pred.npy": npy(Y), "readme.txt": b"hello"}), 1),
    "pickle that is not used.npz": (npz(y_true=Y, y_pred=Y, more=np.array([{}], dtype=object)), 1),
    "names bytes.npz": (npz(y_true=Y, y_pred=Y, class_names=np.array([b"a", b"b", b"c"])), 1),
    "long doubles.npz": (npz(y_true=Y, scores=np.eye(3)[Y].astype(np.longdouble)), 1),
    "another byte order.npz": (npz(y_true=Y.astype(">i4"), scores=np.eye(3)[Y].astype(">f4")), 1),
    "names with half a pair.npz": (npz(y_true=Y, y_pred=Y, class_names=np.array(["\ud800", "b", "c"])), 1),
    "names in another order.npz": (npz(y_true=Y, y_pred=Y, class_names=np.array(["1", "2", "0"])), 1),
    "large labels.npz": (npz(y_true=Y + 10**12, y_pred=(Y + 1) // 2 * 2 + 10**12), 2 / 3),
    "largest labels.npz": (npz(y_true=LARGEST, y_pred=LARGEST), 1),
    "negative bytes.npz": (npz(y_true=(Y * 100 - 100).astype(np.int8), y_pred=np.full(60, 100, np.int8)), 1 / 3),
    "Fortran order.npz": (npz(y_true=Y, scores=np.asfortranarray(np.eye(3)[Y])), 1),
    "no metadata.safetensors": (tensors({"__metadata__": None, **labels()}), 1),
    "carriage returns.csv": (HEADER.replace("\n", "\r\n") + "a,a\r\nb,a\r\n", 0.5),
    "byte-order mark.csv": (b"\xef\xbb\xbf" + HEADER.encode() + b"a,a\nb,b\n", 1),
    "semicolons.csv": ("y_true;y_pred\na;a\nb;a\n", 0.5),
    "control characters.csv": (HEADER + "\x1b[31ma,b\nb,b\n", 0.5),
    "large numbers.csv": (HEADER + f"{DIGITS},{DIGITS}\n1,1\n", 1),
    "other digits.csv": (HEADER + "１,１\n2,２\n", 0.5),
    "1 and 1.0.csv": (HEADER + "1,1.0\n2,2.0\n", 1),
    "1 and 1.0 in one column.csv": (HEADER + "1,1\n1.0,1\n2.0,2.0\n", 1),
    "a class called nan.csv": (HEADER + "nan,nan\nb,nan\n", 0.5),
    "late fractions.csv": (SCORES + "0,1,2\n" * 11_000 + "1,1.5,2\n" * 11_000, 0.5),
    "formula.csv": (HEADER + "'=a,=a\nb,b\n", 1),
}  # fmt: skip

# The same for files of class names and of training counts, for the classes a, b and c.
REFUSED_NAMES: dict[str, bytes] = {
    "not UTF-8.txt": b"\xff\xfe\n",
    "twice.txt": b"a\na\nb\n",
    "nothing.txt": b"",
    "gap.json": b'{"0": "a", "2": "b"}',
    "deep.json": b"[" * 100_000,
    "numbers.json": b"[1, 2, 3]",
    "nan.json": b"NaN",
    "digits.json": b"[" + DIGITS.encode() + b"]",
    "keys.json": b'{"0": "a", "00": "b", "1": "c"}',
    "key twice.json": b'{"0": "a", "1": "b", "1": "c"}',
}
REFUSED_COUNTS: dict[str, bytes] = {
    "one column.csv": b"class\na\n",
    "not UTF-8.csv": b"class,count\n\xff,3\n",
    "digits.csv": b"class,count\na," + DIGITS.encode() + b"\nb,1\nc,1\n",
    "large.csv": b"class,count\na,99999999999999999999\nb,1\nc,1\n",
    "negative.csv": b"class,count\na,-1\nb,1\nc,1\n",
    "fraction.csv": b"class,count\na,1.5\nb,1\nc,1\n",
    "nothing.csv": b"",
    "twice.csv": b"class,count\na,1\na,2\nb,2\nc,3\n",
    "missing.csv": b"class,count\na,1\n",
    "digits.json": b"[" + DIGITS.encode() + b", 1, 1]",
    "fraction.json": b"[1e30, 1, 1]",
    "boolean.json": b"[true, 1, 1]",
    "nested.json": b"[[1], [2], [3]]",
    "null.json": b"[null, 1, 2]",
    "text.json": b'"abc"',
    "deep.json": b"[" * 100_000,
    "null by name.json": b'{"a": null, "b": 1, "c": 1}',
    "list by name.json": b'{"a": [1], "b": [1], "c": [1]}',
    "short.json": b"[1, 2]",
}


def build(folder: Path, name: str, content: Content) -> Path:
    """Write one of these files."""
    path = folder / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """One or two random changes: a bit, a byte, a block that is removed, repeated or overwritten, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 3)):
        place = int(rng.integers(max(1, len(changed))))
        length = int(rng.integers(1, 12))
        kind = rng.integers(7)
        if kind == 0 and changed:
            changed[place] ^= 1 << int(rng.integers(8))
        elif kind == 1 and changed:
            changed[place] = int(rng.integers(256))
        elif kind == 2:
            del changed[place : place + length]
        elif kind == 3:
            changed[place:place] = changed[place : place + length]
        elif kind == 4:
            changed[place : place + length] = rng.bytes(length)
        elif kind == 5:
            changed[place:place] = rng.choice([b",", b"\n", b'"', b"\0", b"\xff", b"-", b"9" * 30, b"]", b"}", b"nan"])
        elif rng.random() < 0.3:
            del changed[place:]
    return bytes(changed)
