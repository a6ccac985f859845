"""Malformed files are refused with one sentence, unusual ones are read correctly, and random damage is never a traceback."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import safetensors.numpy

import restructured
from classgap import Predictions, audit, posthoc
from classgap.checks import InputError
from classgap.predictions import read_names, read_train_counts
from classgap.predictions.archives import read_archive
from command_line import call
from malformed import (
    HEADER,
    READ,
    REFUSED,
    REFUSED_COUNTS,
    REFUSED_NAMES,
    SCORES,
    arrays,
    build,
    damaged,
    entry,
    members,
    npy,
    tensors,
)


def accuracy(found: Predictions) -> float:
    return float(found.confusion.correct.sum() / found.num_samples)


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_files_are_refused(name: str, tmp_path: Path) -> None:
    path = build(tmp_path, name, REFUSED[name])
    with pytest.raises(InputError) as error:
        Predictions.read(path)
    assert 20 < len(str(error.value)) < 700


@pytest.mark.parametrize("name", READ)
def test_unusual_files_are_read_correctly(name: str, tmp_path: Path) -> None:
    content, wanted = READ[name]
    found = Predictions.read(build(tmp_path, name, content))
    assert accuracy(found) == pytest.approx(wanted)
    assert all(name.isprintable() for name in found.classes)


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_malformed_class_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_names(build(tmp_path, name, REFUSED_NAMES[name]))


@pytest.mark.parametrize("name", REFUSED_COUNTS)
def test_malformed_training_counts_are_refused(name: str, tmp_path: Path) -> None:
    path = build(tmp_path, name, REFUSED_COUNTS[name])
    with pytest.raises(InputError):
        audit(["a", "b", "c"], ["a", "b", "c"], train_counts=read_train_counts(path))


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("", ".", tmp_path / "none.csv", tmp_path / "empty"):
        with pytest.raises(InputError):
            Predictions.read(path)
    for read in (read_names, read_train_counts):
        for path in (tmp_path, tmp_path / "none"):
            with pytest.raises(InputError):
                read(path)


def test_a_path_with_a_zero_byte_is_one_sentence() -> None:
    assert r"a\x00b.csv" in call("audit", "a\0b.csv").sentence


# ---------------------------------------------------------------- archives


def test_only_the_arrays_that_are_used_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 MB of a compressed file took 3.2 GB, because all arrays were read."""
    build(tmp_path, "bomb.npz", lambda path: np.savez_compressed(path, **arrays(), more=np.zeros(50_000_000, np.uint8)))
    monkeypatch.setattr("classgap.predictions.archives.memory_limit", lambda: 10_000)
    assert accuracy(Predictions.read(tmp_path / "bomb.npz")) > 0.9
    with pytest.raises(InputError, match=r"'more' in .* takes 0\.1 GB"):
        read_archive(tmp_path / "bomb.npz")["more"]


def test_every_bit_flip_in_the_data_of_an_archive_is_noticed(tmp_path: Path) -> None:
    good = build(tmp_path, "good.npz", lambda path: np.savez_compressed(path, **arrays())).read_bytes()
    (member,) = (m for m in zipfile.ZipFile(io.BytesIO(good)).infolist() if m.filename == "scores.npy")
    start = member.header_offset + 60
    for place in range(start, start + member.compress_size - 60, 131):
        changed = bytearray(good)
        changed[place] ^= 0x55
        with pytest.raises(InputError, match=r"'scores' in .* is damaged"):
            Predictions.read(build(tmp_path, "bad.npz", bytes(changed)))


# ---------------------------------------------------------------- parts of one data set


