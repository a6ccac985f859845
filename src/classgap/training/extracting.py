"""Features of a frozen network for every sample of a data set, computed once and written to a file.

An extraction that was interrupted continues where it stopped. Nothing half-written is taken for finished: the file has another
name until it is complete, and its place on the disk is taken before the first sample is computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classgap.checks import InputError, one_of, printable
from classgap.data import MEMORY_MB, Normalise, Split, TrainingData
from classgap.data.features import DTYPES, Layout, make_layout
from classgap.heads import FeatureTap
from classgap.models import open_model, text_encoder
from classgap.models.weights import weights_file
from classgap.training.build import for_network
from classgap.training.config import TrainConfig, read_run
from classgap.training.outputs import chunk_size
from classgap.training.predictor import find_device, load_run
from classgap.training.run import open_data
from classgap.writing import naming, replace_file, write

Watch = Callable[[int, int], None]
_FLUSH_SECONDS = 10.0  # between two flushes to the disk: what a killed extraction loses at most, besides a batch


@dataclass(frozen=True)
class FeaturesFile:
    """A finished file of features: ``samples`` vectors of ``width`` numbers; ``resumed`` of them were there already."""

    path: Path
    samples: int
    width: int
    resumed: int
    notes: tuple[str, ...]


def features(
    model: str | Path,
    data: str,
    out: str | Path,
    *,
    settings: Sequence[str] = (),
    dtype: str = "float32",
    device: str = "cpu",
    workers: int | None = None,
    batch: int | None = None,
    watch: Watch | None = None,
) -> FeaturesFile:
    """Write the features of a frozen network for a data set: the inputs of its last layer, in evaluation mode.

    The file is a data set for ``classgap train --set data=FILE --set model=linear`` and for :func:`classgap.probe`. It has all
    training and test samples; fewer samples, long tails and validation samples are taken when it is used.

    Args:
        model: A network as in ``model=``, with its published weights unless ``settings`` say otherwise, or the folder of a run.
        data: A data set as in ``data=``.
        out: The file, ``NAME.safetensors``.
        settings: Settings of network and data, e.g. ``["model.pretrained=weights.pth", "data.size=224"]``.
        dtype: ``"float32"``, ``"float16"`` or ``"bf16"``, the type in the file; half the size, about three or two digits.
        workers: Processes that decode image files.
        batch: Samples of one forward pass; by default as many as fit 8 million numbers, at most 500.
        watch: Called with the number of finished samples and of all.
    """
    one_of("dtype", dtype, DTYPES)
    path, where = Path(out), find_device(device)
    if path.suffix != ".safetensors":
        raise InputError(f"--out must end in .safetensors, got {path.name!r}")
    network, normalise, sets, notes, weights = _open(model, data, settings, workers)
    network.to(where).eval()
    _try_one(model, network, normalise, sets, where)
    splits = {"train": sets.train, **({} if sets.val is None else {"val": sets.val}), "test": sets.test}
    head: Any = network.head
    about: dict[str, Any] = {
        "model": str(model),
        "data": sets.name,
        "class_names": list(sets.class_names),
        "settings": list(settings),
    }
    identity = json.dumps([about, sets.split_hash, weights, dtype, list(sets.in_shape)])
    about["fingerprint"] = hashlib.sha256(identity.encode()).hexdigest()[:16]
    layout, first = make_layout(_tensors(splits, head.in_features, DTYPES[dtype]), about)
    with naming(path), _Unfinished(path, layout, first, about["fingerprint"]) as file:
        total, resumed = sum(map(len, splits.values())), file.done
        _write_labels(file, splits)
        for x, begin, part in _chunks(splits, resumed, batch or chunk_size(sets.in_shape)):
            with torch.no_grad():
                found = network(normalise(x.to(where)))[1]
            file.add(f"x_{part}", begin, _rounded(found, dtype))
            if watch is not None:
                watch(file.done, total)
        file.finish()
    return FeaturesFile(path, total, head.in_features, resumed, notes)


def _rounded(features: Tensor, dtype: str) -> Tensor:
    rounded = features.to("cpu", DTYPES[dtype])
    if not bool(torch.isfinite(rounded).all()) and bool(torch.isfinite(features).all()):
        raise InputError(f"features of up to {features.abs().max().item():.3g} do not fit into {dtype}; use float32")
    return rounded


def _try_one(
    model: str | Path, network: FeatureTap, normalise: Normalise, data: TrainingData, where: torch.device
) -> None:
    """Raise, before there is a file, where the network cannot take the samples."""
    sample = next(iter(data.test.read([torch.arange(1)]))).to(where)
    try:
        with torch.no_grad():
            network(normalise(sample))
    except (RuntimeError, AssertionError, ValueError) as error:  # whatever a layer says about another shape
        raise InputError(
            f"the network {model} cannot take the samples of {data.name}, of shape {data.in_shape} "
            f"({printable(' '.join(str(error).split())[:200])}); choose other data, or set data.size for images"
        ) from error


def _open(
    model: str | Path, data: str, settings: Sequence[str], workers: int | None
) -> tuple[FeatureTap, Normalise, TrainingData, tuple[str, ...], str]:
    """The network, its pre-processing, the data, notes, and what tells the weights from others."""
    trained = read_run(Path(model)) if Path(model).is_dir() else None
    if trained is not None:
        run = load_run(model)
        if not isinstance(run.model, FeatureTap):
            raise InputError(f"the run in {model} has several networks; features are those of a single one")
        read = ("size", "resize", "interpolation", "test_fraction")
        files = [f"data.{name}={value}" for name in read if (value := getattr(trained.data, name)) is not None]
        config = TrainConfig().override([*files, *settings, f"data={data}", "data.val_fraction=0", "data.augment=none"])
        encode = run.expected.encode
        sets = open_data(config.data, workers=workers, memory=MEMORY_MB, encode=encode)
        return run.model, run.normalise, sets, sets.notes, _stamp(Path(model) / "model.safetensors")
    usual = [] if ":" not in str(model) else ["model.pretrained=true"]
    config = TrainConfig().override(
        [f"model={model}", *usual, *settings, f"data={data}", "data.val_fraction=0", "data.augment=none"]
    )
    encode = text_encoder(config.model.name, config.model.tokens)
    sets = for_network(config.model, open_data(config.data, workers=workers, memory=MEMORY_MB, encode=encode))
    torch.manual_seed(config.seed)  # of networks without weights
    built = open_model(config.model.name, sets.num_classes, sets.in_shape, config.model.pretrained)
    channels_last = config.channels_last and len(sets.in_shape) == 3
    if channels_last:
        built.model.to(memory_format=torch.channels_last)
    file = weights_file(config.model.pretrained)
    normalise = Normalise(sets.mean, sets.std, channels_last=channels_last)
    # what a file of weights says about the head does not matter here
    random = (
        () if config.model.pretrained else ("the network has random weights; --set model.pretrained=FILE loads others",)
    )
    return FeatureTap(built.model), normalise, sets, (*sets.notes, *random), "" if file is None else _stamp(file)


def _stamp(path: Path) -> str:
    state = path.stat()
    return f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"


def _tensors(
    splits: dict[str, Split], width: int, dtype: torch.dtype
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for part, split in splits.items():
        tensors[f"x_{part}"] = dtype, (len(split), width)
    for part, split in splits.items():
        tensors[f"y_{part}"] = torch.int64, (len(split),)
    for part, split in splits.items():
        if split.ids is not None:
            tensors[f"ids_{part}"] = torch.uint8, (len(json.dumps(split.ids).encode()),)
    return tensors


def _write_labels(file: _Unfinished, splits: dict[str, Split]) -> None:
    for part, split in splits.items():
        file.put(f"y_{part}", split.y)
        if split.ids is not None:
            file.put(f"ids_{part}", torch.frombuffer(bytearray(json.dumps(split.ids).encode()), dtype=torch.uint8))


def _chunks(splits: dict[str, Split], done: int, batch: int) -> Any:
    """Samples, number of the first one in its part, and the part, from sample ``done`` of all on."""
    for part, split in splits.items():
        begin = min(done, len(split))
        done -= begin
        rows = torch.split(torch.arange(begin, len(split)), batch) if begin < len(split) else ()
        for chunk, x in zip(rows, split.read(rows), strict=True):
            yield x, int(chunk[0]), part


class _Unfinished:
    """A file of features while it is written, beside its final name, with a note of how many samples are safely on the disk."""

    def __init__(self, path: Path, layout: Layout, first: bytes, fingerprint: str) -> None:
        self.path, self.layout, self.fingerprint = path, layout, fingerprint
        self.part = path.with_name(f"{path.name}.part")
        self.note = path.with_name(f"{path.name}.part.json")
        self.done = self._found()
        self._first, self._flushed = first, time.monotonic()

    def _found(self) -> int:
        """Finished samples of an earlier attempt at the same file."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            note = json.loads(self.note.read_text())
            if note["fingerprint"] == self.fingerprint and self.part.stat().st_size == self.layout.size:
                return int(note["done"])
        return 0

    def __enter__(self) -> _Unfinished:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.done:
            self.note.unlink(missing_ok=True)
            self.part.unlink(missing_ok=True)
        self.handle = self.part.open("r+b" if self.done else "w+b")
        if not self.done:
            try:
                _allocate(self.handle.fileno(), self.layout.size)
            except OSError:
                self.handle.close()
                self.part.unlink(missing_ok=True)
                raise
            self.handle.write(self._first)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.handle.closed:
            return
        with contextlib.suppress(OSError):  # interrupted: the next attempt goes on from here
            self._flush()
        self.handle.close()

    def put(self, name: str, tensor: Tensor, row: int = 0) -> None:
        """Write rows of a tensor."""
        width = tensor[0].numel() * tensor.element_size() if len(tensor) else 0
        self.handle.seek(self.layout.offset(name) + row * width)
        plain = tensor.contiguous().view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor.contiguous()
        self.handle.write(plain.numpy().tobytes())

    def add(self, name: str, row: int, tensor: Tensor) -> None:
        """Write the features of the next samples."""
        self.put(name, tensor, row)
        self.done += len(tensor)
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        self.handle.flush()
        os.fsync(self.handle.fileno())
        write(self.note, json.dumps({"fingerprint": self.fingerprint, "done": self.done}))
        self._flushed = time.monotonic()

    def finish(self) -> None:
        """Give the file its name."""
        self._flush()
        self.handle.close()
        replace_file(self.part, self.path)
        self.note.unlink(missing_ok=True)


def _allocate(handle: int, size: int) -> None:
    """Take the place on the disk, so that a full one is noticed before hours of work."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)
