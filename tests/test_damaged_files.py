"""Files of runs, features, methods and data sets with random damage: read, or refused with one sentence. Never another error."""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classgap import load_run, posthoc
from classgap.checks import InputError
from classgap.data import load_data
from classgap.data.features import make_layout
from classgap.predictions import read_cost
from classgap.suites import append_results, read_results
from classgap.suites.results import collect_done
from classgap.suites.tables import suite_tables
from classgap.training import TrainConfig, train
from classgap.training.epoch import read_log
from image_files import write_image
from malformed import damaged
from restructured import idx_case, json_case, other_array, pick

Y = np.arange(24) % 3
X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
SCORES = 3.0 * np.eye(3)[Y] + X[:, :3]
SETTINGS = ["epochs=1", "data.per_class=4", "model=mlp-4", "batch=16", "data.val_fraction=0.2"]
Files = dict[str, bytes]
Change = Callable[[bytes, np.random.Generator], bytes]


ARRAYS = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "class_names": np.array(["a", "b", "c"])}


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **ARRAYS)  # type: ignore[arg-type]
    return buffer.getvalue()


def features() -> bytes:
    """A file of features, as ``classgap features`` writes it."""
    names = b'["%s"]' % b'","'.join(b"s%d" % i for i in range(24))
    arrays = {"x_train": X, "x_test": X, "y_train": Y, "y_test": Y, "ids_train": np.frombuffer(names, np.uint8)}
    types = {"x": torch.float32, "y": torch.int64, "i": torch.uint8}
    layout = {name: (types[name[0]], array.shape) for name, array in arrays.items()}
    about = {"class_names": ["a", "b", "c"], "fingerprint": "f", "model": "m", "data": "d"}
    return make_layout(layout, about)[1] + b"".join(array.tobytes() for array in arrays.values())


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(
        struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


def mnist() -> Files:
    images, labels = np.zeros((6, 4, 4), np.uint8), np.arange(6, dtype=np.uint8)
    return {
        f"MNIST/raw/{part}-{kind}-ubyte.gz": idx(array)
        for part in ("train", "t10k")
        for kind, array in (("images-idx3", images), ("labels-idx1", labels))
    }


def cifar() -> Files:
    batch = {"data": np.zeros((6, 3072), np.uint8), "fine_labels": [0, 1, 0, 1, 0, 1]}
    parts = {"train": batch, "test": batch, "meta": {"fine_label_names": ["a", "b"]}}
    return {f"cifar-100-python/{name}": pickle.dumps(part) for name, part in parts.items()}


def image() -> bytes:
    buffer = io.BytesIO()
    from PIL import Image

    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def method() -> Files:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        posthoc.save(posthoc.CRT().fit(SCORES, Y, features=X), folder)
        return contents(Path(folder))


def sets() -> bytes:
    return b'{"coverage": 0.9, "scores_kind": "logits", "classes": ["a", "b", "c"], "threshold": [0.1, 0.2, 0.3]}'


def contents(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_sets(folder: Path) -> object:
    return posthoc.PredictionSets.load(folder / "sets.json").predict(SCORES)


def read_method(folder: Path) -> object:
    found = posthoc.load(folder).transform(SCORES, features=X)
    assert not np.isnan(found).any()
    return found


def read_data(name: str, **options: Any) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        sets = load_data(str(folder / name), **options)
        assert len(sets.train.y) > 0
        assert int(sets.train.y.max()) < len(sets.class_names)
        return sets

    return read


def prepared(name: str) -> Callable[[Path], object]:
    return lambda folder: load_data(name, root=str(folder), partial=True, val_fraction=0.0)


TABLE = b"path,label,split\na.png,cat,train\nb.png,dog,train\nc.png,cat,test\nd.png,dog,test\n"
PICTURES = {f"{name}.png": image() for name in "abcd"}
COST = b'{"a": {"a": 0, "b": 1}, "b": {"a": 2, "b": 0}}'

# Content of the files, and what reads the folder; only the first file is damaged where ``one`` says so.
READERS: dict[str, tuple[Files, Callable[[Path], object]]] = {
    "method": (method(), read_method),
    "prediction sets": ({"sets.json": sets()}, read_sets),
    "features": ({"f.safetensors": features()}, read_data("f.safetensors")),
    "arrays": ({"a.npz": npz()}, read_data("a.npz")),
    "mnist": (mnist(), prepared("mnist")),
    "cifar": (cifar(), prepared("cifar100")),
    "table": ({"t.csv": TABLE, **PICTURES}, read_data("t.csv", val_fraction=0.0)),
    "list": ({"t.txt": b"a.png 0\nb.png 1\nc.png 0\nd.png 1\n" * 3, **PICTURES}, read_data("t.txt", val_fraction=0.0)),
    "cost": ({"c.json": COST}, lambda folder: read_cost(folder / "c.json")),
    "cost table": ({"c.csv": b"true,a,b\na,0,1\nb,2,0\n"}, lambda folder: read_cost(folder / "c.csv")),
}


def write_files(files: Files, folder: Path) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def attempt(
    files: Files, read: Callable[[Path], object], folder: Path, rng: np.random.Generator, change: Change
) -> str:
    """Change one of the files and read them: "read" or "refused"; anything else is raised."""
    shutil.rmtree(folder, ignore_errors=True)
    name = sorted(files)[int(rng.integers(len(files)))]
    changed = {**files, name: change(files[name], rng)}
    write_files(changed, folder)
    try:
        read(folder)
    except InputError as error:
        return "refused" if 20 < len(str(error)) < 2000 else "refused without a sentence"
    except OSError:  # the name of a file in a table may be too long; the command line has a sentence for these
        return "refused"
    except Exception as error:
        raise AssertionError(f"{name} with {changed[name][:300]!r}") from error
    return "read"


def loop(
    name: str,
    files: Files,
    read: Callable[[Path], object],
    folder: Path,
    count: int,
    seed: int,
    change: Change = damaged,
) -> Counter[str]:
    rng = np.random.default_rng([seed, *name.encode()])
    write_files(files, folder)
    read(folder)  # without damage
    outcomes = Counter(attempt(files, read, folder, rng, change) for _ in range(count))
    assert outcomes.keys() <= {"read", "refused"}
    return outcomes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_random_damage_is_refused_or_read(name: str, tmp_path: Path) -> None:
    outcomes = loop(name, *READERS[name], tmp_path / "files", 25, seed=0)
    assert outcomes["refused"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_much_random_damage_is_refused_or_read(name: str, tmp_path: Path) -> None:
    print(name, dict(loop(name, *READERS[name], tmp_path / "files", 600, seed=1)))


# ---------------------------------------------------------------- other structure


def outcome(read: Callable[[Path], object], folder: Path, content: bytes) -> str:
    try:
        read(folder)
    except InputError as error:
        return "refused" if 20 < len(str(error)) < 2500 else "refused without a sentence"
    except Exception as error:
        raise AssertionError(f"{content[:300]!r}") from error
    return "read"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["prediction sets", "cost"])
def test_json_of_another_structure_is_refused_or_read(name: str, count: int, tmp_path: Path) -> None:
    (files, read), rng, outcomes = READERS[name], np.random.default_rng(count), Counter[str]()
    ((path, content),) = files.items()
    for _ in range(count):
        changed = json_case(content, rng)
        write_files({path: changed}, tmp_path)
        outcomes[outcome(read, tmp_path, changed)] += 1
    assert outcomes["refused"] + outcomes["read"] == count
    assert outcomes["refused"] > 0


@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_idx_files_of_another_structure_are_refused_or_read(count: int, tmp_path: Path) -> None:
    files, rng, outcomes = mnist(), np.random.default_rng(count), Counter[str]()
    for _ in range(count):
        path, changed = idx_case(rng)
        write_files({**files, path: changed}, tmp_path)
        outcomes[outcome(prepared("mnist"), tmp_path, changed)] += 1
        shutil.rmtree(tmp_path / "MNIST")
    assert outcomes["refused"] + outcomes["read"] == count
    assert min(outcomes.values()) > count // 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_training_arrays_of_another_structure_are_refused_or_read(count: int, tmp_path: Path) -> None:
    """Where labels are whole numbers and inputs finite numbers, what is read must be what NumPy holds."""
    rng, outcomes = np.random.default_rng(count), Counter[str]()
    for _ in range(count):
        arrays = dict(ARRAYS)
        for _ in range(int(rng.integers(1, 3))):
            name = pick(rng, sorted(arrays))
            with contextlib.suppress(ValueError, TypeError, OverflowError, IndexError), np.errstate(all="ignore"):
                arrays[name] = other_array(arrays[name], rng)
        np.savez(tmp_path / "a.npz", allow_pickle=True, **arrays)

        def read(folder: Path, arrays: dict[str, Any] = arrays) -> None:
            sets = load_data(str(folder / "a.npz"), val_fraction=0.0)
            if all(arrays[f"y_{part}"].dtype.kind in "iu" for part in ("train", "test")):
                assert sets.train.y.tolist() == arrays["y_train"].tolist()
                assert np.array_equal(
                    np.asarray(sets.train.x), arrays["x_train"].astype(np.float32).reshape(sets.train.x.shape)
                )

        outcomes[outcome(read, tmp_path, str({k: (v.dtype, v.shape) for k, v in arrays.items()}).encode())] += 1
    assert outcomes["refused"] + outcomes["read"] == count
    assert min(outcomes.values()) > count // 10


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A finished run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train(TrainConfig().override(SETTINGS), folder, accelerator="cpu")
    return {name: content for name, content in contents(folder).items() if not name.endswith(".lock")}


def read_again(folder: Path) -> object:
    return load_run(folder).scores(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


def resumed(folder: Path) -> object:
    read_log(folder / "log.jsonl")
    return train(TrainConfig().override(SETTINGS), folder, accelerator="cpu", resume=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("read", [read_again, resumed])
def test_a_damaged_run_is_refused_or_read(run: Files, read: Any, count: int, tmp_path: Path) -> None:
    mine = run if read is resumed else {name: run[name] for name in ("run.json", "model.safetensors")}
    outcomes = loop(read.__name__, mine, read, tmp_path / "run", count, seed=2)
    assert outcomes["refused"] > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "read"), [("run.json", read_again), ("run.json", resumed), ("log.jsonl", resumed)])
def test_a_run_with_json_of_another_structure_is_refused_or_read(
    run: Files, name: str, read: Any, count: int, tmp_path: Path
) -> None:
    rng, outcomes, folder = np.random.default_rng(count), Counter[str](), tmp_path / "run"
    for _ in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        changed = json_case(run[name], rng)
        write_files({**run, name: changed}, folder)
        outcomes[outcome(read, folder, changed)] += 1
    print(name, dict(outcomes))
    assert outcomes["refused"] + outcomes["read"] == count
    assert outcomes["refused"] > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("changed", [damaged, json_case])
def test_changed_results_are_refused_or_read(done: Any, changed: Any, count: int, tmp_path: Path) -> None:
    suite, out, results = done
    markers = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("done")}
    assert markers
    files = {"results.jsonl": (out / "results.jsonl").read_bytes(), **markers}

    def read(folder: Path) -> object:
        found = read_results([folder / "results.jsonl"])
        for result in found.values():
            for candidate in result.candidates:
                assert len(result.right(candidate)) == result.support.sum()
        tables = suite_tables(suite, found)
        append_results(folder / "results.jsonl", list(results.values()))
        return tables, collect_done(suite.jobs(), folder)

    assert loop("results", files, read, tmp_path / "out", count, 3, changed)["refused"] > 0


def test_pictures_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    for k, name in enumerate("abcd"):
        write_image(tmp_path / f"{name}.png", k)
    (tmp_path / "t.csv").write_bytes(TABLE)
    (tmp_path / "b.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(InputError, match=r"b\.png"):
        load_data(str(tmp_path / "t.csv"), val_fraction=0.0)
