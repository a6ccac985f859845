"""What papers print beside accuracies, measured after a run, and rows that cannot be run here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_suite import tiny
from classgap.checks import InputError
from classgap.suites import Published, Suite, append_results, read_results
from classgap.suites.jobs import JobFolder
from classgap.suites.measures import QUANTITIES, measure
from classgap.suites.published import published_tables
from classgap.suites.work import run_job
from classgap.training.outputs import SplitOutputs

NAMES = ("low", "middle", "top", "fourth")


@pytest.fixture(scope="module")
def outputs() -> SplitOutputs:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    features = rng.normal(size=(120, 3)) + 2 * np.eye(4, 3)[y]
    weight = rng.normal(size=(4, 3))
    counts = np.array([500, 100, 20, 3])
    single = {"features": features, "weight": weight, "scores": features @ weight.T}
    return SplitOutputs(
        y, bias=None, class_names=NAMES, train_counts=counts, **{k: v.astype("f") for k, v in single.items()}
    )


def test_measures_are_those_of_the_definitions(outputs: SplitOutputs) -> None:
    y, phi = outputs.y_true, outputs.features.astype(float)
    p = np.exp(outputs.scores) / np.exp(outputs.scores).sum(1, keepdims=True)
    margin = np.array([p[i, k] - np.delete(p[i], k).max() for i, k in enumerate(y)])
    by_class = np.array([margin[y == k].mean() for k in range(4)])
    right = np.array([(outputs.y_pred == y)[y == k].mean() for k in range(4)])
    hard = np.argsort(-right, kind="stable")[-1:]  # thirds of four classes: 2, 1, 1
    unit = outputs.weight / np.linalg.norm(outputs.weight, axis=1, keepdims=True)  # type: ignore[operator]
    angles = np.degrees(np.arccos((unit @ unit.T)[~np.eye(4, dtype=bool)]))
    means = np.array([phi[y == k].mean(0) for k in range(4)])
    spread = np.array([np.sqrt(((phi[y == k] - means[k]) ** 2).sum(1).mean()) for k in range(4)])
    wanted = {
        "output margin": by_class.mean(),
        "output margin, hard": by_class[hard].mean(),
        "output margin, medium-shot": by_class[1:3].mean(),  # 20 to 100 training samples
        "classifier angle": angles.min(),
        "feature spread, class top": spread[2],
        "feature mean, class low": np.linalg.norm(means[0]),
        "feature ratio": (spread / np.linalg.norm(means, axis=1)).mean(),
    }
    assert measure(outputs, tuple(wanted)) == pytest.approx(wanted, rel=1e-4)


def test_separability_is_the_fisher_criterion(outputs: SplitOutputs) -> None:
    phi = outputs.features / np.linalg.norm(outputs.features, axis=1, keepdims=True)
    groups = [phi[outputs.y_true == k].astype(float) for k in range(4)]
    means, covariances = [g.mean(0) for g in groups], [np.cov(g.T) for g in groups]
    of_few = []
    for j in range(3):
        gap = means[3] - means[j]
        of_few.append(gap @ np.linalg.inv(covariances[3] + covariances[j]) @ gap)
    found = measure(outputs, ("separability, few-shot",))["separability, few-shot"]
    assert found == pytest.approx(np.mean(of_few), rel=0.01)  # a small ridge


def test_unknown_measures_are_named(outputs: SplitOutputs) -> None:
    for name in ("angle", "output margin, worst"):
        with pytest.raises(InputError, match="a measure must be one of output margin, classifier angle"):
            measure(outputs, (name,))
    with pytest.raises(InputError, match="a measure must be one of"):
        tiny(published=(Published("digits", "erm", "Table 4", {}, measures={"margin": 0.1}),))
    assert all(quantity.meaning for quantity in QUANTITIES.values())


def measuring(**changes: Any) -> Suite:
    asked = Published("digits", "erm", "Table 4", {}, measures={"output margin, hard": 0.093, "classifier angle": 58.4})
    gone = Published("digits", "RIDE", "Table 3", {"overall": 54.9}, absent="not part of this package")
    return tiny(published=(asked, gone), seeds=(0,), **changes)


def test_a_run_is_measured_and_stands_beside_the_paper(tmp_path: Path) -> None:
    suite = measuring()
    assert [job.measures for job in suite.jobs(only=["*/erm", "*/mr2"])] == [
        ("output margin, hard", "classifier angle"),
        (),
    ]
    (job,) = suite.jobs(only=["*/erm"])
    run = run_job(job, JobFolder(tmp_path, job))
    (measured,) = published_tables(suite, {run.key: run}, only=["*/erm"])
    hard, angle = (run.measures[name] for name in ("output margin, hard", "classifier angle"))
    assert hard is not None
    assert angle is not None
    assert measured.title == "digits: published measures"
    assert measured.rows == (
        (
            "erm",
            "Table 4",
            "1",
            f"0.093 → {hard:.3f} ({hard - 0.093:+.3f})",
            f"58.4 → {angle:.1f} ({angle - 58.4:+.1f})",
        ),
    )
    append_results(tmp_path / "again.jsonl", [run])
    assert next(iter(read_results([tmp_path / "again.jsonl"]).values())).measures == run.measures
    before = {run.key: dataclasses.replace(run, measures={})}  # a run from before this was measured
    assert published_tables(suite, before)[1].rows[0][3:] == ("0.093", "58.4")


def test_rows_that_cannot_be_run_are_shown() -> None:
    first, _ = published_tables(measuring(), {})
    assert first.rows == (("RIDE", "Table 3", "not run", "54.9"),)
    assert "RIDE, Table 3: not part of this package." in first.caption
    assert published_tables(measuring(), {}, only=["*/mr2"]) == []
    with pytest.raises(InputError, match="marked as absent, but the suite has this run"):
        tiny(published=(Published("digits", "erm", "Table 3", {"overall": 1.0}, absent="for no reason"),))
