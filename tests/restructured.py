"""Files whose structure is changed at random, but which stay well formed: other tokens, types, shapes, orders and encodings.

Unlike :func:`malformed.damaged`, which flips bytes, these changes pass checksums and parsers. Every file comes with the share of
correct predictions that a plain reading with pandas or NumPy finds, where that reading is beyond doubt.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Random = np.random.Generator
Case = tuple[str, bytes, float | None]
TOKENS = [
    *(
        "",
        " ",
        "nan",
        "NA",
        "None",
        "null",
        "1e0",
        "+1",
        " 1",
        "1 ",
        "01",
        "1_0",
        "1,5",
        "١",
        "0x1",
        "true",
        "True",
        "-0",
        "1.0",
    ),
    *(
        "1.5",
        "a\tb",
        "'a'",
        '"a',
        '""',
        "a;b",
        "#a",
        "\\N",
        "\xa0a",
        "é",
        "e\u0301",
        "a\u200b",
        "inf",
        "9" * 25,
        "=1+1",
    ),
]
Y, P = np.arange(24) % 3, (np.arange(24) % 3) * (np.arange(24) % 4 > 0)
SCORES = 2.0 * np.eye(3)[P] + np.linspace(0, 0.5, 72).reshape(24, 3)


def pick(rng: Random, items: list[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


# ---------------------------------------------------------------- text


def table_rows(rng: Random) -> list[list[str]]:
    """Header and rows of a table of labels, or of labels and scores."""
    if rng.random() < 0.5:
        names = pick(rng, [["cat", "dog", "ape"], ["0", "1", "2"], ["1.0", "2.0", "3.0"], ["true", "false", "maybe"]])
        return [["y_true", "y_pred"], *([names[a], names[b]] for a, b in zip(Y, P, strict=True))]
    rows = [[str(y), *(f"{s:.6g}" for s in row)] for y, row in zip(Y, SCORES, strict=True)]
    return [["y_true", "score_0", "score_1", "score_2"], *rows]


def change_rows(rows: list[list[str]], rng: Random) -> None:
    """Change cells, rows or columns in place."""
    kind, row = int(rng.integers(9)), int(rng.integers(1, len(rows)))
    column = int(rng.integers(len(rows[0])))
    if kind == 0:
        rows[row][column:] = [pick(rng, TOKENS), *rows[row][column + 1 :]]
    elif kind == 1:
        rows[row], rows[-1] = rows[-1], rows[row]
    elif kind == 2:
        order = rng.permutation(len(rows[0]))
        rows[:] = [[line[i] for i in order] if len(line) == len(order) else line for line in rows]
    elif kind == 3:
        rows.insert(row, list(pick(rng, rows[1:])))
    elif kind == 4:
        for line in rows:
            line.insert(column, pick(rng, ["x", "1", ""]))
        rows[0][column] = pick(rng, ["extra", "id", "weight", "label", "", "y_true ", "count", "score_3", "index"])
    elif kind == 5:
        rows[0][column] = pick(
            rng, [rows[0][column].upper(), f" {rows[0][column]}", rows[0][column][:-1], "target", "logit_0"]
        )
    elif kind == 6:
        for line in rows[1:]:
            line[:] = [f"{pick(rng, ['', ' '])}{cell}" if place == column else cell for place, cell in enumerate(line)]
    elif kind == 7:
        rows[row] = rows[row][: int(rng.integers(1, len(rows[row]) + 1))]
    else:
        rows.insert(row, list(rows[0]))


def text_case(rng: Random) -> Case:
    """A table as text, with another delimiter, quoting, line ends or encoding."""
    rows = table_rows(rng)
    for _ in range(int(rng.integers(0, 4))):
        change_rows(rows, rng)
    usual = [(",", "csv"), ("\t", "tsv"), (";", "csv")]
    comma, ending = pick(rng, [*usual, *usual, *usual, (",", "tsv"), ("\t", "csv"), ("|", "csv")])
    quote = pick(rng, [str, str, lambda cell: '"' + cell.replace('"', '""') + '"'])
    newline = "\n" if rng.random() < 0.7 else pick(rng, ["\r\n", "\r\n", "\r\n", "\r", "\n\n"])
    end = newline if rng.random() < 0.7 else pick(rng, ["", "", newline * 3, " "])
    text = newline.join(comma.join(map(quote, line)) for line in rows) + end
    encoding = "utf-8" if rng.random() < 0.7 else pick(rng, ["utf-8-sig", "utf-8-sig", "utf-16", "cp1252"])
    data = text.encode(encoding, "replace")
    return f"t.{ending}", data, by_pandas(data, comma)


def by_pandas(data: bytes, comma: str) -> float | None:
    """Share of correct rows as pandas reads them; None where it cannot, or where names of columns are not the usual ones."""
    try:
        frame = pd.read_csv(
            io.BytesIO(data), sep=comma, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False
        )
    except (ValueError, UnicodeError, pd.errors.ParserError):
        return None
    scores = [f"score_{k}" for k in range(3)]
    if list(frame.columns) == ["y_true", "y_pred"] or set(frame.columns) == {"y_true", "y_pred"}:
        true, pred = (pd.to_numeric(frame[name], errors="coerce") for name in ("y_true", "y_pred"))
        numbers = not (true.isna().any() or pred.isna().any())
        if not numbers and frame.apply(lambda column: column != column.str.strip()).any().any():
            return None  # names that differ in spaces alone are two classes, with a note
        same = true == pred if numbers else frame["y_true"] == frame["y_pred"]
    elif set(frame.columns) == {"y_true", *scores}:
        values = frame[scores].apply(pd.to_numeric, errors="coerce")
        same = values.to_numpy().argmax(axis=1) == pd.to_numeric(frame["y_true"], errors="coerce")
        if values.isna().any().any():
            return None
    else:
        return None
    return float(np.mean(same)) if len(frame) else None


# ---------------------------------------------------------------- arrays


def other_array(array: np.ndarray, rng: Random) -> np.ndarray:
    """The same values in another type, order or shape, or a few other values."""
    kinds: list[Callable[[], Any]] = [
        lambda: array.astype(pick(rng, ["f2", "f4", ">f8", ">i4", "i1", "u8", "?", "c8", "g", "i2"])),
        lambda: array.astype(pick(rng, ["U8", "S8", "O", "M8[s]", "m8[s]"])),
        lambda: np.asfortranarray(array),
        lambda: array[::-1].copy()[::-1],
        lambda: array.reshape(pick(rng, [(-1,), (-1, 1), (1, -1), (2, -1)])),
        lambda: array[: int(rng.integers(0, len(array) + 1))],
        lambda: np.where(rng.random(array.shape) < 0.05, pick(rng, [np.nan, np.inf, -1, 2**53 + 1, 1e300, 7]), array),
        lambda: array.T,
        lambda: np.array(array.flat[0]),
        lambda: array.astype([("a", array.dtype)]),
        lambda: np.ma.masked_equal(array, array.flat[0]).filled(),
        lambda: array + pick(rng, [0, 1, 0.0, 0.25]),
    ]
    return np.asarray(pick(rng, kinds)())


def arrays_of(rng: Random) -> dict[str, np.ndarray]:
    found = {"y_true": Y, **({"scores": SCORES} if rng.random() < 0.6 else {"y_pred": P})}
    if rng.random() < 0.3:
        found["class_names"] = pick(
            rng, [np.array(["cat", "dog", "ape"]), np.array(["2", "0", "1"]), np.array([b"a", b"b", b"c"])]
        )
    if rng.random() < 0.2:
        found["train_counts"] = pick(
            rng, [np.array([5, 6, 7]), np.array([5.0, 6.0, 7.5]), np.array([0, 0, 1]), np.array([1, 2])]
        )
    for _ in range(int(rng.integers(0, 3))):
        name = pick(rng, list(found))
        try:
            with np.errstate(all="ignore"):
                found[name] = other_array(found[name], rng)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return found


def by_numpy(found: dict[str, np.ndarray]) -> float | None:
    """Share of correct rows; None unless labels are whole numbers and everything else is as usual."""
    y = found["y_true"]
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        return None
    if "scores" not in found:
        p = found["y_pred"]
        return float(np.mean(y == p)) if p.shape == y.shape and p.dtype.kind in "iu" else None
    s = found["scores"]
    usable = s.ndim == 2 and s.shape == (len(y), 3) and s.dtype.kind in "fiu"
    return float(np.mean(s.argmax(axis=1) == y)) if usable and np.isfinite(s).all() else None


def npz_case(rng: Random) -> Case:
    found, buffer = arrays_of(rng), io.BytesIO()
    method = pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # names may occur twice
        for name, array in found.items():
            content = io.BytesIO()
            np.lib.format.write_array(
                content, array, version=pick(rng, [None, (1, 0), (2, 0), (3, 0)]), allow_pickle=True
            )
            shown = name if rng.random() < 0.95 else pick(rng, [name.upper(), f"d/{name}", f"{name}.npy", "é"])
            archive.writestr(f"{shown}.npy", content.getvalue())
        if rng.random() < 0.1:
            archive.writestr(pick(rng, ["y_true.npy", "more", "y_pred.npy"]), b"junk")
        archive.comment = pick(rng, [b"", b"", b"a comment"])
    whole = found.keys() <= {"y_true", "scores", "y_pred", "class_names"}
    return "a.npz", pick(rng, [b"", b"", b"junk"]) + buffer.getvalue(), by_numpy(found) if whole else None


TYPES = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u1": "U8",
    "u8": "U64",
    "b1": "BOOL",
}


def safetensors_case(rng: Random) -> Case:
    found = {name: array for name, array in arrays_of(rng).items() if array.dtype.str[1:] in TYPES}
    header: dict[str, Any] = {}
    body = b""
    for name, array in found.items():
        data = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
        entry = {
            "dtype": TYPES[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        header[name], body = entry, body + data
    changed = rng.random() < 0.4 and bool(header)
    if changed:
        entry = header[pick(rng, list(header))]
        key = pick(rng, ["dtype", "shape", "data_offsets"])
        entry[key] = pick(
            rng, [None, "F64", "BF16", [], [1], [24], [-1, 24], [0, 8], [8, 0], [10**18, 8], {}, 1.5, [24.0], "24"]
        )
    names: list[Any] = [{"class_names": text} for text in ('["a", "b", "c"]', "[]", 1)]
    header["__metadata__"] = pick(rng, [*names, {}, {"a": "b"}, None, []])
    text = json.dumps(header).encode() + b" " * int(rng.integers(0, 9))
    usual = "y_true" in found and ("scores" in found or "y_pred" in found) and not changed
    return "a.safetensors", struct.pack("<Q", len(text)) + text + body, by_numpy(found) if usual else None


# ---------------------------------------------------------------- Parquet


def parquet_case(rng: Random) -> Case:
    names = np.array(["cat", "dog", "ape"])
    columns: dict[str, Any] = {"y_true": pa.array(names[Y]), "y_pred": pa.array(names[P])}
    if rng.random() < 0.5:
        columns = {"y_true": pa.array(Y), **{f"score_{k}": pa.array(SCORES[:, k]) for k in range(3)}}
    known = True
    for _ in range(int(rng.integers(0, 3))):
        name = pick(rng, list(columns))
        kind = pick(rng, ["dictionary", "cast", "null", "nested", "binary", "decimal", "large", "extra"])
        try:
            if kind == "dictionary":
                columns[name] = columns[name].dictionary_encode()
            elif kind == "cast":
                columns[name] = columns[name].cast(
                    pick(rng, [pa.float32(), pa.int8(), pa.float16(), pa.string(), pa.bool_(), pa.date32()])
                )
                known = False
            elif kind == "null":
                columns[name] = pa.array([None, *columns[name].to_pylist()[1:]], columns[name].type)
                known = False
            elif kind == "nested":
                columns[name], known = pa.array([[value] for value in columns[name].to_pylist()]), False
            elif kind == "binary":
                columns[name], known = columns[name].cast(pa.binary()), False
            elif kind == "decimal":
                columns[name], known = columns[name].cast(pa.decimal128(20, 6)), False
            elif kind == "large":
                columns[name] = columns[name].cast(pa.large_string())
            else:
                columns[pick(rng, ["extra", "id", "weight", "Y_TRUE", "score_7"])], known = pa.array(Y), False
        except pa.ArrowException:
            continue
    buffer = io.BytesIO()
    table = pa.table(columns)
    if rng.random() < 0.2:
        table = table.select(rng.permutation(table.column_names).tolist())
    options: dict[str, Any] = {
        "row_group_size": int(rng.integers(1, 30)),
        "version": pick(rng, ["1.0", "2.4", "2.6"]),
        "compression": pick(rng, ["none", "snappy", "gzip", "zstd", "lz4"]),
        "use_dictionary": bool(rng.random() < 0.5),
    }
    pq.write_table(table, buffer, **options)
    return "p.parquet", buffer.getvalue(), float(np.mean(Y == P)) if known else None


# ---------------------------------------------------------------- IDX


def idx_case(rng: Random) -> tuple[str, bytes]:
    """A file of MNIST's images or labels, compressed, whose header or length is changed."""
    array = np.zeros((6, 4, 4), np.uint8) if rng.random() < 0.5 else np.arange(6, dtype=np.uint8)
    kind = "images-idx3" if array.ndim == 3 else "labels-idx1"
    shape = [int(n) for n in array.shape]
    if rng.random() < 0.4:
        shape[int(rng.integers(len(shape)))] = pick(rng, [0, 1, 5, 7, 2**31, 2**32 - 1])
    code, dims = 8, array.ndim
    if rng.random() < 0.3:
        code, dims = pick(rng, [8, 9, 11, 13, 14, 0, 255]), pick(rng, [array.ndim, array.ndim, 0, 2, 4, 200])
    data = struct.pack(">HBB", 0, code, dims) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()
    if rng.random() < 0.3:
        data = pick(rng, [data + b"more", data[:-1], data[:3], b"\1" + data[1:]])
    packed = gzip.compress(data)
    if rng.random() < 0.5:
        two = gzip.compress(data[:9]) + gzip.compress(data[9:])
        packed = pick(rng, [two, data, gzip.compress(packed), packed + b"tail", packed[:-4]])
    return f"MNIST/raw/{pick(rng, ['train', 't10k'])}-{kind}-ubyte.gz", packed


# ---------------------------------------------------------------- JSON and Python values

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e400,
    float("nan"),
    "",
    "x",
    "9" * 30,
    [],
    [[]],
    {},
    {"": None},
    [None],
    10**30,
    "\ud800",
]


def other_value(value: Any, rng: Random) -> Any:
    """``value`` with one part of it, at any depth, replaced, removed, repeated or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = pick(rng, list(value))
        kind = rng.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {**value, pick(rng, ["more", "", f"{key} "]): value[key]}
        return {**value, key: other_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = int(rng.integers(len(value)))
        kind = rng.random()
        if kind < 0.2:
            return value[:place] + value[place + 1 :]
        if kind < 0.4:
            return [*value, value[place]]
        return [*value[:place], other_value(value[place], rng), *value[place + 1 :]]
    return pick(rng, ODD)


def json_case(data: bytes, rng: Random) -> bytes:
    """The JSON object or the lines of JSON in ``data``, with one part changed."""
    lines = data.decode().splitlines() if b"\n{" in data else [data.decode()]
    place = int(rng.integers(len(lines)))
    lines[place] = json.dumps(other_value(json.loads(lines[place]), rng), ensure_ascii=bool(rng.random() < 0.5))
    return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
