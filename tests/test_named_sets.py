"""Every published data set by name, on small stand-ins in the true on-disk format; torchvision reads the same from them."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classgap.checks import InputError
from classgap.data import SOURCES, FileOptions, load_data, load_source
from classgap.data.stand_ins import WRITERS, stand_in
from image_files import NEEDS_TORCHVISION, truncate

pytestmark = NEEDS_TORCHVISION


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("stand_ins")
    return lambda name: stand_in(name, folder)


@pytest.fixture
def copied(places: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A stand-in that a test may damage."""
    return lambda name: Path(shutil.copytree(places(name), tmp_path / name))


def _source(name: str, root: Path, **options: Any) -> Any:
    files = FileOptions(**{"size": 16, "root": str(root), "partial": True, **options})
    return load_source(name, files=files)


def test_every_named_set_has_a_stand_in() -> None:
    assert set(WRITERS) == set(SOURCES) - {"digits", "two_moons"}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_named_set_loads_and_says_that_it_is_not_the_published_one(name: str, places: Callable[[str], Path]) -> None:
    root = places(name)
    tail = name.endswith("_lt") or name == "inat18"
    size = None if name.endswith("mnist") or name.startswith("cifar") else 16
    data = load_data(name, root=str(root), size=size, partial=True, workers=0, val_fraction=0)
    assert data.num_classes == 10
    assert torch.bincount(data.test.y).tolist() == [6] * 10
    assert data.notes[-1].startswith(f"{name} has ")
    assert "are published" in data.notes[-1]
    counts = data.class_counts
    assert (counts.max() > 4 * counts.min()) == tail
    with pytest.raises(InputError, match=rf"{name} has \d+ training samples here, but {SOURCES[name].counts[0]} are"):
        load_data(name, root=str(root), size=size, workers=0)


def _torchvision(name: str, root: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]], list[str]]:
    """Training and test samples as torchvision reads them, and the names of the classes."""
    from torchvision import datasets

    class Flowers(datasets.Flowers102):
        _check_integrity = lambda self: True  # noqa: E731  the annotations of a stand-in have another digest

    readers: dict[str, Callable[[str], Any]] = {
        "stanford_cars": lambda part: datasets.StanfordCars(str(root), part),
        "oxford_pets": lambda part: datasets.OxfordIIITPet(str(root), {"train": "trainval"}.get(part, part)),
        "flowers102": lambda part: Flowers(str(root), part),
        "food101": lambda part: datasets.Food101(str(root), part),
        "fgvc_aircraft": lambda part: datasets.FGVCAircraft(str(root), part),
    }
    sets = [readers[name](part) for part in ("train", "test")]
    samples = []
    for dataset in sets:
        files = getattr(dataset, "_image_files", None) or getattr(dataset, "_images", None)
        pairs = dataset._samples if files is None else zip(files, dataset._labels, strict=True)
        samples.append([(str(path), int(label)) for path, label in pairs])
    return samples[0], samples[1], list(sets[0].classes)


@pytest.mark.parametrize("name", ["stanford_cars", "oxford_pets", "flowers102", "food101", "fgvc_aircraft"])
def test_torchvision_reads_the_same(name: str, places: Callable[[str], Path]) -> None:
    root = places(name)
    source = _source(name, root)
    train, test, classes = _torchvision(name, root)
    assert list(source.class_names) == classes[:10]
    for x, y, theirs in ((source.x_train, source.y_train, train), (source.x_test, source.y_test, test)):
        ours = [(str(Path(x.root) / file), int(label)) for file, label in zip(x.ids, y, strict=True)]
        assert sorted(ours) == sorted(theirs)


def test_cifar_is_what_torchvision_reads(places: Callable[[str], Path]) -> None:
    from torchvision import datasets

    class Cifar(datasets.CIFAR10):
        _check_integrity = lambda self: True  # noqa: E731
        _load_meta = lambda self: None  # noqa: E731  it compares a digest too

    root = places("cifar10")
    source = _source("cifar10", root, size=None)
    for part, x, y in ((True, source.x_train, source.y_train), (False, source.x_test, source.y_test)):
        theirs = Cifar(str(root), train=part)
        assert np.array_equal(x, theirs.data.transpose(0, 3, 1, 2))
        assert y.tolist() == theirs.targets


class _Evil:
    def __reduce__(self) -> Any:
        return print, ("a pickle of a data set ran code",)


def test_a_pickle_with_code_is_refused(copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = copied("cifar100")
    (root / "cifar-100-python" / "train").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(InputError, match=r"train is damaged or cut off \(it holds builtins.print, which is no data"):
        _source("cifar100", root)
    assert "ran code" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("cifar10", "cifar-10-batches-py/data_batch_3"),
        ("stanford_cars", "devkit/cars_meta.mat"),
        ("food101", "meta/train.json"),
    ],
)
def test_truncated_files_are_named(name: str, file: str, copied: Callable[[str], Path]) -> None:
    root = copied(name)
    path = next(root.rglob(Path(file).name))
    truncate(path)
    with pytest.raises(InputError, match=rf"{path.name} (is damaged|cannot be read)"):
        _source(name, root)


