"""Figures for the gallery: a PNG file that a block of an example writes is shown below that block."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst


class SavedFigures:
    """Looks for PNG files in the working folder of the example and the folders in it."""

    def __init__(self) -> None:
        self.started = time.time()  # files of an earlier build are not shown
        self.seen: dict[Path, float] = {}

    def __repr__(self) -> str:
        return "SavedFigures()"  # part of the configuration that Sphinx compares between two builds

    def __call__(self, block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
        shown: list[str] = []
        paths = block_vars["image_path_iterator"]
        for path in sorted(Path.cwd().glob("classgap-report/*.png")):
            written = path.stat().st_mtime
            if written >= self.started and self.seen.get(path) != written:
                self.seen[path] = written
                shown.append(str(next(paths)))
                shutil.copy(path, shown[-1])
        return str(figure_rst(shown, gallery_conf["src_dir"]))
