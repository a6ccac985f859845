"""Class statistics on the torch side: sums by class, running class moments, and the only use of ``torch.distributed``."""

from classgap.batchstats.collectives import all_reduce_sum, gather_rows, gather_with_gradient, is_distributed
from classgap.batchstats.moments import SPREADS, ClassMoments, Spread
from classgap.batchstats.pairs import ClassPairs, ClassRuns, add_along_pairs, centred_company, class_pairs, class_runs
from classgap.batchstats.sums import class_sums, squared_norms

__all__ = [
    "SPREADS",
    "ClassMoments",
    "ClassPairs",
    "ClassRuns",
    "Spread",
    "add_along_pairs",
    "all_reduce_sum",
    "centred_company",
    "class_pairs",
    "class_runs",
    "class_sums",
    "gather_rows",
    "gather_with_gradient",
    "is_distributed",
    "squared_norms",
]
