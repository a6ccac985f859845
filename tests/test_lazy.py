"""Image files read by worker processes: the same batches, runs and predictions as from memory, with any number of workers."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from classgap.checks import InputError
from classgap.data import Batches, Normalise, load_data, policies, shuffled
from classgap.data.workers import default_workers, in_order
from classgap.training import TrainConfig, TrainProgress, train
from image_files import NEEDS_TORCHVISION, truncate, write_folder
from waiting import SECONDS

pytestmark = [
    NEEDS_TORCHVISION,
    # Python 3.12 and later warn of every fork of a process with threads; the workers compute in a single thread.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # on machines with a single core
]
SMALL = ["data.size=10", "model=resnet20", "epochs=2", "batch=8", "checkpoint_steps=2", "data.val_fraction=0.2"]
CROPS = "data.augment=resized_crop,flip"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(
        tmp_path_factory.mktemp("data") / "photos", {"train": 10, "test": 4}, size=(17, 14), suffix=".jpg"
    )


def _batches(photos: Path, memory: int, workers: int, augment: tuple[str, ...], **changes: Any) -> Batches:
    data = load_data(str(photos), size=10, val_fraction=0, augment=augment, workers=workers, memory=memory)
    settings: dict[str, Any] = {"batch": 7, "order": shuffled(30, 0), "policies": policies(data.augment, data.mean)}
    return Batches(data.train, **{**settings, "normalise": Normalise(data.mean, data.std), "seed": 0, **changes})


def _same(one: Any, two: Any) -> None:
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.index, b.index)
        assert (a.total, a.views) == (b.total, b.views)


def test_files_give_the_batches_of_memory_with_any_number_of_workers(photos: Path) -> None:
    augment = ("crop", "flip", "color_jitter")
    memory = _batches(photos, 1000, 0, augment)
    assert isinstance(memory.split.x, torch.Tensor)
    whole = list(memory.epoch(1))
    state = torch.get_rng_state()
    for workers in (0, 1, 3):
        files = _batches(photos, 0, workers, augment)
        assert not isinstance(files.split.x, torch.Tensor)
        _same(files.epoch(1), whole)
        _same(files.epoch(1, start=3), whole[3:])
    assert torch.equal(torch.get_rng_state(), state)  # dropout goes on as without workers


def test_views_of_files_agree_on_random_parts(photos: Path) -> None:
    load = partial(load_data, str(photos), size=10, val_fraction=0, workers=0, augment=("resized_crop", "flip"))
    assert load(view_augment=("resized_crop", "simclr")).view_augment == ("simclr",)
    with pytest.raises(
        InputError, match=r"data\.view_augment=flip: resized_crop works on the files, so it must come first"
    ):
        load(view_augment=("flip",))


def test_random_parts_depend_on_seed_epoch_and_position_only(photos: Path) -> None:
    make = partial(_batches, photos, 1000, augment=("resized_crop", "flip"))
    alone = make(workers=0)
    assert not isinstance(alone.split.x, torch.Tensor)  # random parts need the whole files
    assert alone.augmented
    assert len(alone.policies) == 1
    whole = list(alone.epoch(0))
    _same(make(workers=2).epoch(0), whole)
    _same(make(workers=2).epoch(0, start=2), whole[2:])
    assert not torch.equal(next(iter(alone.epoch(1))).x, whole[0].x)
    shares = [make(workers=rank, rank=rank, world=2).epoch(0) for rank in range(2)]
    for batch, *parts in zip(whole, *shares, strict=False):
        assert torch.equal(torch.cat([part.x[: len(part.y)] for part in parts]), batch.x)
    two = next(iter(make(workers=1, views=2).epoch(0)))
    assert not torch.equal(*two.x.chunk(2))

    from torchvision.transforms import v2

    files = alone.split.x
    with torch.random.fork_rng():
        torch.manual_seed(5)
        from PIL import Image

        expected = v2.RandomResizedCrop(10, antialias=True)(v2.PILToTensor()(Image.open(photos / files.ids[3])))
    assert torch.equal(files.batch([3], [5])[0], expected)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _fit(photos: Path, folder: Path, *settings: str, **options: Any) -> Any:
    config = TrainConfig().override([f"data={photos}", *SMALL, *settings])
    return train(config, folder, accelerator="cpu", **options)


def _equal(one: Path, two: Path) -> None:
    a, b = _weights(one), _weights(two)
    assert all(torch.equal(a[name], b[name]) for name in a)


class _StopError(Exception):
    pass


def _stop_at(step: int, position: TrainProgress) -> None:
    if position.step == step:
        raise _StopError


def test_runs_from_memory_and_from_files_agree_and_resume_with_other_workers(photos: Path, tmp_path: Path) -> None:
    first = _fit(photos, tmp_path / "memory", workers=0)
    second = _fit(photos, tmp_path / "files", workers=2, memory=0)
    _equal(tmp_path / "memory", tmp_path / "files")
    assert (first.test.scores == second.test.scores).all()
    whole = _fit(photos, tmp_path / "whole", CROPS, workers=0)
    with pytest.raises(_StopError):  # between two checkpoints of the second epoch
        _fit(photos, tmp_path / "cut", CROPS, workers=2, watch=partial(_stop_at, 6))
    resumed = _fit(photos, tmp_path / "cut", CROPS, workers=1, memory=0, resume=True)
    _equal(tmp_path / "whole", tmp_path / "cut")
    assert [{**r, "seconds": 0} for r in resumed.history] == [{**r, "seconds": 0} for r in whole.history]


def test_a_stage_that_trains_on_validation_samples_too(photos: Path, tmp_path: Path) -> None:
    """The training part is read from files and the validation part is in memory; together they are read from files."""
    _fit(
        photos,
        tmp_path,
        CROPS,
        "stage=gap_dial",
        "stage.refit=true",
        "stage.strength=1",
        "stage.ridge=1",
        "epochs=1",
        workers=0,
    )
    assert (tmp_path / "model.safetensors").exists()


def test_a_torch_data_set_is_trained_on(photos: Path, tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(10), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    sets = tuple(ImageFolder(str(photos / part), transform) for part in ("train", "test"))
    for name, workers in (("none", None), ("two", 2)):
        config = TrainConfig().override(["model=mlp-8", "epochs=1", "batch=8"])
        result = train(config, tmp_path / name, data=sets, workers=workers, accelerator="cpu")
    _equal(tmp_path / "none", tmp_path / "two")
    assert result.config.data.name == "dataset:ImageFolder"
    assert result.test.class_names == ("ant", "bee", "cat")


def test_a_damaged_file_ends_a_run_with_its_name(photos: Path, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", {"train": 6, "test": 3}, size=(20, 20), suffix=".jpg")
    truncate(root / "train" / "cat" / "02.jpg")
    with pytest.raises(InputError, match=r"cat/02\.jpg cannot be decoded"):
        _fit(root, tmp_path / "run", "data.val_fraction=0", workers=2, memory=0)
    notes: list[str] = []
    options: dict[str, Any] = {"workers": 2, "memory": 0, "watch": lambda at: notes.append(at.note)}
    _fit(root, tmp_path / "skipped", "data.val_fraction=0", "data.skip_corrupt=true", "epochs=1", **options)
    assert any("1 of 27 images cannot be decoded" in note for note in notes)


def _touch(folder: Path, step: int) -> int:
    (folder / str(step)).touch()
    return step


def test_workers_keep_a_bounded_number_ahead(tmp_path: Path) -> None:
    results = in_order(partial(_touch, tmp_path), range(100), workers=2)
    assert next(results) == 0
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) <= 1 + 2 * 2
    assert list(results) == list(range(1, 100))
    assert 1 <= default_workers(1000) <= default_workers() <= 8
    with pytest.raises(InputError, match="must be a whole number"):
        load_data("digits", workers=-1)


@pytest.mark.slow
def test_two_processes_read_files_and_resume(photos: Path, tmp_path: Path) -> None:
    settings = (
        f"data={photos}",
        *SMALL,
        CROPS,
        "model=mlp-16",
        "precision=64-true",
    )  # no BatchNorm: one process is the same
    sets = [part for setting in settings for part in ("--set", setting)]

    def run(out: str, *more: str) -> None:
        words = ["--out", str(tmp_path / out), "--devices", "2", "--accelerator", "cpu", *more]
        command = [sys.executable, "-m", "classgap", "train", *words]
        subprocess.run(command, check=True, timeout=SECONDS, capture_output=True)

    run("none", *sets, "--workers", "0")
    run("two", *sets, "--workers", "2", "--memory", "0")
    _equal(tmp_path / "none", tmp_path / "two")
    alone = TrainConfig().override(settings)
    train(alone, tmp_path / "one", accelerator="cpu", workers=1)
    for name, value in _weights(tmp_path / "one").items():
        torch.testing.assert_close(_weights(tmp_path / "two")[name], value, rtol=1e-4, atol=1e-6)
    # As if the run had been killed after its first epoch: its checkpoint is that of a run of one epoch.
    program = (
        "import sys; from classgap.training import TrainConfig; from classgap.training.run import start\n"
        "def stop(position):\n"
        "    if position.step == 4: raise SystemExit(7)\n"
        f"config = TrainConfig().override({list(settings)!r})\n"
        f"start(config, __import__('pathlib').Path({str(tmp_path / 'cut')!r}), devices='2', accelerator='cpu', workers=1,"
        " watch=stop).run()"
    )
    script = tmp_path / "cut.py"
    script.write_text(program)
    subprocess.run([sys.executable, str(script)], check=False, timeout=SECONDS, capture_output=True)
    assert (tmp_path / "cut" / "checkpoint.pt").exists()
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    run("cut", "--resume", "--workers", "2")
    _equal(tmp_path / "none", tmp_path / "cut")
