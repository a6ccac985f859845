"""The order of the packages: a module imports what stands to its left, never what stands to its right.

Read from the source with ``ast``, so that imports inside functions and under ``TYPE_CHECKING`` count too.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import classgap

SOURCE = Path(classgap.__file__).parent
ORDER = (
    "checks named writing arrays scripts registry formulas cards | predictions | measure | posthoc | batchstats | "
    "heads optim samplers losses | "
    "data models | training | suites integrations testing tuning | recipes | cli"
)
LAYERS = [name for name in ORDER.split() if name != "|"]
WITHOUT_TORCH = (
    "checks",
    "named",
    "writing",
    "arrays",
    "scripts",
    "registry",
    "formulas",
    "cards",
    "predictions",
    "measure",
    "posthoc",
)
MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    """The name in ``ORDER`` under which a file belongs; the empty one for the files of the package itself."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first in ("__init__", "__main__") else first


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported(path: Path) -> list[tuple[str, int]]:
    """Every imported name, as ``package.module.name``, with its line. The names that ``classgap`` offers are looked up."""
    return list(_imported(path, parsed(path)))


def _imported(path: Path, tree: ast.Module) -> Iterator[tuple[str, int]]:
    bare = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bare |= alias.name == "classgap"
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import"
            for alias in node.names:
                yield resolved(f"{node.module}.{alias.name}"), node.lineno
    if bare:  # import classgap; classgap.audit(…)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "classgap":
                yield resolved(f"classgap.{node.attr}"), node.lineno


def resolved(name: str) -> str:
    """``classgap.audit`` is ``classgap.measure.audit``."""
    package, _, rest = name.partition(".")
    home = classgap._LAZY.get(rest) if package == "classgap" else None
    return f"{home}.{rest}" if home else name


def packages(path: Path) -> Iterator[tuple[str, int]]:
    """The names in ``ORDER`` that a file imports from."""
    for name, line in imported(path):
        parts = name.split(".")
        if parts[0] == "classgap" and len(parts) > 1 and parts[1] != "__version__":
            yield parts[1], line


def test_every_module_has_a_layer():
    assert {layer_of(path) for path in MODULES} - {""} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_module_imports_what_stands_to_its_left(layer):
    left = LAYERS[: LAYERS.index(layer) + 1]
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports classgap.{name}"
        for path in MODULES
        if layer_of(path) == layer
        for name, line in packages(path)
        if name not in left
    ]
    assert wrong == []


def users(library: str) -> set[str]:
    """The layers that import ``library`` or a part of it."""
    return {
        layer_of(path)
        for path in MODULES
        for name, _ in imported(path)
        if name == library or name.startswith(f"{library}.")
    }


def test_measuring_and_post_hoc_methods_never_import_torch():
    assert users("torch") & set(WITHOUT_TORCH) == set()
    assert users("torch") <= set(LAYERS)  # nor does the package itself


def test_only_batchstats_talks_to_other_processes():
    """Losses, heads and samplers ask ``batchstats``. A training run starts its processes with Lightning Fabric."""
    assert users("torch.distributed") == {"batchstats"}
    assert users("lightning_fabric") == {"training"}


def test_the_order_is_the_one_contributors_read():
    contributing = SOURCE.parent.parent / "CONTRIBUTING.md"
    if not contributing.is_file():
        pytest.skip("CONTRIBUTING.md is not beside this installation")
    assert f"`{ORDER}`" in contributing.read_text(encoding="utf-8")


@pytest.mark.parametrize("claim", ["Loads no torch", "NumPy only"])
def test_what_a_module_says_of_its_imports_is_true(claim):
    """``Loads no torch`` allows an import inside a function; ``NumPy only`` allows no other library at all."""
    for path in (path for path in MODULES if claim in (ast.get_docstring(parsed(path)) or "")):
        top = [node for node in parsed(path).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        roots = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
        roots |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
        assert not {root for root in roots if root.split(".")[0] in ("torch", "lightning_fabric")}, path
        if claim == "NumPy only":
            assert not {root for root in roots if root.split(".")[0] in ("scipy", "sklearn", "polars", "pandas")}, path
