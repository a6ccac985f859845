"""The command line. One module per verb; a verb imports what it needs when it runs, so ``--help`` is quick."""

from __future__ import annotations

import io
import sys

from classgap.checks import InputError

# Packages that come with an extra, not with the package itself.
_EXTRAS = {
    "torch": "torch",
    "lightning_fabric": "torch",
    "filelock": "torch",
    "torchvision": "vision",
    "timm": "vision",
}


def main() -> None:
    """Entry point. Input errors are one sentence and exit code 2; anything else is a bug and shows its traceback."""
    from classgap.cli.app import app

    # A file or a pipe on Windows may be unable to hold "→" or "Δ": "?" is better than a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except InputError as error:
        print(f"classgap: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"classgap: this needs {error.name}: pip install 'classgap[{extra}]'", file=sys.stderr)
        sys.exit(2)
