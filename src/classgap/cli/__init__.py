"""The command line. One module per verb; each verb imports its dependencies when it runs, so ``--help`` is fast."""

from __future__ import annotations

import io
import sys

from classgap.checks import InputError

# Modules that only an extra installs, and the name of that extra.
_EXTRAS = {
    "torch": "torch",
    "lightning_fabric": "torch",
    "filelock": "torch",
    "torchvision": "vision",
    "timm": "vision",
}


def main() -> None:
    """Entry point. An input error prints one sentence and exits with code 2; any other error is a bug and shows its traceback."""
    from classgap.cli.app import app

    # The encoding of a file or pipe on Windows may lack "→" or "Δ": write "?" instead of failing.
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