def test_parts_with_columns_in_another_order_are_read_by_name_or_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "a,a\nb,b\n")
    (tmp_path / "b.csv").write_text("y_pred,y_true\nb,a\nb,b\n")
    try:
        found = Predictions.read(tmp_path)
    except InputError:
        return
    assert found.confusion.counts.tolist() == [[1, 1], [0, 2]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (HEADER + "a,a\nb,b\n", "y_true\na\n"),
        (HEADER + "a,a\nb,b\n", "y_true;y_pred\na;a\n"),
        (SCORES + "0,1,0\n1,0,1\n", SCORES + "0,x,1\n"),
        (SCORES + "0,1,0\n1,0,1\n", "y_true,score_0\n0,1\n"),
    ],
)
def test_parts_that_do_not_fit_are_refused(first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / "b.csv").write_text(second)
    with pytest.raises(InputError):
        Predictions.read(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"class_names": np.array(["a", "c", "b"])},
        {"class_names": np.array(["a", "b", "c", "d"])},
        {"train_counts": np.array([1, 2, 4])},
        {"scores": np.zeros((60, 4))},
        {"weight": np.zeros((3, 2))},
    ],
)
def test_parts_of_archives_must_agree(changed: dict[str, np.ndarray], tmp_path: Path) -> None:
    usual = arrays(class_names=np.array(["a", "b", "c"]), train_counts=np.array([1, 2, 3]), weight=np.ones((3, 2)))
    np.savez(tmp_path / "a.npz", **usual)
    np.savez(tmp_path / "b.npz", **usual)
    assert Predictions.read(tmp_path).num_samples == 120
    np.savez(tmp_path / "b.npz", **(usual | changed))
    with pytest.raises(InputError):
        Predictions.read(tmp_path)


def test_a_folder_named_like_a_file_and_a_broken_link_among_parts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "a,a\nb,b\n")
    (tmp_path / "sub.csv").mkdir()
    (tmp_path / "sub.csv" / "b.csv").write_text(HEADER + "a,a\n")
    assert Predictions.read(tmp_path).num_samples == 3
    (tmp_path / "c.csv").symlink_to("nowhere.csv")
    with pytest.raises(InputError, match=r"c\.csv, but a link"):  # its rows must not be left out silently
        Predictions.read(tmp_path)


# ---------------------------------------------------------------- saved methods


