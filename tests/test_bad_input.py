"""Unusual and malformed input: a right answer or one sentence, never a wrong answer and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from classgap import Columns, Predictions, audit
from classgap.checks import InputError, printable
from classgap.cli.compare import runs
from classgap.measure import gate
from classgap.posthoc.estimators.lowest_cost import check_cost
from classgap.predictions import SliceCounts, read_cost, read_names, read_train_counts
from command_line import call

GOOD = "y_true,y_pred\na,a\nb,b\nb,a\n"


def run(folder: Path, *arguments: str, stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "classgap", *arguments]
    return subprocess.run(command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_paths_are_literal(tmp_path: Path) -> None:
    """``x[12].csv`` was read as a pattern, and gave the content of ``x1.csv``."""
    (tmp_path / "x1.csv").write_text("y_true,y_pred\na,a\nb,b\n")
    (tmp_path / "x[12].csv").write_text("y_true,y_pred\na,b\nb,b\n")
    assert audit(tmp_path / "x[12].csv").overall.value == 0.5
    with pytest.raises(InputError):
        audit(tmp_path / "x*.csv")


def test_duplicate_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("y_true,y_pred,y_pred\na,a,b\nb,b,b\n")
    with pytest.raises(InputError, match="two columns named 'y_pred'"):
        audit(tmp_path / "two.csv")


def test_a_byte_order_mark_and_unicode_separators_do_not_change_names(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes("\ufeffa\nb\u2028c\nd\x0ce\r\n".encode())
    assert read_names(tmp_path / "names.txt") == ["a", "b\u2028c", "d\x0ce"]


@pytest.mark.parametrize(("name", "text"), [("c.csv", "class,count\na,1\na,2\n"), ("c.json", '{"a": 1, "a": 2}')])
def test_a_class_may_be_counted_once(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="'a' occurs twice"):
        read_train_counts(tmp_path / name)


@pytest.mark.parametrize(
    ("y_true", "y_pred", "hint"),
    [
        (["eight", "nine"], ["Eight", "Nine"], "differ only in case or spaces"),
        (["eight", "nine"], [" eight", " nine"], "differ only in case or spaces"),
        (["caf\u00e9", "th\u00e9"], ["cafe\u0301", "the\u0301"], "differ only in case, spaces or Unicode form"),
        ([0, 1, 1], [7, 8, 8], "no sample would be correct"),
    ],
)
def test_labels_without_a_common_value_are_refused(y_true: list[object], y_pred: list[object], hint: str) -> None:
    """Such a file passed every gate: all classes are equally bad, so there is no gap."""
    with pytest.raises(InputError, match=f"no label in common.*{hint}"):
        audit(y_true, y_pred)
    assert audit([0, 0], [1, 1], class_names=["a", "b"]).overall.value == 0  # with names there is no doubt


def test_a_regression_is_not_a_classification(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.round(rng.random((300, 2)), 3)
    (tmp_path / "r.csv").write_text("y_true,y_pred\n" + "\n".join(f"{a},{b}" for a, b in values))
    with pytest.raises(InputError, match="different decimal numbers"):
        audit(tmp_path / "r.csv")


def test_a_regression_on_whole_numbers_gets_a_note_and_fails_every_gate() -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(25, 346, 442)
    report = audit(target, np.rint(0.5 * target + 75 + rng.normal(0, 30, 442)).astype(int))
    assert any("target of a regression" in note for note in report.notes)
    (outcome,) = gate.check(report, ["gap > 2%"])
    assert outcome.failed
    assert "target of a regression" in outcome.sentence
    classes = np.repeat(np.arange(200), 2)  # as many classes with as few samples, but a classifier
    assert not any("regression" in note for note in audit(classes, np.where(rng.random(400) < 0.5, classes, 0)).notes)


@pytest.mark.parametrize("odd", ["\0", "\a", "\x1b[31m", "\x0b", "\n", "\ufffe", "\ud800", "\u2028"])
def test_names_are_shown_with_printable_characters(odd: str, tmp_path: Path) -> None:
    """Some aborted the process that renders figures; an escape sequence reached the terminal."""
    name = f"a{odd}z"
    report = audit([name, "b", "b"], [name, "b", name], train_counts={name: 7, "b": 9})
    assert all(name.isprintable() for name in report.classes)
    assert report.classes[0] not in ("az", name)
    assert report.per_class["train_count"].tolist() == [7, 9]
    assert "a" in report.to_markdown()


def test_a_page_with_odd_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('y_true,y_pred\n"a\a\x1b[31m","a\a\x1b[31m"\nb,b\nb,"a\a\x1b[31m"\n')
    done = run(tmp_path, "audit", "p.csv", "--out", "report")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000


def test_names_that_are_numbers_in_another_order_are_names() -> None:
    """Labels were taken for the names, and 0.043 was printed where 0.885 is true."""
    y = np.arange(3).repeat(5)
    assert audit(y, scores=5 * np.eye(3)[y], class_names=["1", "2", "0"]).overall.value == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16])
def test_scores_from_features_and_head_do_not_wrap_or_overflow(dtype: type) -> None:
    features, weight = (np.eye(3) * 100).astype(dtype), (np.eye(3) * 100).astype(dtype)
    found = Predictions.from_arrays([0, 1, 2], scores=features.astype(float) @ weight.T.astype(float))
    assert audit(found).overall.value == 1


def test_operating_system_errors_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    done = run(tmp_path, "audit", "p.csv", "--out", "p.csv")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "p.csv" in done.stderr
    assert (tmp_path / "p.csv").read_text() == GOOD
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = run(tmp_path, "audit", "p.csv", stdout=full.fileno())
        assert (done.returncode, done.stderr) == (2, "classgap: No space left on device\n")


def test_a_reader_who_leaves_is_not_a_failed_gate(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    read, write = os.pipe()
    os.close(read)
    done = run(tmp_path, "audit", "p.csv", stdout=write)
    os.close(write)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_files_to_compare_are_literal_where_they_exist(tmp_path: Path) -> None:
    """``x[12].csv`` among several files was read as a pattern, and compared ``x1.csv``."""
    for name, label in (("x1.csv", "a"), ("x[12].csv", "b"), ("y.csv", "b")):
        (tmp_path / name).write_text(f"y_true,y_pred\na,{label}\nb,b\n")
    bracket, other = tmp_path / "x[12].csv", tmp_path / "y.csv"
    assert runs(f"{bracket},{other}") == [str(bracket), str(other)]
    many = [f"predictions_of_seed_{k}.csv" for k in range(40)]  # together longer than the name of a file may be
    assert runs(",".join(many)) == many


def test_names_that_differ_in_case_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("label,pred\n" + "cat,cat\ndog,Dog\n" * 20)
    found = Predictions.read(file)
    assert any("'Dog' and 'dog' differ only in case or spaces" in note for note in found.notes)
    found = Predictions.from_arrays(["caf\u00e9", "cafe\u0301"], ["caf\u00e9", "caf\u00e9"])
    assert any("differ only in case, spaces or Unicode form" in note for note in found.notes)


def test_scores_named_with_brackets_or_a_pattern(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("Ground Truth,P(cat),P(dog)\n" + "cat,0.9,0.1\ndog,0.3,0.7\n" * 20)
    for wanted in ("P(", "P(*)"):
        found = Predictions.read(file, Columns(true="Ground Truth", scores=wanted))
        assert found.classes == ("cat", "dog")


# ---------------------------------------------------------------- arguments that mean something else


@pytest.mark.parametrize(
    "words",
    [
        ["audit", ""],
        ["audit", "p.csv", "--out="],
        ["audit", "p.csv", "--names", ""],
        ["compare", "p.csv", ""],
        ["compare", "p.csv,", "p.csv"],
        ["fix", "p.csv", "--out", ""],
        ["train", "--set", "data="],
        ["train", "--out", ""],
        ["predict", "", "digits"],
        ["export", ""],
        ["tune", "--out", ""],
        ["bench", "smoke", "--out", ""],
        ["bench", "smoke", "--results", "", "--list"],
    ],
)
def test_an_empty_argument_is_not_the_current_folder(words: list[str], tmp_path: Path) -> None:
    """A variable that is not set; `export ""` exported the run in the current folder, `fix --out ""` wrote into it."""
    (tmp_path / "p.csv").write_text(GOOD)
    assert "empty" in (sentence := call(*words, folder=tmp_path).sentence) or "no value" in sentence
    assert os.listdir(tmp_path) == ["p.csv"]


def test_a_missing_file_with_brackets_is_not_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "x1.csv").write_text(GOOD)
    assert "no file x[12].csv" in call("audit", "x[12].csv", folder=tmp_path).sentence
    assert call("audit", "x?.csv", folder=tmp_path).code == 0


def scores_file(path: Path, labels: list[str], suffixes: list[str]) -> Path:
    rows = [f"{label}," + ",".join("9" if k == i % 3 else "0" for k in range(3)) for i, label in enumerate(labels)]
    path.write_text("\n".join([",".join(["y_true", *(f"score_{s}" for s in suffixes)]), *rows]) + "\n")
    return path


def test_class_names_do_not_change_which_score_belongs_to_a_label(tmp_path: Path) -> None:
    """With --names 1 2 0, labels in CSV files were names but numbered score columns were positions: 1 % instead of 98 %."""
    numbered = scores_file(tmp_path / "n.csv", ["0", "1", "2"] * 5, ["0", "1", "2"])
    named = scores_file(tmp_path / "s.csv", ["dog", "cat", "ape"] * 5, ["dog", "cat", "ape"])
    mixed = scores_file(tmp_path / "m.csv", ["0", "1", "2"] * 5, ["dog", "cat", "ape"])
    for file, names in ((numbered, "120"), (numbered, "abc"), (named, ["ape", "cat", "dog"]), (named, None)):
        assert audit(Predictions.read(file, class_names=None if names is None else list(names))).overall.value == 1
    with pytest.raises(InputError, match="are in different order, so the label '0' can mean two classes"):
        Predictions.read(mixed, class_names=["ape", "cat", "dog"])
    assert audit(Predictions.read(mixed)).overall.value == 1


@pytest.mark.parametrize("condition", ["hard < 0", "overall > 100%", "worst.low <= -1", "class[a] > 1", "gap == 2"])
def test_a_gate_that_can_never_fail_is_refused(condition: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    assert "can never be true" in call("audit", tmp_path / "p.csv", "--fail-if", condition).sentence


def test_the_limit_of_suspect_labels_is_checked_also_without_a_report(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    assert "--mislabelled-below" in call("audit", tmp_path / "p.csv", "--mislabelled-below", "nan").sentence


def test_true_labels_are_not_their_own_predictions(tmp_path: Path) -> None:
    """``--pred label`` beside the true labels ``label`` gave an accuracy of 100 %."""
    (tmp_path / "p.csv").write_text("label,pred\n0,0\n1,0\n")
    np.savez(tmp_path / "p.npz", y_true=[0, 1], y_pred=[0, 0])
    (tmp_path / "m.csv").write_text("true_a,true_b,prob_a,prob_b\n1,0,0.9,0.2\n0,1,0.1,0.7\n")
    for words in (
        ["p.csv", "--pred", "label"],
        ["p.csv", "--scores", "*"],
        ["p.npz", "--pred", "y_true"],
        ["m.csv", "--multi-label", "--scores", "true_"],
    ):
        assert "holds the true labels, and cannot also be" in call("audit", *words, folder=tmp_path).sentence


@pytest.mark.parametrize("weight", ["1e308", "1e-308"])
def test_weights_whose_sums_are_no_numbers_are_refused(weight: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"y_true,y_pred,w\na,a,{weight}\nb,b,{weight}\n")
    assert "must not be so large or small" in call("audit", tmp_path / "p.csv", "--sample-weight", "w").sentence


def test_a_matrix_of_more_samples_than_numbers_is_refused() -> None:
    for counts in ([[1e300, 0], [0, 1]], np.array([[2**63 + 5, 0], [0, 1]], np.uint64)):
        with pytest.raises(InputError, match="at most 9e\\+15 samples"):
            Predictions.from_counts(counts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"0": {"0": 0, "1": 1}, "0": {"0": 0, "1": 2}, "1": {"0": 1, "1": 0}}'),
        ("c.csv", "true,0,1\n0,0,1\n0,0,2\n1,1,0\n"),
    ],
)
def test_costs_name_every_class_once(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="'0' occurs twice"):
        read_cost(tmp_path / name)


def test_costs_whose_squares_are_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"cost holds the value 1e\+300"):
        check_cost([[0, 1e300], [1, 0]], 2)


@pytest.mark.parametrize("odd", ["[/x]", "[bold red]", ":x:", "\x1b[31mz"])
def test_names_of_files_are_printed_as_they_are(odd: str, tmp_path: Path) -> None:
    """``[/x]`` was a traceback, since Rich took it for markup, ``[bold red]`` was left out, and ESC reached the terminal."""
    (tmp_path / "p.csv").write_text(GOOD)
    done = call("audit", "p.csv", "--out", f"out{odd}", folder=tmp_path)
    assert done.code == 0
    assert f"Report: out{printable(odd)}" in done.out
    assert "\x1b" not in done.out
    assert (tmp_path / f"out{odd}" / "report.html").exists()


def test_a_sentence_is_one_line(tmp_path: Path) -> None:
    assert "there is no file a\\nb" in call("audit", "a\nb", folder=tmp_path).sentence


@pytest.mark.parametrize("role", ["scores", "features", "weight", "bias"])
def test_numbers_whose_squares_are_no_numbers_are_refused(role: str, tmp_path: Path) -> None:
    """The report was written with warnings about overflow, and ``fix`` did not come to its end."""
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(30, 4)), "weight": rng.normal(size=(3, 4)), "bias": rng.normal(size=3)}
    if role == "scores":
        arrays = {"scores": rng.normal(size=(30, 3))}
    arrays[role].flat[1] = -1e200
    np.savez(tmp_path / "p.npz", y_true=np.arange(30) % 3, **arrays)
    for verb in ("audit", "fix"):
        assert f"{role} holds the value -1e+200" in call(verb, tmp_path / "p.npz", folder=tmp_path).sentence


WARNS = """
import warnings
from classgap import cli
import classgap.cli.app as app
def warns():
    warnings.warn("two\\nlines", UserWarning)
    raise SystemExit(0)
