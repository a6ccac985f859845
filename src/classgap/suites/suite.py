"""What is run: tasks × method variants × seeds. A suite is a Python file with ``suite() -> Suite``, or built in."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classgap.checks import LARGEST_SEED, InputError, did_you_mean, shown
from classgap.measure.statistics.groups import FREQUENCIES, THIRDS
from classgap.scripts import explained
from classgap.suites.jobs import Job, complete
from classgap.suites.measures import check_measure
from classgap.training.config import DataConfig, MethodConfig, ModelConfig, OptimConfig, PartConfig, TrainConfig
from classgap.training.recipes import load_file, load_recipe, quickened, recipe_file, recipe_names

_TABLES = Path(__file__).resolve().parents[1] / "recipes" / "tables"
_SHARED = ("__init__", "common", "costs")  # files there that are no suites

_MOST_SEEDS = 10_000
# What published accuracies may be of; a single class is "class NAME".
PUBLISHED = ("overall", *THIRDS, *(f"{name}-shot" for name in FREQUENCIES))


@dataclass(frozen=True)
class Task:
    """Data, network and schedule, shared by all methods; ``note`` says in a line what it stands for.

    Attributes:
        quick: Whether the runs are short ones on a stand-in, see :meth:`Suite.quickened`.
        cost: What one run of a plain method needs, shown beside published numbers that were not run.
    """

    name: str
    config: TrainConfig
    note: str = ""
    quick: bool = False
    cost: str = ""


@dataclass(frozen=True)
class Variant:
    """A method with its parameters.

    Attributes:
        settings: Further changes to the task's configuration, as ``--set`` takes them: ``("model.head=cosine",)``.
        seed_shift: Added to every seed. The reference method with another seed is the *null*: what a mere re-run changes.
        tasks: Patterns of the tasks it takes part in.
    """

    name: str
    method: str = "cross_entropy"
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    seed_shift: int = 0
    tasks: tuple[str, ...] = ("*",)
    note: str = ""

    def config(self, task: Task, seed: int) -> TrainConfig:
        """The run of this variant on ``task``, every parameter of the method spelled out."""
        changed = task.config.override(self.settings)
        changed = quickened(changed) if task.quick else changed
        method = MethodConfig(self.method, dict(self.params))
        return complete(dataclasses.replace(changed, method=method, seed=seed + self.seed_shift))

    def joins(self, task: Task) -> bool:
        return any(fnmatch.fnmatchcase(task.name, pattern) for pattern in self.tasks)


@dataclass(frozen=True)
class Published:
    """What a paper prints for one variant on one task.

    Attributes:
        task, variant: Their names in the suite.
        source: Where it is printed, e.g. ``"Table 1a"``.
        accuracy: In percent, by what it is of: ``overall``; a third of the classes, ``easy``, ``medium`` or ``hard``; the
            classes with many, medium or few training samples, ``many-shot``, ``medium-shot`` or ``few-shot``; ``class NAME``.
        std: Standard deviation over runs in points, of the same.
        note: In which respect the printed number may not belong to this variant.
        measures: What is printed beside accuracies, by the names of ``classgap.suites.measures``; in its own unit.
        absent: Why this cannot be run here, where the variant is not one of the suite.
    """

    task: str
    variant: str
    source: str
    accuracy: Mapping[str, float]
    std: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    absent: str = ""


@dataclass(frozen=True)
class Suite:
    """Tasks × variants × seeds.

    Attributes:
        about: What question the suite answers, for the head of its page.
        reference: Name of the variant the others are compared with; the first one by default.
        published: Numbers to set beside the own ones, printed by ``classgap bench``.
        data: Folder of the archives that tasks call ``npz:NAME``, used where ``CLASSGAP_DATA`` is not set.
    Example:
        >>> plain = Task("digits", TrainConfig(epochs=1))
        >>> suite = Suite("mine", (plain,), (Variant("erm"), Variant("smooth", params={"label_smoothing": 0.1})))
        >>> [(job.variant, job.config.seed) for job in suite.jobs(seeds=[3])]
        [('erm', 3), ('smooth', 3)]
    """

    name: str
    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    about: str = ""
    reference: str = ""
    published: tuple[Published, ...] = ()
    data: Path | None = None

    def __post_init__(self) -> None:
        for what, kind, members in (("task", Task, self.tasks), ("variant", Variant, self.variants)):
            if wrong := [member for member in members if not isinstance(member, kind)]:
                raise InputError(f"suite {self.name}: every {what} must be a {kind.__name__}, got {wrong[0]!r:.80}")
            names = [member.name for member in members]
            if not names or len(set(names)) < len(names):
                raise InputError(f"suite {self.name} must have {what}s with different names, got {names}")
            if bad := [name for name in names if not name or "/" in name]:
                raise InputError(f"suite {self.name}: the name of a {what} must be text without '/', got {bad[0]!r}")
        if not self.reference:
            object.__setattr__(self, "reference", self.variants[0].name)
        if self.reference not in {v.name for v in self.variants}:
            raise InputError(did_you_mean(self.reference, (v.name for v in self.variants), what="reference variant"))
        for task in self.tasks:
            path = task.config.data.name.partition(":")[2]
            if Path(path).is_absolute() and not task.quick:
                raise InputError(
                    f"task {task.name} of suite {self.name} names its data by the absolute path {path}, which makes its "
                    "results belong to one machine; write npz:FILENAME and set Suite.data or CLASSGAP_DATA"
                )
        self._check_published()

    def _check_published(self) -> None:
        known = {(task.name, variant.name) for task, variant in self.pairs()}
        for row in self.published:
            name = f"{row.task}/{row.variant}"
            for measure in row.measures:
                check_measure(measure)
            if row.absent:
                if row.task not in {task.name for task in self.tasks} or (row.task, row.variant) in known:
                    raise InputError(f"published numbers of {name} are marked as absent, but the suite has this run")
            elif (row.task, row.variant) not in known:
                raise InputError(did_you_mean(name, map("/".join, known), what="run with published numbers"))
            for metric in (*row.accuracy, *row.std):
                if metric not in PUBLISHED and not metric.startswith("class "):
                    wanted = f"{', '.join(PUBLISHED)} or 'class NAME'"
                    raise InputError(f"published numbers of {name} must be of {wanted}, got {metric!r}")

    def with_settings(self, settings: Sequence[str]) -> Suite:
        """The same comparison with settings of all runs changed, as ``--set`` takes them."""
        for setting in settings:
            if setting.partition("=")[0].partition(".")[0] in ("method", "seed"):
                raise InputError(
                    f"--set {setting}: a suite compares methods over seeds; choose them with --only and --seeds"
                )
        if not settings:
            return self
        variants = (dataclasses.replace(v, settings=(*v.settings, *settings)) for v in self.variants)
        return dataclasses.replace(self, variants=tuple(variants))

    def quickened(self) -> Suite:
        """Every run in about a minute on a CPU, with one seed: to see that all of them work. Has no published numbers."""
        tasks = tuple(dataclasses.replace(task, config=quickened(task.config), quick=True) for task in self.tasks)
        return dataclasses.replace(self, name=f"{self.name}-quick", tasks=tasks, seeds=self.seeds[:1], published=())

    def pairs(self, only: Sequence[str] = ()) -> Iterator[tuple[Task, Variant]]:
        """Every task with every variant that joins it; with ``only``, those whose ``TASK/VARIANT`` fits a pattern."""
        for task in self.tasks:
            for variant in self.variants:
                name = f"{task.name}/{variant.name}"
                if variant.joins(task) and (not only or any(fnmatch.fnmatchcase(name, p) for p in only)):
                    yield task, variant

    def jobs(self, seeds: Sequence[int] | None = None, only: Sequence[str] = ()) -> list[Job]:
        """All runs, seed by seed, so that a suite cut short has compared everything a few times."""
        pairs = list(self.pairs(only))
        if not pairs:
            names = [f"{task.name}/{variant.name}" for task, variant in self.pairs()]
            known = ", ".join(names[:10]) + (f" … ({len(names)} in all)" if len(names) > 10 else "")
            raise InputError(f"--only {' '.join(only)} fits none of {known}; patterns are like 'mlp/*' or '*/mr2*'")
        measures: dict[tuple[str, str], tuple[str, ...]] = {}
        for row in self.published:
            measures[row.task, row.variant] = (*measures.get((row.task, row.variant), ()), *row.measures)
        return [
            Job(
                self.name,
                task.name,
                variant.name,
                seed,
                variant.config(task, seed),
                measures.get((task.name, variant.name), ()),
            )
            for seed in (self.seeds if seeds is None else seeds)
            for task, variant in pairs
        ]


def load_suite(name: str) -> Suite:
    """A built-in suite, the one that a Python file states, the tables of a paper, or a recipe beside cross-entropy."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    path, what = Path(name), "suite"
    if not path.is_file():
        path = _TABLES / f"{name}.py"
    if not path.is_file():
        if name not in recipe_names() and not Path("recipes", f"{name}.py").is_file():
            known = [*BUILT_IN, *paper_suites(), *recipe_names()]
            raise InputError(f"{did_you_mean(name, known, what='suite')}; nor is there a file {name}")
        path, what = recipe_file(name), "recipe"
    module = load_file(path, what)
    if not callable(getattr(module, "suite", None)):
        if what == "recipe" or callable(getattr(module, "config", None)):
            return _of_recipe(path)
        raise InputError(f"suite {path} must define suite() -> Suite")
    with explained(path, "suite"):
        made = module.suite()
    if not isinstance(made, Suite):
        raise InputError(f"suite() of {path} must return a classgap.suites.Suite, got {type(made).__name__}")
    return made


