"""Methods × tasks × seeds under one protocol: suites, resumable jobs, selection rules, tables with paired verdicts."""

from __future__ import annotations

from classgap.suites.results import Result, append_results, read_results
from classgap.suites.running import BenchReport, bench
from classgap.suites.select import RULES, EpochRule
from classgap.suites.suite import Published, Suite, Task, Variant, load_suite

__all__ = [
    "RULES",
    "BenchReport",
    "EpochRule",
    "Published",
    "Result",
    "Suite",
    "Task",
    "Variant",
    "append_results",
    "bench",
    "load_suite",
    "read_results",
]
