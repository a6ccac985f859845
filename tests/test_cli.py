"""The command line as a whole: what every verb shares."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from classgap import cli


def test_a_missing_extra_is_one_sentence_and_exit_code_2(monkeypatch, capsys):
    def verb():
        raise ModuleNotFoundError("No module named 'lightning_fabric'", name="lightning_fabric")

    monkeypatch.setattr("classgap.cli.app.app", verb)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "pip install 'classgap[torch]'" in capsys.readouterr().err


def test_any_other_missing_module_is_a_bug_and_shows(monkeypatch):
    def verb():
        raise ModuleNotFoundError("No module named 'classgap.nowhere'", name="classgap.nowhere")

    monkeypatch.setattr("classgap.cli.app.app", verb)
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_characters_that_the_output_cannot_hold_are_replaced():
    code = "import classgap.cli.app as a; a.app = lambda: print('a → b'); import classgap.cli as c; c.main()"
    variables = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}  # as in a pipe on Windows
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True)
    assert (done.returncode, done.stdout.strip()) == (0, b"a ? b"), done.stderr.decode()