def paper_suites() -> list[str]:
    """The suites with the tables of the papers."""
    return sorted(path.stem for path in _TABLES.glob("*.py") if path.stem not in _SHARED)


def _of_recipe(path: Path) -> Suite:
    """A recipe beside cross-entropy and a re-run of it, with the published row of the recipe."""
    config = load_recipe(path)
    changes = [f"stage={config.stage.name}", *(f"stage.{k}={json.dumps(v)}" for k, v in config.stage.params.items())]
    staged = config.stage.name != "none"
    own = config.stage.name if staged else config.method.name
    plain = dataclasses.replace(config, method=MethodConfig(), stage=PartConfig())
    variants = [
        Variant("cross_entropy"),
        Variant("cross_entropy, re-run", seed_shift=1000, note="differs by chance only"),
    ]
    if own != "cross_entropy":
        method = config.method
        variants.append(Variant(own, method.name, dict(method.params), tuple(changes) if staged else ()))
    printed = getattr(load_file(path, "recipe"), "PUBLISHED", {})
    published = tuple(Published(path.stem, variant, source, row) for variant, (source, row) in printed.items())
    about = (load_file(path, "recipe").__doc__ or "").strip().split("\n", 1)[0]
    return Suite(path.stem, (Task(path.stem, plain),), tuple(variants), published=published, about=about)


