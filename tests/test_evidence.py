"""Committed evidence belongs to its suites, and its page says what the results say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from classgap.bench import load_suite, read_results

EVIDENCE = Path(__file__).resolve().parents[1] / "benchmarks" / "evidence"


@pytest.mark.parametrize("path", sorted(EVIDENCE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_results_belong_to_their_suite(path: Path) -> None:
    results, suite = read_results([path]), load_suite(str(path.with_suffix(".py")))
    asked = {job.key for job in suite.jobs()}
    assert not set(results) - asked, "runs that no table shows; keep them in superseded/"
    for result in results.values():
        assert result.diverged or int(result.support.sum()) == len(result.predictions(result.candidates[0]))


@pytest.mark.slow
def test_the_page_of_evidence_is_what_the_results_say() -> None:
    spec = importlib.util.spec_from_file_location("evidence_page", EVIDENCE / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.pages().items():
        assert (module.DOCS / name).read_text() == text, "run python benchmarks/evidence/page.py"
