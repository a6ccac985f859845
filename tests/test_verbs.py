"""The verbs as Python functions: ``classgap.fix``, ``train`` and ``bench``, and what their results hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

import classgap
from classgap import posthoc
from classgap.checks import InputError
from posthoc_data import Task, long_tailed_task

NAMES = ["ant", "bee", "cat", "dog", "eel"]


@pytest.fixture(scope="module")
def task() -> Task:
    return long_tailed_task(per_class=120)


@pytest.fixture(scope="module")
def fixed(task: Task) -> classgap.FixReport:
    return classgap.fix(
        task.y, scores=task.scores, head=(task.weight, task.bias), features=task.features, class_names=NAMES,
        train_counts=task.counts, folds=2,
    )  # fmt: skip


def test_fix_gives_method_comparison_and_corrected_predictions(fixed: classgap.FixReport, task: Task) -> None:
    assert fixed.helps
    assert fixed.verdict.startswith("Chosen by hard_if_overall_holds")
    assert fixed.comparison.classes == tuple(NAMES)
    assert fixed.comparison.num_samples == len(fixed.report_rows)
    np.testing.assert_array_equal(
        np.array(NAMES)[fixed.after.y_pred], fixed.method.predict(task.scores, features=task.features)
    )
    rows = fixed.report_rows
    again = classgap.compare(fixed.before.take(rows), fixed.after.take(rows))
    assert again.metrics["balanced"].delta.value == pytest.approx(fixed.comparison.metrics["balanced"].delta.value)


def test_a_result_folder_is_replaced_whole_and_other_files_stay(fixed: classgap.FixReport, tmp_path: Path) -> None:
    fixed.save(tmp_path)
    assert {"report.html", "head.safetensors", "method", "predictions.csv"} <= {p.name for p in tmp_path.iterdir()}
    (tmp_path / "notes.txt").write_text("mine")
    rng = np.random.default_rng(0)
    useless = classgap.fix(np.repeat(np.arange(3), 60), scores=rng.normal(size=(180, 3)), folds=2)
    useless.save(tmp_path)
    left = {p.name for p in tmp_path.iterdir()}
    assert "notes.txt" in left
    assert "methods.md" in left
    assert not left & {"head.safetensors", "method", "predictions.csv"}
    with pytest.raises(InputError, match=r"must be a folder for the output.*is a file"):
        fixed.save(tmp_path / "notes.txt")


def test_a_method_remembers_that_it_was_fitted_on_probabilities(task: Task, tmp_path: Path) -> None:
    """It worked on their logarithms and took probabilities for logits afterwards: 35 % where 82 % was right."""
    p = softmax(task.scores, axis=1)
    result = classgap.fix(task.y, scores=p, class_names=NAMES, train_counts=task.counts, folds=2)
    result.save(tmp_path)
    loaded = posthoc.load(tmp_path / "method")
    assert loaded.scores_kind_ == "probabilities"
    np.testing.assert_array_equal(loaded.predict(p), np.array(NAMES)[result.after.y_pred])
    with pytest.raises(InputError, match=r"scores must be probabilities.*look like logits"):
        loaded.predict(task.scores)


@pytest.mark.parametrize("method", [posthoc.MARC(), posthoc.LogitAdjustment(tau=1.0), posthoc.VectorScaling()])
def test_methods_take_probabilities_as_their_logarithms(method: posthoc.PostHocMethod, task: Task) -> None:
    p = softmax(task.scores, axis=1)
    by_probabilities = method.fit(p, task.y, class_counts=task.counts).transform(p)
    by_logits = method.fit(np.log(p), task.y, class_counts=task.counts).transform(np.log(p))
    np.testing.assert_allclose(by_probabilities, by_logits)
    with pytest.raises(InputError, match=r"scores must be logits.*look like probabilities; pass the logits"):
        method.transform(p)


@pytest.mark.parametrize("noise", [1e-7, 2e-3])
def test_rounded_probabilities_are_still_probabilities(noise: float, task: Task) -> None:
    probabilities = softmax(task.scores, axis=1)
    rounded = np.minimum(probabilities * (1 + noise), 1)
    rounded[0] = 1.0000001, -1e-9, 0, 0, 0
    method = posthoc.LogitAdjustment().fit(probabilities, task.y)
    assert method.scores_kind_ == "probabilities"
    np.testing.assert_array_equal(method.predict(rounded)[1:], method.predict(probabilities)[1:])


def test_one_row_of_logits_that_looks_like_probabilities_is_corrected(task: Task) -> None:
    method = posthoc.MARC().fit(task.scores, task.y)
    row = np.array([[0.5, 0.25, 0.25, 0.0, 0.0]])
    np.testing.assert_allclose(method.transform(row), row * method.scale_ + method.offset_)


def test_a_saved_method_with_arrays_of_another_fit_is_refused(task: Task, tmp_path: Path) -> None:
    one = posthoc.save(posthoc.MARC().fit(task.scores, task.y), tmp_path / "one")
    other = posthoc.save(posthoc.MARC(gamma=0.0).fit(task.scores, task.y), tmp_path / "other")
    (one / "method.safetensors").write_bytes((other / "method.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"does not match method\.json"):
        posthoc.load(one)
    (other / "method.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        posthoc.load(other)


def test_train_takes_settings_and_gives_predictions(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = ["epochs=2", "data.per_class=16", "model=mlp-16"]
    result = classgap.train(folder=tmp_path / "run", settings=settings)
    report = classgap.audit(result.test.predictions())
    from_file = classgap.audit(tmp_path / "run" / "predictions_test.npz")
    assert report.overall == from_file.overall
    assert result.config.epochs == 2


def test_bench_runs_a_suite_and_repeats_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from classgap.suites import Suite, Task, Variant

    base = classgap.TrainConfig().override(["epochs=1", "data.per_class=16", "model=mlp-16"])
    suite = Suite("tiny", (Task("digits", base),), (Variant("cross_entropy"), Variant("mr2", "mr2")), seeds=(0,))
    found = classgap.bench(suite, out=tmp_path)
    assert not found.failed
    assert not found.missing
    assert "mr2" in found.to_markdown()
    stamp = (tmp_path / "results.jsonl").stat().st_mtime_ns
    assert len(classgap.bench(suite, out=tmp_path).results) == 2
    assert (tmp_path / "results.jsonl").stat().st_mtime_ns == stamp
