"""bfloat16 on processors that cannot compute it: child processes really die of SIGILL, and the user gets a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from classgap.checks import InputError
from classgap.training import TrainConfig, precision
from classgap.training.precision import LIMIT, VARIABLE, probe_bf16, require_precision, set_up_precision
from waiting import SECONDS

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGILL that a process can send to itself")

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
DIES_UNLESS_LIMITED = (
    f"import os, signal\nif os.environ.get({VARIABLE!r}) != {LIMIT!r}:\n    {DIES}\nprint('works', 0.5)"
)
WORKS = "print('works', 0.5)"
SMALL = ["data.per_class=13", "epochs=1", "batch=24", "model=mlp-16", "precision=bf16-mixed"]

# A processor whose bfloat16 products end the process, unless oneDNN was limited when the process first computed a product.
PROCESSOR = """
    import os, resource, signal, sys
    from importlib.machinery import PathFinder

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != "torch.nn.functional":
                return None
            spec = PathFinder.find_spec(name, path)
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                import torch

                limit, linear = [], module.linear

                def guarded(input, *rest):
                    limit[:] = limit or [os.environ.get("ONEDNN_MAX_CPU_ISA")]
                    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
                    if kind is torch.bfloat16 and limit != [os.environ["TEST_WORKS_WITH"]]:
                        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                        os.kill(os.getpid(), signal.SIGILL)
                    return linear(input, *rest)

                module.linear = guarded

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if nothing had been tried yet; what a test sets is forgotten after it."""
    for name in (precision._KNOWN, VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("program", "works", "limited", "reason"),
    [
        (WORKS, True, False, ""),
        (DIES_UNLESS_LIMITED, True, True, "was killed by signal 4, Illegal instruction"),
        (DIES, False, False, "was killed by signal 4, Illegal instruction"),
        ("raise SystemExit('no torch here')", False, False, "ended with code 1 (no torch here)"),
        ("pass", False, False, "ended with code 0"),
    ],
    ids=["works", "works_limited", "dies", "error", "silent"],
)
def test_a_child_process_finds_out(unknown: Any, program: str, works: bool, limited: bool, reason: str) -> None:
    unknown.setattr(precision, "_PROGRAM", program)
    found = probe_bf16()
    assert (found.works, found.limited, found.reason) == (works, limited, reason)
    assert found.ready == (works and not limited)
    found.export()
    assert found.ready == works
    assert os.environ.get(VARIABLE) == (LIMIT if limited else None)
    assert (VARIABLE in found.sentence) == limited
    assert ("do not work on this processor" in found.sentence) == (not works)
    unknown.setattr(subprocess, "run", None)
    assert probe_bf16() == found  # no process is started again, nor by a child that inherits the environment


def test_a_child_that_does_not_answer_is_given_up(unknown: Any) -> None:
    unknown.setattr(precision, "_PROGRAM", "import time; time.sleep(600)")
    unknown.setattr(precision, "_SECONDS", 0.1)
    assert probe_bf16().reason == "gave no answer within 0.1 seconds"


@pytest.mark.parametrize(
    ("measured", "said"),
    [("2.1", "bfloat16 takes about 2.1 times as long as float32"), ("3.0", "about 3 times"), ("1.2", ""), ("0", "")],
)
def test_slow_bfloat16_is_said(unknown: Any, measured: str, said: str) -> None:
    unknown.setattr(precision, "_PROGRAM", f"print('works', {measured})")
    sentence = set_up_precision("bf16-mixed")
    assert sentence.startswith("bfloat16 takes") == bool(said)
    assert said in sentence
    assert set_up_precision("32-true") == ""
    require_precision("bf16-mixed")  # slow, but not refused


def test_limited_and_slow_is_one_sentence(unknown: Any) -> None:
    unknown.setattr(precision, "_PROGRAM", DIES_UNLESS_LIMITED.replace("0.5", "1.7"))
    sentence = set_up_precision("bf16-mixed", children=True)
    assert "only with ONEDNN_MAX_CPU_ISA" in sentence
    assert sentence.endswith(
        "about 1.7 times as long as float32 on this processor (measured on a small network); precision=32-true is faster"
    )


def test_the_limit_may_not_come_too_late(unknown: Any) -> None:
    """This process has loaded torch: it does not set the variable for itself, only for the processes it starts."""
    unknown.setattr(precision, "_PROGRAM", DIES_UNLESS_LIMITED)
    assert set_up_precision("32-true") == ""
    assert precision._KNOWN not in os.environ
    assert set_up_precision("bf16-mixed") == ""
    with pytest.raises(
        InputError, match=r"precision=bf16-mixed: .* only with ONEDNN.* set this variable before Python"
    ):
        require_precision("bf16-mixed")
    require_precision("32-true")
    assert "work on this processor only with" in set_up_precision("bf16-true", children=True)
    assert os.environ[VARIABLE] == LIMIT


@pytest.mark.bf16
def test_the_program_works_on_this_processor() -> None:
    found = probe_bf16()
    assert found.ready
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert (found.times_float32 > 0) == (not gpu)


@pytest.fixture
def processor(tmp_path: Path) -> Any:
    """Runs the command line as on a processor where bfloat16 works with the given limit only."""
    (tmp_path / "processor").mkdir()
    (tmp_path / "processor" / "sitecustomize.py").write_text(textwrap.dedent(PROCESSOR))

    def run(works_with: str, *arguments: str, known: str = "") -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key not in (precision._KNOWN, VARIABLE)}
        path = os.pathsep.join(filter(None, [str(tmp_path / "processor"), env.get("PYTHONPATH", "")]))
        env |= {"PYTHONPATH": path, "TEST_WORKS_WITH": works_with, precision._KNOWN: known}
        command = [sys.executable, "-m", "classgap", *arguments]
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    return run


def _sets(*settings: str) -> list[str]:
    return [part for setting in (*SMALL, *settings) for part in ("--set", setting)]


def test_training_takes_the_setting_that_works(processor: Any) -> None:
    done = processor(LIMIT, "train", *_sets(), "--accelerator", "cpu", "--devices", "2", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"only with {VARIABLE}={LIMIT}") == 1  # by one of two processes
    assert "overall" in done.stdout


def test_training_stops_with_a_sentence_where_no_setting_works(processor: Any, tmp_path: Path) -> None:
    failed = processor("nothing", "train", *_sets(), "--out", "run", "--accelerator", "cpu")
    assert failed.returncode == 2
    line = failed.stderr.strip().splitlines()[-1]  # before it Fabric says what it was asked for
    assert line.startswith("classgap: precision=bf16-mixed: bfloat16 products do not work on this processor")
    assert "use precision=32-true" in line
    assert not (tmp_path / "run").exists()


def test_bench_workers_take_the_setting_that_works(processor: Any, tmp_path: Path) -> None:
    """Also after a job in single precision has made the worker compute."""
    (tmp_path / "mine.py").write_text(
        "from classgap.suites import Suite, Task, Variant\n"
        "from classgap.training import TrainConfig\n"
        "def suite():\n"
        f"    base = TrainConfig().override({SMALL})\n"
        "    variants = (Variant('single', settings=('precision=32-true',)), Variant('half'))\n"
        "    return Suite('mine', (Task('digits', base),), variants, seeds=(0,))\n"
    )
    done = processor(LIMIT, "bench", "mine.py", known=json.dumps([True, True, "was killed"]))
    assert done.returncode == 0, done.stderr
    assert f"only with {VARIABLE}={LIMIT}" in done.stderr


def test_the_simulated_processor_does_kill(processor: Any) -> None:
    """A run that was told that nothing is to be set ends by the signal; so the tests above can fail."""
    killed = processor(
        LIMIT, "train", *_sets(), "--out", "run", "--accelerator", "cpu", known=json.dumps([True, False])
    )
    assert killed.returncode == -signal.SIGILL


@pytest.mark.parametrize("how", ["settings", "recipe", "resume"])
def test_the_command_line_chooses_before_it_loads_torch(tmp_path: Path, how: str) -> None:
    (tmp_path / "recipe.py").write_text(
        f"from classgap.training import TrainConfig\nconfig = lambda quick: TrainConfig().override({SMALL})\n"
    )
    config = TrainConfig().override(SMALL)
    (tmp_path / "run.json").write_text(json.dumps({"config": config.to_dict()}))
    words = {"settings": _sets(), "recipe": ["recipe.py"], "resume": ["--resume", "--out", "."]}[how]
    program = (
        "import sys, classgap.training.precision as precision\n"
        "from classgap.cli.app import app\n"
        "def check(name, **_):\n"
        "    sys.exit(f'{name}, torch loaded: {\"torch\" in sys.modules}')\n"
        "precision.set_up_precision = check\n"
        f"app({['train', *words]})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "bf16-mixed, torch loaded: False"
