"""Data sets by name or path, their splits, long-tail profiles, augmentation and batches."""

from __future__ import annotations

from classgap.data.augment import policies
from classgap.data.batches import Batch, Batches, Mix, Normalise, mixed_seed, shuffled
from classgap.data.catalogue import SOURCES
from classgap.data.dataset import TrainingData, load_data
from classgap.data.images import ImageFiles
from classgap.data.items import FileOptions, Items, Source
from classgap.data.labelled import Expected, Part, open_samples
from classgap.data.mixing import ConfusedMix, confused_mixup, cutmix, mixup
from classgap.data.python_sets import DatasetItems
from classgap.data.samples import MEMORY_MB, Split
from classgap.data.sources import data_root, load_source
from classgap.data.splits import PROFILES, Profile, profile_counts, split_hash
from classgap.data.texts import Encode, Texts
from classgap.data.views import image_views, mean_over_views, require_images
from classgap.data.workers import default_workers

__all__ = [
    "MEMORY_MB",
    "PROFILES",
    "SOURCES",
    "Batch",
    "Batches",
    "ConfusedMix",
    "DatasetItems",
    "Encode",
    "Expected",
    "FileOptions",
    "ImageFiles",
    "Items",
    "Mix",
    "Normalise",
    "Part",
    "Profile",
    "Source",
    "Split",
    "Texts",
    "TrainingData",
    "confused_mixup",
    "cutmix",
    "data_root",
    "default_workers",
    "image_views",
    "load_data",
    "load_source",
    "mean_over_views",
    "mixed_seed",
    "mixup",
    "open_samples",
    "policies",
    "profile_counts",
    "require_images",
    "shuffled",
    "split_hash",
]
