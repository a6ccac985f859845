"""One declaration per method: the CLI, sweeps, docs table and contract tests read nothing else. ::

    @method("logit_adjusted", kind="loss", family="margin", paper="arXiv:2007.07314", needs=("class_counts",),
            space={"tau": Float(0.1, 3.0, default=1.0, log=True)}, reduces_to=("cross_entropy", {"tau": 0.0}))
    class LogitAdjustedLoss(ClassLoss): ...

The declaration names the class on the command line, gives it a row in the docs and runs the shared tests on it, as soon as the
package of its kind imports its module: a loss of this package is imported in ``classgap/losses/__init__.py``.

A method of another package is found when that package names it as an entry point of the group ``classgap.methods.KIND``. Its
module is imported when the method is asked for by name, or when all methods of that kind are listed. ::

    [project.entry-points."classgap.methods.loss"]
    my_loss = "my_package.my_module:MyLoss"

A method in a single file needs no package: ``classgap train --plugin my_loss.py``, :func:`load_plugin`, or the environment
variable ``CLASSGAP_PLUGINS`` with one or more files, separated as in ``PATH``. A recipe or a suite may declare methods too, or
import a file that does. Processes started from this one, such as the workers of ``classgap bench``, know all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from classgap.checks import InputError, did_you_mean, shown
from classgap.scripts import load_script

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = Literal["loss", "posthoc", "optimizer", "sampler", "stage", "augmentation", "mix"]
# features, index and epoch are arguments of a loss; class_counts goes to its constructor; the rest shapes the model or batch.
# encoder_features: features are wanted as they are before a cosine head normalises them; cosine_head: raw cosines as logits.
Need = Literal[
    "features",
    "encoder_features",
    "cosine_head",
    "head",
    "index",
    "epoch",
    "class_counts",
    "views",
    "experts",
    "teacher",
]

# Where methods of a kind are declared; importing the package runs the declarations. Torch-side kinds load torch.
_HOMES: Mapping[Kind, str] = MappingProxyType(
    {
        "loss": "classgap.losses",
        "posthoc": "classgap.posthoc",
        "optimizer": "classgap.optim",
        "sampler": "classgap.samplers",
        "stage": "classgap.training.stages.methods",
        "augmentation": "classgap.data",
        "mix": "classgap.data",
    }
)

PLUGINS = "CLASSGAP_PLUGINS"  # environment variable

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True)
class Float:
    """A real parameter: search range, default, and whether to search on a log scale."""

    low: float
    high: float
    default: float
    log: bool = False


@dataclass(frozen=True)
class Int:
    """A whole-number parameter."""

    low: int
    high: int
    default: int
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    options: tuple[Any, ...]
    default: Any


Space = Float | Int | Choice


@dataclass(frozen=True)
class Method:
    """What is known of a method; made by :func:`method`. ``cls`` is its class, or a function that does all there is to do."""

    name: str
    kind: Kind
    cls: Callable[..., Any]
    family: str
    paper: str
    needs: frozenset[Need] = frozenset()
    optional: frozenset[Need] = frozenset()
    space: Mapping[str, Space] = field(default_factory=dict)
    reduces_to: tuple[str, Mapping[str, Any]] | None = None
    soft_targets: bool = True

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.cls) or "").split("\n", 1)[0]

    @property
    def defaults(self) -> dict[str, Any]:
        """Keyword parameters of the constructor with their defaults, without the ones every method shares."""
        shared = {"num_classes", "class_counts", "self"}
        parameters = inspect.signature(self.cls).parameters
        return {k: p.default for k, p in parameters.items() if k not in shared and p.default is not p.empty}

    def build(self, /, **params: Any) -> Any:
        """The method with these parameters; an unknown one is an error that names the near ones."""
        self.check(params)
        return self.cls(**params)

    def check(self, params: Iterable[str]) -> None:
        """Refuse names that are no parameters of this method."""
        parameters = inspect.signature(self.cls).parameters
        further = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = {name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
        known |= set(getattr(self.cls, "shared_options", ()) if further else ())
        for key in params:
            if key not in known:
                raise InputError(did_you_mean(key, known, what=f"parameter of {self.name}"))


_METHODS: dict[tuple[Kind, str], Method] = {}
_PLUGINS: dict[Path, ModuleType | None] = {}  # None while the file is being run


def method(
    name: str,
    *,
    kind: Kind,
    family: str,
    paper: str,
    needs: Sequence[Need] = (),
    optional: Sequence[Need] = (),
    space: Mapping[str, Space] | None = None,
    reduces_to: tuple[str, Mapping[str, Any]] | None = None,
    soft_targets: bool = True,
) -> Callable[[C], C]:
    """Declare the decorated class, or function, as method ``name``.

    Args:
        name: The one name used on the command line, in configs, tables and docs.
        family: Group in tables, e.g. ``"margin"`` or ``"reweight"``.
        paper: Where it comes from, e.g. ``"arXiv:2007.07314"``.
        needs: What a training loop has to supply beyond logits and target.
        optional: What the method does without, but computes something else when given: ``class_counts`` where they switch a form
            for long tails on. A training loop decides by its data (tested: no other argument does that unasked).
        space: Search range and default of each tunable parameter.
        reduces_to: ``(other method, parameters of this one)`` under which both agree in value and gradient (tested).
        soft_targets: Whether ``target`` may be ``(N, K)`` probabilities.
    """

    def declare(cls: C) -> C:
        key = (kind, name)
        if key in _METHODS and _place(_METHODS[key].cls) != _place(cls):
            raise InputError(f"{kind} {name!r} is declared twice: by {_place(_METHODS[key].cls)} and by {_place(cls)}")
        _METHODS[key] = Method(
            name,
            kind,
            cls,
            family,
            paper,
            frozenset(needs),
            frozenset(optional),
            MappingProxyType(dict(space or {})),
            reduces_to,
            soft_targets,
        )
        cls.method = _METHODS[key]  # type: ignore[attr-defined]
        return cls

    return declare


def _load(kind: Kind) -> None:
    home = _HOMES[kind]
    if importlib.util.find_spec(home) is None:
        return
    try:
        importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(f"{kind} methods need PyTorch: pip install 'classgap[torch]'") from error
    for file in filter(None, os.environ.get(PLUGINS, "").split(os.pathsep)):
        load_plugin(file)


def add_plugin(path: str | Path) -> None:
    """Let this process, and those it starts, load the methods of a Python file when methods are first asked for."""
    file = Path(path).resolve()
    if not file.is_file() or file.suffix != ".py":
        raise InputError(f"plugin {path} must be an existing Python file ending in .py")
    known = list(filter(None, os.environ.get(PLUGINS, "").split(os.pathsep)))
    os.environ[PLUGINS] = os.pathsep.join(dict.fromkeys([*known, str(file)]))


def load_plugin(path: str | Path) -> None:
    """Load the methods that a Python file declares with ``@method``; processes started from this one know them too.

    Example:
        >>> load_plugin("my_loss.py")  # doctest: +SKIP
        >>> classgap.train(settings=["method=my_loss"])  # doctest: +SKIP
    """
    add_plugin(path)
    file = Path(path).resolve()
    if file in _PLUGINS:
        return
    taken = sys.modules.get(file.stem)
    if taken is not None and getattr(taken, "__file__", None) == str(file):
        _PLUGINS[file] = taken  # imported already, under the name that its neighbours import it by
        return
    _PLUGINS[file] = None
    try:
        _PLUGINS[file] = load_script(file, "plugin", file.stem if taken is None else f"classgap_plugin_{file.stem}")
    except Exception:
        del _PLUGINS[file]
        raise


def load_with_methods(path: str | Path, what: str) -> ModuleType:
    """Run a recipe or suite; if it declares methods, processes started from this one know them too."""
    file, before = Path(path).resolve(), set(_METHODS)
    known = _PLUGINS.get(file)  # in a process that was started by one that knows the file
    module = load_script(file, what, f"{what}_{file.stem}" if known is None else known.__name__)
    if set(_METHODS) - before:
        add_plugin(file)
        _PLUGINS[file] = module
    return module


def _place(cls: Callable[..., Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _entry_points(kind: Kind) -> Mapping[str, EntryPoint]:
    """Methods of ``kind`` that installed packages offer, by name; nothing of them is imported yet."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=f"classgap.methods.{kind}")}