def parse_seeds(text: str) -> tuple[int, ...]:
    """``"0:5"`` (0 to 4), ``"0,3,4"`` or ``"7"``.

    Example:
        >>> parse_seeds("0:3"), parse_seeds("2,5")
        ((0, 1, 2), (2, 5))
    """
    try:
        low, colon, high = text.partition(":")
        seeds: Sequence[int]
        # at most one more than allowed: a range of 10^14 seeds must not be counted through
        seeds = range(int(low), int(high))[: _MOST_SEEDS + 1] if colon else [int(part) for part in text.split(",")]
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0 or max(seeds) > LARGEST_SEED:
        raise InputError(f"--seeds must be like 0:5 (0 to 4), 0,3,4 or 7, got {shown(text)}")
    if len(seeds) > _MOST_SEEDS:
        raise InputError(f"--seeds must name at most {_MOST_SEEDS:,} seeds, got {shown(text)}")
    return tuple(dict.fromkeys(seeds))


def _smoke() -> Suite:
    config = TrainConfig(
        data=DataConfig("digits", per_class=15),
        model=ModelConfig("mlp-64"),
        optim=OptimConfig(lr=0.05),
        epochs=15,
        batch=50,
    )
    return Suite(
        "smoke",
        tasks=(Task("digits", config, "15 images per class, a small network: seconds per run"),),
        variants=(
            Variant("cross_entropy"),
            Variant("re-run", seed_shift=1000, note="the null: the same method with other seeds"),
            Variant("mr2", "mr2"),
        ),
        about="Does the instrument work? One minute, no download.",
    )


BUILT_IN = {"smoke": _smoke}
