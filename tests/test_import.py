"""``import classgap`` is light, and the measuring half never loads torch."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "polars", "altair", "sklearn", "scipy", "pandas", "jinja2", "vl_convert", "matplotlib")


def run(code: str):
    """Output of ``code`` in a fresh interpreter, read as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_is_quick_and_light():
    code = (
        "import time; start = time.process_time(); import classgap; spent = time.process_time() - start\n"
        f"import json, sys; print(json.dumps([spent, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    seconds, heavy = run(code)
    assert seconds < 0.3  # of the processor, whatever else it has to do; 0.03 are usual
    assert heavy == []


def test_auditing_and_comparing_need_no_torch():
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('no torch here')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "import classgap, json\n"
        "a = classgap.audit([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0], features=[[0.0], [1], [2], [3], [4], [5.5]])\n"
        "c = classgap.compare(a, a); a.to_markdown(); c.to_dict()\n"
        "print(json.dumps([a.overall.value, [m for m in ('polars', 'altair', 'pandas') if m in sys.modules]]))"
    )
    value, heavy = run(code)
    assert abs(value - 4 / 6) < 1e-12
    assert heavy == []


def test_lazy_names_are_listed():
    import classgap

    assert {"audit", "compare", "AuditReport", "Comparison", "Estimate"} <= set(dir(classgap))