app.app = warns
cli.main()
"""


def test_a_warning_is_one_line_without_a_place_in_the_source() -> None:
    done = subprocess.run([sys.executable, "-c", WARNS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "note: two lines\n")


def test_names_and_values_of_slices_are_shown_with_printable_characters(tmp_path: Path) -> None:
    """They reached the terminal and the report as they were in the file."""
    text = 'y_true,y_pred,"si\x1b[31mte"\n' + "a,a,x\x1b[31m\na,b,\nb,b,y\nb,a,x\x1b[31m\n" * 5
    (tmp_path / "p.csv").write_text(text)
    done = call("audit", "p.csv", "--by", "si\x1b[31mte", "--out", "report", folder=tmp_path)
    assert r"si\x1b[31mte" in done.out
    written = [(tmp_path / "report" / f"report.{ending}").read_text() for ending in ("html", "md")]
    assert "\x1b" not in "".join([done.out, done.err, *written])
    report = audit(["a", "b"] * 40, ["a", "a"] * 40, by={"si\x1bte": ["x\a", "y"] * 40})
    assert report.slices is not None
    (column,) = report.slices.columns.values()
    assert column.name == r"si\x1bte"
    assert sorted(column.per_slice["name"]) == [r"x\x07", "y"]


@pytest.mark.parametrize("values", [["", "(missing)"], [1.00000000001, 1.00000000002]])
def test_two_slices_never_have_one_name(values: list[object]) -> None:
    names = SliceCounts.from_samples("site", np.array(values), np.zeros(2, int), np.zeros(2, int), 1).names
    assert len(set(names)) == 2


def test_a_sentence_does_not_repeat_a_name_of_a_million_characters(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("y_true,y_pred\n" + f"1,{'x' * 1_000_000}\n" * 3)
    assert len(call("audit", tmp_path / "p.csv").sentence) < 4000
