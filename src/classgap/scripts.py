"""Python files of the user: recipes, suites, and methods of their own. A file may import its neighbours, as a script may."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from classgap.checks import InputError, printable

_SHOWN = 80  # characters of a line in a message


@contextlib.contextmanager
def explained(path: str | Path, what: str) -> Iterator[None]:
    """Turn an error in the user's file into one sentence that names its line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        file = Path(path).resolve()
        number, line = _place(error, file)
        if number is None and isinstance(error, InputError):
            raise  # about the file as a whole
        text = _short(line or "")
        where = "" if number is None else f" in line {number}" + (f" ({text})" if text else "")
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"{what} {path} failed{where}: {kind}{printable(reason)}") from error


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _place(error: BaseException, file: Path) -> tuple[int | None, str | None]:
    """Number and text of the line of ``file`` where the error arose."""
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename) == file:
        return error.lineno, error.text
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file]
    return (frames[-1].lineno, frames[-1].line) if frames else (None, None)


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
        with explained(path, what):
            spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module
