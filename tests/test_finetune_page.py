"""The numbers of docs/finetune.md are those that benchmarks/finetune.py wrote, for the commands of the page."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    pytest.importorskip("PIL")
    place = ROOT / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        spec = importlib.util.spec_from_file_location("finetune_benchmark", place / "finetune.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules.pop("machine", None)
    return module


def test_the_section_is_generated(benchmark: Any) -> None:
    found = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))
    text = benchmark.PAGE.read_text(encoding="utf-8")
    assert benchmark.page(text, found) == text
    changed = {**found, "probe": {**found["probe"], "hard": 0.123}}
    assert "12.3 %" in benchmark.page(text, changed)


def test_the_commands_of_the_page_were_run(benchmark: Any) -> None:
    commands = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))["commands"]
    for verb in ("features", "probe"):
        assert shlex.split(commands[verb]["command"]) == benchmark.documented(verb)
    train = benchmark.documented("train")
    assert shlex.split(commands["train 0"]["command"]) == [*train, "--set", "seed=0", "--resume"]
    assert all(step["processor_seconds"] > 0 for step in commands.values())
