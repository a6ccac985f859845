"""Search for parameters on validation data, with Optuna; many processes may share a study."""

from __future__ import annotations

from classgap.tuning.search import TuneReport, tune
from classgap.tuning.space import parse_space, search_space

__all__ = ["TuneReport", "parse_space", "search_space", "tune"]
