"""The command line. One module per verb; each verb imports its dependencies when it runs, so ``--help`` is fast."""

from __future__ import annotations

import io
import os
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
    """Entry point. An input error, or an error of the operating system such as a full disk, prints one sentence and exits
    with code 2; any other error is a bug and shows its traceback."""
    from classgap.cli.app import app

    # The encoding of a file or pipe on Windows may lack "→" or "Δ": write "?" instead of failing.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        except SystemExit:
            if not isinstance(sys.stdout, io.TextIOWrapper):  # Click replaces it where the reader of a pipe has gone
                sys.exit(2)
            sys.stdout.flush()  # a full disk or a closed pipe shows here, before the exit code is final
            raise
    except InputError as error:
        print(f"classgap: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # nobody reads on; Python flushes once more at exit
        sys.exit(2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"classgap: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"classgap: this needs {error.name}: pip install 'classgap[{extra}]'", file=sys.stderr)
        sys.exit(2)