def test_a_saved_method_with_other_arrays_is_refused(tmp_path: Path) -> None:
    scores = arrays()["scores"]
    y = arrays()["y_true"]
    for name, counts in (("a", [1, 2, 3]), ("b", [3, 2, 1])):
        posthoc.save(posthoc.LogitAdjustment().fit(scores, y, class_counts=counts), tmp_path / name)
    (tmp_path / "a" / "method.safetensors").write_bytes((tmp_path / "b" / "method.safetensors").read_bytes())
    with pytest.raises(InputError, match="does not match"):
        posthoc.load(tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [lambda a: a[:1], lambda a: a[0], lambda a: np.append(a, 0.0), lambda a: np.stack([a, a]), lambda a: a * np.inf],
    ids=["one", "a number", "one more", "two rows", "infinite"],
)
def test_a_saved_method_with_arrays_of_another_shape_is_refused(change: Any, tmp_path: Path) -> None:
    """Arrays of length 1 and single numbers were used for all classes."""
    folder = posthoc.save(posthoc.VectorScaling().fit(arrays()["scores"], arrays()["y_true"]), tmp_path)
    learned = safetensors.numpy.load_file(folder / "method.safetensors")
    content = safetensors.numpy.save({name: np.ascontiguousarray(change(array)) for name, array in learned.items()})
    settings = json.loads((folder / "method.json").read_text())
    settings["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "method.json").write_text(json.dumps(settings))
    (folder / "method.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="must hold finite numbers for 3 classes"):
        posthoc.load(folder)


def test_a_method_with_an_array_as_parameter_is_saved(tmp_path: Path) -> None:
    """It was a TypeError: arrays are no JSON."""
    scores, y = arrays()["scores"], arrays()["y_true"]
    method = posthoc.LowestCost(cost=1 - np.eye(3)).fit(scores, y)
    found = posthoc.load(posthoc.save(method, tmp_path))
    assert np.array_equal(found.predict(scores), method.predict(scores))


# ---------------------------------------------------------------- random damage


def confusion_by_hand(data: bytes) -> Counter[tuple[str, str]] | None:
    """Pairs of labels in a CSV file as Python's reader finds them; None where the two readers may differ."""
    try:
        rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    if not rows or rows[0] != ["y_true", "y_pred"] or any(len(row) not in (0, 2) for row in rows) or b'"' in data:
        return None
    return Counter((a, b) for a, b in (row for row in rows[1:] if row))


def names_of(found: Predictions) -> Counter[tuple[str, str]]:
    counts = found.confusion.counts
    return Counter({(found.classes[i], found.classes[j]): int(counts[i, j]) for i, j in np.argwhere(counts)})


def samples_of_formats() -> dict[str, bytes]:
    buffers = {kind: io.BytesIO() for kind in ("npz", "compressed", "parquet")}
    np.savez(buffers["npz"], **arrays())
    np.savez_compressed(buffers["compressed"], **arrays(class_names=np.array(["a", "b", "c"])))
    pl.DataFrame({"y_true": ["a", "b"] * 20, "y_pred": ["a", "a"] * 20}).write_parquet(buffers["parquet"])
    return {
        "p.csv": (HEADER + "cat,cat\ndog,cat\ncow,cow\n" * 8).encode(),
        "s.csv": (SCORES + "0,1.5,-2\n1,0.5,3e1\n" * 8).encode(),
        "a.npz": buffers["npz"].getvalue(),
        "c.npz": buffers["compressed"].getvalue(),
        "m.npz": members({"y_true.npy": npy(np.arange(3)), "y_pred.npy": npy(np.arange(3))}),
        "t.safetensors": tensors({"__metadata__": {"class_names": '["a", "b", "c"]'}, "y_true": entry(), "y_pred": entry(24)}),
        "p.parquet": buffers["parquet"].getvalue(),
        "names.txt": b"cat\ndog\ncow\n",
        "names.json": b'{"0": "cat", "1": "dog", "2": "cow"}',
        "counts.json": b'{"cat": 1, "dog": 12, "cow": 3}',
        "counts.csv": b"class,count\ncat,1\ndog,12\ncow,3\n",
    }  # fmt: skip


def check_damaged(name: str, data: bytes, path: Path) -> str:
    """Read a damaged file: "refused" or "read"; anything but an InputError is raised, and so is a wrong answer."""
    path.write_bytes(data)
    try:
        if name.startswith("names"):
            names = read_names(path)
            assert len(set(names)) == len(names) > 0
            assert all(isinstance(name, str) for name in names)
            return "read"
        if name.startswith("counts"):
            audit(["cat", "dog", "cow"], ["cat", "dog", "dog"], train_counts=read_train_counts(path))
            return "read"
        found = Predictions.read(path)
        audit(found.labels_only(), n_boot=100)
    except InputError as error:
        return "refused" if 10 < len(str(error)) < 2000 else "refused without a sentence"
    if path.suffix == ".npz" and found.scores is not None and name != "m.npz":  # protected by checksums
        assert np.array_equal(found.scores, arrays()["scores"])
        assert np.array_equal(found.y_true, arrays()["y_true"])
    if name == "p.csv" and (wanted := confusion_by_hand(data)) is not None:
        got = {(a.strip(), b.strip()): n for (a, b), n in names_of(found).items()}
        assert sum(got.values()) == sum(wanted.values()), (got, wanted)
        right = sum(n for (a, b), n in wanted.items() if a == b)
        assert sum(n for (a, b), n in got.items() if a == b) == right, (got, wanted)
    return "read"


def loop(folder: Path, count: int, seed: int) -> Counter[str]:
    samples, rng = samples_of_formats(), np.random.default_rng(seed)
    outcomes: Counter[str] = Counter()
    names = list(samples)
    for number in range(count):
        name = names[number % len(names)]
        data = damaged(samples[name], rng)
        try:
            outcomes[check_damaged(name, data, folder / name)] += 1
        except Exception as error:
            raise AssertionError(f"{name}, change {number} of seed {seed}: {data[:300]!r}") from error
    return outcomes


def test_random_damage_is_refused_or_read_correctly(tmp_path: Path) -> None:
    outcomes = loop(tmp_path, 220, seed=0)
    assert outcomes["refused"] + outcomes["read"] == 220
    assert min(outcomes.values()) > 10


@pytest.mark.slow
def test_much_random_damage_is_refused_or_read_correctly(tmp_path: Path) -> None:
    outcomes = loop(tmp_path, 4400, seed=1)
    print(dict(outcomes))
    assert outcomes["refused"] + outcomes["read"] == 4400
    assert min(outcomes.values()) > 400


# ---------------------------------------------------------------- other structure


def check_restructured(case: restructured.Case, folder: Path) -> str:
    """Read a well-formed file of another structure: refused, or read as a plain reading does, in every way of reading."""
    name, data, wanted = case
    (folder / name).write_bytes(data)
    try:
        found = Predictions.read(folder / name)
        audit(found.labels_only(), n_boot=100)
    except InputError as error:
        return "refused" if 20 < len(str(error)) < 2000 else "refused without a sentence"
    if wanted is not None:
        assert accuracy(found) == pytest.approx(wanted)
    if not name.endswith(("npz", "safetensors")):
        rows = Predictions.read(folder / name, rows=True)
        assert names_of(rows) == names_of(found)
        if found.scores is not None:
            batches = audit(Predictions.read(folder / name, batches=True), n_boot=100)
            assert batches.overall.value == pytest.approx(accuracy(found))
    return "read"


def restructured_loop(kind: str, folder: Path, count: int, seed: int) -> Counter[str]:
    rng, outcomes = np.random.default_rng([seed, *kind.encode()]), Counter[str]()
    for number in range(count):
        case = getattr(restructured, f"{kind}_case")(rng)
        try:
            outcomes[check_restructured(case, folder)] += 1
        except Exception as error:
            raise AssertionError(f"{kind}, file {number} of seed {seed}: {case[1][:600]!r}") from error
    return outcomes


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["text", "npz", "safetensors", "parquet"])
def test_other_structure_is_refused_or_read_as_plainly(kind: str, count: int, tmp_path: Path) -> None:
    outcomes = restructured_loop(kind, tmp_path, count, seed=count)
    print(kind, dict(outcomes))
    assert outcomes["refused"] + outcomes["read"] == count
    assert min(outcomes.values()) > count // 10


def test_numbers_with_spaces_are_numbers(tmp_path: Path) -> None:
    """``2`` and ``2 `` counted as two classes."""
    (tmp_path / "p.csv").write_text(HEADER + "0,0\n1, 1\n2,2 \n")
    (tmp_path / "q.csv").write_text(HEADER + "1.0,1.0\n 2.0,2.0\n2.0,1.0\n")
    assert audit(tmp_path / "p.csv").classes == ("0", "1", "2")
    assert accuracy(Predictions.read(tmp_path / "p.csv")) == 1
    (tmp_path / "p.csv").write_text(HEADER + "0, 0\n1,1\n2,inf\n2, 2\n")
    assert accuracy(Predictions.read(tmp_path / "p.csv")) == 0.75
    assert names_of(Predictions.read(tmp_path / "q.csv")) == {("1.0", "1.0"): 1, ("2.0", "2.0"): 1, ("2.0", "1.0"): 1}
    assert audit(["a", "b "], ["a", "b "], class_names=["a", "b "]).classes == ("a", "b ")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["audit", "compare", "fix"])
def test_every_malformed_file_is_one_sentence_on_the_command_line(verb: str, tmp_path: Path) -> None:
    good = build(tmp_path, "good.csv", HEADER + "a,a\nb,b\nb,a\nc,c\n" * 5)
    for name, content in REFUSED.items():
        path = build(tmp_path, name, content)
        arguments = {"audit": [path], "compare": [path, path], "fix": [path, "--out", tmp_path / "out"]}[verb]
        assert call(verb, *arguments).sentence
    if verb == "fix":
        return
    sides = [good] * (2 if verb == "compare" else 1)
    for name, data in REFUSED_NAMES.items():
        assert call(verb, *sides, "--names", build(tmp_path, name, data)).sentence
