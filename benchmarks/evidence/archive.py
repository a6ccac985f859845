"""Move finished runs into the archives that are committed, and move runs of code that has changed to superseded/.

    python benchmarks/evidence/archive.py
    python benchmarks/evidence/archive.py --supersede "field:*/BCL" --because "the prototypes were free parameters"

`classgap bench SUITE.py` adds runs to SUITE.jsonl. The first command moves them into SUITE.jsonl.xz, about a tenth of the size:
an archive has one bit per test sample, classified correctly or not, instead of the predicted class. It also computes all keys
again, which is needed after a method gets a new parameter or a new default. The second command is for a method whose arithmetic
has changed under the same name: its old runs stay on the page, under the reason given, and the suite asks for new ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
from pathlib import Path

from classgap.suites import Result, load_suite, read_results
from classgap.suites.records import archive_of, read_records, write_archive
from classgap.suites.results import archive_results
from classgap.training.config import MethodConfig

HERE = Path(__file__).resolve().parent
OTHERS = ("ideas/results.jsonl", "posthoc/results.jsonl")  # lines of other scripts, which archives keep as they are


def archive() -> None:
    """Every file of results beside this script becomes part of its archive."""
    for path in result_files():
        asked = {job.key for job in load_suite(str(HERE / f"{path.stem}.py")).jobs()}
        unasked = sorted({run.name for key, run in read_results([path]).items() if key not in asked})
        if unasked:
            raise SystemExit(f"{path.name} has runs that no variant of its suite asks for: {', '.join(unasked)}")
        print(f"{path.name}: {archive_results(path)} runs")
    for path in superseded_files():
        print(f"superseded/{path.name}: {archive_results(path)} runs")
    for name in OTHERS:
        if (path := HERE / name).exists():
            write_archive(path, read_records(path))
            print(f"{name}: archived")


def result_files() -> list[Path]:
    """The files of results of all suites, where the file or its archive exists."""
    return _files(HERE)


def superseded_files() -> list[Path]:
    return _files(HERE / "superseded")


def _files(folder: Path) -> list[Path]:
    suites = sorted(path.stem for path in HERE.glob("*.py"))
    paths = (folder / f"{name}.jsonl" for name in suites)
    return [path for path in paths if path.exists() or archive_of(path).exists()]


def supersede(pattern: str, reason: str) -> None:
    """Move the runs that fit ``SUITE:TASK/VARIANT``, which may be a pattern, to superseded/."""
    moved = 0
    for path in result_files():
        results = read_results([path])
        old = [run for run in results.values() if fnmatch.fnmatchcase(f"{path.stem}:{run.task}/{run.variant}", pattern)]
        if not old:
            continue
        target = HERE / "superseded" / path.name
        marked = [*read_results([target]).values(), *(mark(run, reason).for_archive() for run in old)]
        write_archive(target, (run.to_record() for run in marked))
        kept = [run for run in results.values() if run not in old]
        write_archive(path, (run.for_archive().to_record() for run in kept))
        print(f"{archive_of(target).relative_to(HERE)}: {len(old)} runs added")
        moved += len(old)
    if not moved:
        raise SystemExit(f"no run fits {pattern!r}; patterns are like 'field:*/BCL'")


def mark(run: Result, reason: str) -> Result:
    """The run with the reason among its parameters, so that its key is not that of a run of today's code."""
    method = MethodConfig(run.config.method.name, {**run.config.method.params, "superseded": reason})
    return dataclasses.replace(run, config=dataclasses.replace(run.config, method=method))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supersede", metavar="SUITE:TASK/VARIANT", help="move these runs to superseded/; a pattern")
    parser.add_argument("--because", metavar="REASON", help="what has changed since, for the page")
    options = parser.parse_args()
    if options.supersede:
        if not options.because:
            parser.error("--supersede needs --because, a reason that the page shows")
        supersede(options.supersede, options.because)
    else:
        archive()
