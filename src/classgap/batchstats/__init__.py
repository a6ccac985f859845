"""Class statistics on the torch side: sums by class, running class moments, and the only use of ``torch.distributed``."""

from classgap.batchstats.collectives import all_reduce_sum, gather_rows, gather_with_gradient, is_distributed
from classgap.batchstats.moments import SPREADS, ClassMoments, Spread
from classgap.batchstats.pairs import (
    BatchClasses,
    ClassPairs,
    add_along_pairs,
    batch_classes,
    centred_rows,
    class_pairs,
)
from classgap.batchstats.sums import class_sums, squared_norms

__all__ = [
    "SPREADS",
    "BatchClasses",
    "ClassMoments",
    "ClassPairs",
    "Spread",
    "add_along_pairs",
    "all_reduce_sum",
    "batch_classes",
    "centred_rows",
    "class_pairs",
    "class_sums",
    "gather_rows",
    "gather_with_gradient",
    "is_distributed",
    "squared_norms",
]
