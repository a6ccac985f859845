"""What the suites of the papers share: all images are trained on, and the last epoch counts, so that nothing is selected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from classgap.suites import Published, Task, Variant
from classgap.training import TrainConfig

ERM = Variant("cross_entropy")
RERUN = Variant("cross_entropy, re-run", seed_shift=1000, note="the null: the same method with other seeds")
LARGEST = {"cifar10": 5000, "cifar100": 500}  # images of the most frequent class
Row = float | Sequence[float]
NOT_PART = "not part of this package"


def task(name: str, data: str, note: str, *settings: str) -> Task:
    """Training on all images of a data set."""
    fixed = [f"data={data}", "data.val_fraction=0", "data.augment=crop,flip", "model=resnet32", "batch=128"]
    return Task(name, TrainConfig().override([*fixed, *settings]), note)


def tail(data: str, imbalance: int, *settings: str) -> Task:
    """The exponential long tail of a data set, e.g. CIFAR-100-LT."""
    name = f"{data.upper().replace('CIFAR', 'CIFAR-')}-LT {imbalance}"
    shape = ["data.profile=exponential", f"data.per_class={LARGEST[data]}", f"data.imbalance={imbalance}"]
    return task(name, data, f"imbalance {imbalance}", *shape, *settings)


def printed(
    task: str,
    source: str,
    rows: Mapping[str, Row],
    metrics: Sequence[str] = ("overall",),
    *,
    std: Mapping[str, Row] | None = None,
    note: str = "",
) -> Iterator[Published]:
    """The rows of a printed table, by variant, with their columns in the order of ``metrics``."""

    def columns(row: Row) -> dict[str, float]:
        return dict(zip(metrics, [row] if isinstance(row, float) else row, strict=True))

    for variant, row in rows.items():
        spread = columns(std[variant]) if std and variant in std else {}
        yield Published(task, variant, source, columns(row), spread, note)


def absent(
    task: str, variant: str, source: str, row: Row, metrics: Sequence[str] = ("overall",), *, why: str = NOT_PART
) -> Published:
    """A printed row that cannot be run here."""
    values = dict(zip(metrics, [row] if isinstance(row, float) else row, strict=True))
    return Published(task, variant, source, values, absent=why)


def printed_by_task(
    source: str, tasks: Sequence[str], rows: Mapping[str, Sequence[float]], *, note: str = ""
) -> Iterator[Published]:
    """The same for a table with a column of overall accuracies for each task."""
    for variant, row in rows.items():
        for name, value in zip(tasks, row, strict=True):
            yield Published(name, variant, source, {"overall": value}, note=note)
