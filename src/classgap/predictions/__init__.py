"""Predictions of a model: files, tables and arrays become :class:`Predictions`; labels are encoded once. No torch."""

from classgap.predictions.columns import Columns
from classgap.predictions.confusion import Confusion
from classgap.predictions.matching import align
from classgap.predictions.multi_label import MultiLabelPredictions
from classgap.predictions.predictions import Predictions, Progress, ScoreKind
from classgap.predictions.side_files import read_cost, read_names, read_train_counts
from classgap.predictions.slice_counts import SliceCounts

__all__ = [
    "Columns",
    "Confusion",
    "MultiLabelPredictions",
    "Predictions",
    "Progress",
    "ScoreKind",
    "SliceCounts",
    "align",
    "read_cost",
    "read_names",
    "read_train_counts",
]
