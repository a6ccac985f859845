"""``classgap demo`` from end to end, with shorter runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from classgap.cli import demo
from classgap.cli.app import app

pytest.importorskip("torch")


def test_demo_trains_compares_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = demo.demo_config

    def shorter(*arguments: Any) -> Any:
        return real(*arguments).override(["epochs=3"])

    monkeypatch.setattr(demo, "demo_config", shorter)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classgap-demo").mkdir()  # an earlier demo is not touched
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "classgap-demo-2"
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert {(r["method"], r["seed"]) for r in records} == {(m, s) for m in demo.METHODS for s in demo.SEEDS}
    assert len({r["split_hash"] for r in records}) == 1
    assert all(r["easy"] >= r["hard"] >= r["worst"] for r in records)
    assert "</html>" in (folder / "report-mr2.html").read_text()
    for record in records:
        assert (folder / f"{record['method']}-seed{record['seed']}" / "checkpoint.pt").exists()
    for word in ("overall", "easy", "medium", "hard", "worst", "report-mr2.html", "results.jsonl"):
        assert word in done.output
    assert not list((tmp_path / "classgap-demo").iterdir())