def test_missing_parts_are_named(copied: Callable[[str], Path]) -> None:
    root = copied("imagenet_lt")
    victim = next((root / "imagenet" / "val").rglob("*.JPEG"))
    victim.unlink()
    with pytest.raises(InputError, match=rf"lacks 1 image \(val/.*{victim.name}\); restore them"):
        _source("imagenet_lt", root)
    shutil.rmtree(root / "imagenet" / "train")
    with pytest.raises(InputError, match=r"imagenet/train is missing; run `classgap data prepare imagenet_lt`"):
        _source("imagenet_lt", root)


# --- published lists --------------------------------------------------------------------------------------------------


def test_imagenet_lt_with_its_test_images_in_one_folder(copied: Callable[[str], Path]) -> None:
    root = copied("imagenet_lt")
    nested = _source("imagenet_lt", root)
    for image in (root / "imagenet" / "val").rglob("*.JPEG"):
        image.rename(root / "imagenet" / "val" / image.name)
    flat = _source("imagenet_lt", root)
    assert [Path(name).name for name in flat.x_test.ids] == [Path(name).name for name in nested.x_test.ids]
    assert flat.x_test.ids[0].count("/") == 1
    assert flat.class_names == nested.class_names
    listed = root / "imagenet_lt" / "ImageNet_LT_test.txt"  # and a list without the folders of the classes
    listed.write_text("".join(f"{name} {k}\n" for name, k in zip(flat.x_test.ids, flat.y_test, strict=True)))
    for name, label in zip(nested.x_test.ids, flat.x_test.ids, strict=True):
        (root / "imagenet" / name).parent.mkdir(exist_ok=True)
        (root / "imagenet" / label).rename(root / "imagenet" / name)
    assert _source("imagenet_lt", root).x_test.ids == nested.x_test.ids


def test_places_lt_in_both_layouts(copied: Callable[[str], Path]) -> None:
    """Lists and folders are ``data_256/o/one/indoor`` or ``train/one-indoor``, in any combination."""
    root = copied("places_lt")
    base, lists = root / "places365", root / "places_lt"
    reference = _source("places_lt", root)
    assert reference.class_names[:2] == ("zero/outdoor", "one/indoor")
    for part in ("train", "val", "test"):
        path, lines = lists / f"Places_LT_{part}.txt", []
        for line in path.read_text().splitlines():
            name, label = line.split()
            place, file = reference.class_names[int(label)].replace("/", "-"), Path(name).name
            lines.append(f"{'val' if part == 'test' else 'train'}/{place}/{file} {label}\n")
        path.write_text("".join(lines))
    other = _source("places_lt", root)  # new lists, old folders
    assert (other.class_names, other.x_train.ids) == (reference.class_names, reference.x_train.ids)
    assert other.x_test.ids == reference.x_test.ids
    for part in ("train", "test"):
        source_x, y = (other.x_train, other.y_train) if part == "train" else (other.x_test, other.y_test)
        for name, label in zip(source_x.ids, y, strict=True):
            place = other.class_names[label].replace("/", "-")
            target = base / ("val" if part == "test" else "train") / place / Path(name).name
            target.parent.mkdir(parents=True, exist_ok=True)
            (base / name).rename(target)
    for line in (lists / "Places_LT_val.txt").read_text().splitlines():
        name = line.split()[0]
        found = next(base.rglob(Path(name).name))
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        found.rename(base / name)
    assert _source("places_lt", root).x_train.ids[0].startswith("train/")  # new lists, new folders


def test_inat_from_its_annotations(copied: Callable[[str], Path]) -> None:
    root = copied("inat18")
    lists = _source("inat18", root)
    for part, file in (("train", "iNaturalist18_train.txt"), ("val", "iNaturalist18_val.txt")):
        rows = [line.split() for line in (root / "inat18" / file).read_text().splitlines()]
        (root / "inat18" / file).unlink()
        images = [{"id": 7 * i, "file_name": name} for i, (name, _) in enumerate(rows)]
        labels = [{"id": i, "image_id": 7 * i, "category_id": int(k)} for i, (_, k) in enumerate(rows)]
        content = {"images": images, "annotations": labels[::-1]}
        (root / "inat18" / f"{part}2018.json").write_text(json.dumps(content))
    found = _source("inat18", root)
    assert (found.x_train.ids, found.y_train.tolist()) == (lists.x_train.ids, lists.y_train.tolist())
    assert found.mean == (0.466, 0.471, 0.380)


