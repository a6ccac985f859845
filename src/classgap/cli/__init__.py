"""The command line. One module per verb; a verb imports what it needs when it runs, so ``--help`` is quick."""

from __future__ import annotations

import sys

from classgap._checks import InputError


def main() -> None:
    """Entry point. Input errors are one sentence and exit code 2; anything else is a bug and shows its traceback."""
    from classgap.cli._app import app

    try:
        app()
    except InputError as error:
        print(f"classgap: {error}", file=sys.stderr)
        sys.exit(2)
