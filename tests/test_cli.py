"""The command line as a whole: what every verb shares."""

from __future__ import annotations

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
