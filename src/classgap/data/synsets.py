"""Words for the WordNet ids that name the classes of ImageNet, e.g. *tench* for ``n01440764``."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from classgap.checks import InputError

_ID = re.compile(r"n\d{8}")
TABLES = ("LOC_synset_mapping.txt", "synset_words.txt")  # of Kaggle and of Caffe: an id and its words per line
ARCHIVE = "meta.bin"  # written by torchvision


def is_synset(name: str) -> bool:
    """Whether a class name is a WordNet id."""
    return _ID.fullmatch(name) is not None


def class_words(ids: Sequence[str], folder: Path | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A word for each WordNet id, in the same order, and sentences for the user where an id has none.

    The words are those of timm; an id that timm does not know is looked up in the files of ``folder``. Where two ids have the
    same word, among these or in ImageNet-1k (crane), the id is added to both: some of the classes are named as in the whole set.
    """
    known = _words(folder)
    missing = [name for name in ids if is_synset(name) and name not in known]
    counts = Counter(known.get(name, name) for name in {*ids, *imagenet_ids()})
    words = [known.get(name, name) for name in ids]
    unique = tuple(f"{word} ({name})" if counts[word] > 1 else word for name, word in zip(ids, words, strict=True))
    return unique, (_without_words(missing, folder),) if missing else ()


def _without_words(missing: Sequence[str], folder: Path | None) -> str:
    place = "" if folder is None else f", or {' or '.join((*TABLES, ARCHIVE))} in {folder}"
    return (
        f"{len(missing)} classes keep their WordNet ids as names ({missing[0]}): words for them come from timm "
        f"(pip install 'classgap[vision]'){place}"
    )


def _words(folder: Path | None) -> Mapping[str, str]:
    beside = {} if folder is None else _beside(folder)
    return {**beside, **_of_timm()}


@functools.cache
def imagenet_ids() -> tuple[str, ...]:
    """The ids of ImageNet-1k in the order of their numbers; empty without timm."""
    info = _timm()
    return () if info is None else tuple(info.label_names())


@functools.cache
def _of_timm() -> Mapping[str, str]:
    info = _timm("imagenet-22k")
    return {} if info is None else {name: _first(text) for name, text in info.label_descriptions(as_dict=True).items()}


def _timm(subset: str = "imagenet-1k"):  # type: ignore[no-untyped-def]
    try:
        from timm.data import ImageNetInfo
    except ImportError:
        return None
    return ImageNetInfo(subset)


def _first(text: str) -> str:
    """``tench`` out of ``tench, Tinca tinca``."""
    return text.split(",")[0].strip()


def _beside(folder: Path) -> dict[str, str]:
    for file in TABLES:
        if (folder / file).is_file():
            return _table(folder / file)
    return _archive(folder / ARCHIVE) if (folder / ARCHIVE).is_file() else {}


def _table(path: Path) -> dict[str, str]:
    try:
        pairs = [line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore or remove it") from error
    if bad := next((row for row, (name, _, text) in enumerate(pairs, 1) if not is_synset(name) or not text), None):
        raise InputError(f"{path}: line {bad} must be a WordNet id and its words (n01440764 tench, Tinca tinca)")
    return {name: _first(text) for name, _, text in pairs}


def _archive(path: Path) -> dict[str, str]:
    import torch

    try:
        words, _ = torch.load(path, weights_only=True)
        return {name: str(texts[0]) for name, texts in words.items()}
    except Exception as error:  # a damaged file raises whatever its bytes happen to mean
        raise InputError(f"{path} cannot be read ({error}); remove it, torchvision writes it again") from error