def test_bad_lists_are_sentences(copied: Callable[[str], Path]) -> None:
    root = copied("inat18")
    path = root / "inat18" / "iNaturalist18_train.txt"
    whole = path.read_text()
    path.write_text(whole + "../../secret.jpg 3\n")
    with pytest.raises(InputError, match=r"the path '\.\./\.\./secret\.jpg' leaves this folder"):
        _source("inat18", root)
    path.write_text(whole.replace(" 4\n", " 40\n"))
    with pytest.raises(InputError, match=r"classes .*without training images"):
        _source("inat18", root)
    path.write_text(whole.replace(" 4\n", " four\n"))
    with pytest.raises(InputError, match="labels in its lists must be class numbers from 0"):
        _source("inat18", root)


def test_the_published_long_tails_of_cifar(tmp_path: Path) -> None:
    """Totals and smallest classes of all published profiles, through the name of the set."""
    labels = {"cifar10": np.repeat(np.arange(10), 5000), "cifar100": np.repeat(np.arange(100), 500)}
    published = {
        "cifar10": {10: (20431, 500), 20: (17023, 250), 50: (13996, 100), 100: (12406, 50), 200: (11203, 25)},
        "cifar100": {10: (19573, 50), 20: (15907, 25), 50: (12608, 10), 100: (10847, 5), 200: (9502, 2)},
    }
    from classgap.data.dataset import _published_tail
    from classgap.data.items import Source

    for name, totals in published.items():
        y = labels[name]
        names = tuple(map(str, range(int(y.max()) + 1)))
        source = Source(name, np.empty((len(y), 0)), y, np.empty((0, 0)), y[:0], names, profile="exponential")
        for imbalance, (total, smallest) in totals.items():
            kept, held = _published_tail(source, None, "balanced", imbalance, 0.0, 0)
            assert (len(kept), int(np.bincount(y[kept]).min()), len(held)) == (total, smallest, 0)
        kept, held = _published_tail(source, None, "balanced", 1.0, 0.1, 0)
        assert len(kept) + len(held) == totals[100][0]  # 100 is usual; validation images come out of the published ones
        assert len(_published_tail(source, None, "step", 100.0, 0.0, 0)[0]) == 25250


# --- words for WordNet ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["imagenet", "imagenet_lt"])
def test_classes_of_imagenet_have_words_in_the_order_of_their_ids(name: str, places: Callable[[str], Path]) -> None:
    source = _source(name, places(name))
    assert source.class_names[:3] == ("tench", "goldfish", "great white shark")
    assert source.class_names[-1] == "crane (n02012849)"  # ImageNet has two, also where only one is here
    for file, label in zip(source.x_test.ids, source.y_test, strict=True):
        assert file.split("/")[1] == sorted({f.split("/")[1] for f in source.x_test.ids})[label]
    assert not any("WordNet" in note for note in source.notes)


def _other_ids(root: Path) -> dict[str, str]:
    """Give two classes ids that timm does not have; returns words for them."""
    for part in ("train", "val"):
        for old, new in (("n01440764", "n00000001"), ("n01443537", "n00000002")):
            (root / "imagenet" / part / old).rename(root / "imagenet" / part / new)
    return {"n00000001": "unicorn, Monoceros", "n00000002": "dragon"}


@pytest.mark.parametrize("file", ["LOC_synset_mapping.txt", "synset_words.txt", "meta.bin"])
def test_words_for_unknown_ids_come_from_the_folder(file: str, copied: Callable[[str], Path]) -> None:
    root = copied("imagenet")
    words = _other_ids(root)
    assert _source("imagenet", root).class_names[:2] == ("n00000001", "n00000002")
    assert "2 classes keep their WordNet ids as names (n00000001)" in _source("imagenet", root).notes[0]
    path = root / "imagenet" / file
    if file == "meta.bin":  # as torchvision.datasets.imagenet.parse_devkit_archive writes it
        torch.save(({name: tuple(text.split(", ")) for name, text in words.items()}, []), path)
    else:
        path.write_text("".join(f"{name} {text}\n" for name, text in words.items()))
    source = _source("imagenet", root)
    assert source.class_names[:3] == ("unicorn", "dragon", "great white shark")
    assert not any("WordNet" in note for note in source.notes)
    path.write_bytes(b"tench\n")
    with pytest.raises(InputError, match=rf"{file}.*(line 1 must be a WordNet id|cannot be read)"):
        _source("imagenet", root)


def test_a_network_that_knows_words_reads_a_folder_of_ids(places: Callable[[str], Path], tmp_path: Path) -> None:
    from classgap.data.labelled import Expected, open_samples

    root = places("imagenet")
    names = _source("imagenet", root).class_names
    folder = tmp_path / "own"
    for wnid in ("n02012849", "n01443537"):
        shutil.copytree(root / "imagenet" / "val" / wnid, folder / wnid)
    y = open_samples(folder, None, None, Expected(names, (3, 16, 16), FileOptions(size=16))).labels
    assert y is not None
    assert y.tolist() == [1] * 6 + [9] * 6
