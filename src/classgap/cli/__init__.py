"""The command line. One module per verb; each verb imports its dependencies when it runs, so ``--help`` is fast."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator


def main() -> None:
    """Entry point. An error of the input or of the operating system, such as a full disk, prints one sentence and exits with
    code 2 (1 is the code of a failed gate); any other error is a bug and shows its traceback."""
    from classgap.cli.app import app
    from classgap.cli.errors import sentence_for
    from classgap.cli.paths import check_filled

    _prepare_streams()
    try:
        try:
            check_filled(sys.argv[1:])
            with _ending_on_request(), _showing_notes():
                app()
        except SystemExit:
            if not isinstance(sys.stdout, io.TextIOWrapper):  # Click replaces it where the reader of a pipe has gone
                sys.exit(2)
            sys.stdout.flush()  # a full disk or a closed pipe shows here, before the exit code is final
            raise
    except BrokenPipeError:
        _discard_output()  # nobody reads on
        sys.exit(2)
    except Exception as error:
        sentence = sentence_for(error)
        if sentence is None:
            raise
        _discard_output()
        with contextlib.suppress(OSError):
            print(f"classgap: {sentence}", file=sys.stderr, flush=True)
        sys.exit(2)


@contextlib.contextmanager
def _ending_on_request() -> Iterator[None]:
    """Within this block SIGTERM ends the program as Ctrl-C does: what is half-written is removed, what was there stays."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _showing_notes() -> Iterator[None]:
    """Within this block a warning for the user is one line."""
    before, warnings.formatwarning = warnings.formatwarning, _as_note
    try:
        yield
    finally:
        warnings.formatwarning = before


def _as_note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """The text of a warning; one that shows a fault of the program names its place."""
    if issubclass(category, UserWarning):
        return f"note: {' '.join(str(message).split())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _prepare_streams() -> None:
    """Make printing possible: a closed stream discards text, and characters that the encoding lacks become "?"."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Python flushes standard output once more at exit; text that could not be written would be an error again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
