"""Data sets by name, their splits, long-tail profiles, augmentation and batches."""

from __future__ import annotations

from classgap.data.augment import policies
from classgap.data.batches import Batch, Batches, Mix, Normalise, mixed_seed, shuffled
from classgap.data.dataset import Split, TrainingData, load_data
from classgap.data.mixing import cutmix, mixup
from classgap.data.sources import SOURCES, Source, data_root, load_source
from classgap.data.splits import PROFILES, Profile, profile_counts, split_hash

__all__ = [
    "PROFILES",
    "SOURCES",
    "Batch",
    "Batches",
    "Mix",
    "Normalise",
    "Profile",
    "Source",
    "Split",
    "TrainingData",
    "cutmix",
    "data_root",
    "load_data",
    "load_source",
    "mixed_seed",
    "mixup",
    "policies",
    "profile_counts",
    "shuffled",
    "split_hash",
]
