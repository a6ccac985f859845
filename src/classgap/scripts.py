"""Python files of the user: recipes, suites, and methods of their own. A file may import its neighbours, as a script may."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from classgap.checks import InputError


def load_script(path: str | Path, what: str, name: str) -> ModuleType:
    """Run a Python file and return it as the module ``name``.

    Its folder stays on the module search path, so that its functions find the files beside it as well.
    """
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{what} {path} must be a Python file ending in .py")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # as for any import: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module