def _load_entry_point(kind: Kind, entry: EntryPoint) -> None:
    """Import the module of an entry point, which must declare the method it names; once it has, nothing is done."""
    package = entry.dist.name if entry.dist is not None else "an installed package"
    where = f"{kind} {entry.name!r} of {package} ({entry.value})"
    if (known := _METHODS.get((kind, entry.name))) is not None:
        if known.cls.__module__.partition(".")[0] != entry.module.partition(".")[0]:
            raise InputError(f"{where} is not used: {_place(known.cls)} has the same name")
        return
    try:
        entry.load()
    except Exception as error:  # whatever the code of another package raises
        raise InputError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if (kind, entry.name) not in _METHODS:
        raise InputError(f"{where} is not declared there; decorate it with @method({entry.name!r}, kind={kind!r}, …)")


def methods(kind: Kind) -> tuple[Method, ...]:
    """All methods of ``kind``, by name, those of other packages included. Loads torch for kinds that need it.

    A method of another package that cannot be loaded is left out with a warning.
    """
    _load(kind)
    for entry in _entry_points(kind).values():
        try:
            _load_entry_point(kind, entry)
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)
    return tuple(m for (k, _), m in sorted(_METHODS.items()) if k == kind)


def get(kind: Kind, name: str) -> Method:
    """The method called ``name``."""
    if not isinstance(name, str):
        raise InputError(f"the name of a {kind} must be text, got {shown(name)}")
    _load(kind)
    if (kind, name) not in _METHODS and name in (offered := _entry_points(kind)):
        _load_entry_point(kind, offered[name])
    if (kind, name) not in _METHODS:
        known = did_you_mean(name, (m.name for m in methods(kind)), what=kind)
        raise InputError(f"{known}; a method of your own is found with --plugin FILE or load_plugin(FILE)")
    return _METHODS[kind, name]
