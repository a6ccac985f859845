"""What a benchmark ran on, for the committed results."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, versions, and how busy the machine is now; no paths, no host names.

    ``load`` is the mean number of processes that wanted to run in the last minute, this one included: about 1 on an idle machine.
    """
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    packages = ("classgap", "numpy", "torch", "polars", "scikit-learn", "fairlearn", "pandas")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": versions,
    }
