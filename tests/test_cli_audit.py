"""``classgap audit`` and ``classgap compare`` as a user runs them: what they print, write and return."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from classgap.cli import main
from classgap.measure import audit, compare
from reports import HOSTILE, label_report, samples

Run = Callable[..., tuple[int, str, str]]
NAMES = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["classgap", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


def labels(seed: int) -> dict[str, np.ndarray]:
    found = label_report(6, per_class=40, seed=seed).samples
    assert found is not None
    return {"y_true": found.y_true, "y_pred": found.y_pred}


def table(path: Path, seed: int, **extra: object) -> Path:
    found = labels(seed)
    frame = pl.DataFrame({"label": NAMES[found["y_true"]], "prediction": NAMES[found["y_pred"]], **extra})
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


def archive(path: Path) -> Path:
    s = samples(6, 20)
    np.savez(path, train_counts=np.full(6, 50), class_names=NAMES, **s)
    return path


def test_audit_prints_verdict_worst_classes_and_why(run: Run, tmp_path: Path) -> None:
    code, out, err = run("audit", table(tmp_path / "p.csv", 1))
    report = audit(*(NAMES[labels(1)[key]] for key in ("y_true", "y_pred")))
    assert code == 0
    assert err == ""
    assert " ".join(report.verdict.split()) in " ".join(out.split())
    worst = report.per_class[np.argmin(report.per_class["accuracy"])]
    table_part = out[out.index("Worst classes") :]
    assert str(worst["name"]) in table_part.splitlines()[4]
    assert f"{100 * worst['accuracy']:.1f} %" in table_part


def test_json_is_the_report(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("audit", table(tmp_path / "p.parquet", 1), "--json", "--seed", "3", "--confidence", "0.9")
    found = json.loads(out)
    assert code == 0
    expected = audit(*(NAMES[labels(1)[key]] for key in ("y_true", "y_pred")), seed=3, confidence=0.9)
    for name in ("overall", "easy", "medium", "hard", "worst", "gap"):
        assert set(found[name]) == {"value", "low", "high"}
        assert found[name]["value"] == pytest.approx(getattr(expected, name).value)
    assert found["per_class"] == expected.to_dict()["per_class"]


def test_out_writes_everything(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("audit", archive(tmp_path / "p.npz"), "--out", tmp_path / "report")
    assert code == 0
    assert "report.html" in out
    written = {path.relative_to(tmp_path / "report").as_posix() for path in (tmp_path / "report").rglob("*.*")}
    figures = (
        "accuracy_by_class",
        "worst_pairs",
        "spread_accuracy",
        "margins",
        "max_distances",
        "reliability",
        "embedding",
        "precision_recall",
    )
    expected = {f"figures/{name}.{ending}" for name in figures for ending in ("png", "svg")}
    samples = {"mistakes.csv", "mislabelled.csv"}
    assert written == expected | samples | {"report.html", "report.md", "report.json"}
    found = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert found["geometry"] is not None
    assert "frequency" in found["groups"]
    assert "p.npz" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_options_name_columns_names_counts_and_reference(run: Run, tmp_path: Path) -> None:
    found = labels(1)
    frame = pl.DataFrame({"a": found["y_true"], "b": found["y_pred"], "label": found["y_pred"]})
    frame.write_csv(tmp_path / "p.csv")
    (tmp_path / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    (tmp_path / "counts.json").write_text(json.dumps(dict.fromkeys(NAMES.tolist(), 10)), encoding="utf-8")
    named = ("--true", "a", "--pred", "b", "--names", tmp_path / "names.txt")
    more = ("--train-counts", tmp_path / "counts.json", "--reference", tmp_path / "p.csv", "--json")
    code, out, _ = run("audit", tmp_path / "p.csv", *named, *more)
    tree = json.loads(out)
    assert code == 0
    assert [row["name"] for row in tree["per_class"]] == NAMES.tolist()
    assert tree["per_class"][0]["train_count"] == 10
    assert tree["groups"]["reference"]["hard"]["value"] == pytest.approx(tree["hard"]["value"])


def test_parts_are_one_data_set(run: Run, tmp_path: Path) -> None:
    found = labels(1)
    for i, rows in enumerate((slice(0, 100), slice(100, 240))):
        pl.DataFrame({key: values[rows] for key, values in found.items()}).write_parquet(tmp_path / f"{i}.parquet")
    _, whole, _ = run("audit", tmp_path, "--json")
    _, parts, _ = run("audit", tmp_path / "0.parquet", tmp_path / "1.parquet", "--json")
    assert json.loads(whole)["num_samples"] == 240
    assert json.loads(whole) == json.loads(parts)


@pytest.mark.parametrize(
    ("condition", "code"),
    [("hard < 0.99", 1), ("hard < 0.01", 0), ("worst.low < 0.9", 1), ("gap > 0.01", 1), ("overall.high < 0.01", 0)],
)
def test_gate(run: Run, tmp_path: Path, condition: str, code: int) -> None:
    found, _, err = run("audit", table(tmp_path / "p.csv", 1), "--fail-if", "overall < 0.01", "--fail-if", condition)
    assert found == code
    assert err.count("gate") == 2
    assert ("failed" in err) == bool(code)


def test_comparison_of_single_runs_streams_and_agrees_with_rows(run: Run, tmp_path: Path) -> None:
    before, after = table(tmp_path / "a.csv", 1), table(tmp_path / "b.parquet", 2)
    code, streamed, _ = run("compare", before, after, "--json")
    reports = [audit(*(NAMES[labels(seed)[key]] for key in ("y_true", "y_pred"))) for seed in (1, 2)]
    expected = compare(*reports).to_dict()
    found = json.loads(streamed)
    assert code == 0
    assert found["per_class"] == expected["per_class"]
    assert found["verdict"]["kind"] == expected["verdict"]["kind"]


def test_comparison_by_id_ignores_order(run: Run, tmp_path: Path) -> None:
    ids = [f"img{i}" for i in range(240)]
    before, after = table(tmp_path / "a.csv", 1, file=ids), table(tmp_path / "b.csv", 2, file=ids)
    _, straight, _ = run("compare", before, after, "--json")
    pl.read_csv(after).sample(fraction=1, shuffle=True, seed=0).write_csv(after)
    code, _, err = run("compare", before, after)
    assert code == 2
    assert "--id" in err
    code, shuffled, _ = run("compare", before, after, "--id", "file", "--json")
    assert code == 0
    assert json.loads(shuffled)["per_class"] == json.loads(straight)["per_class"]


def test_comparison_of_several_runs(run: Run, tmp_path: Path) -> None:
    for seed, name in ((1, "run1"), (2, "run2"), (3, "new3"), (4, "new4")):
        table(tmp_path / f"{name}.csv", seed)
    before = f"{tmp_path / 'run1.csv'},{tmp_path / 'run2.csv'}"
    code, out, _ = run("compare", before, tmp_path / "new*.csv", "--json")
    assert code == 0
    assert (json.loads(out)["num_before"], json.loads(out)["num_after"]) == (2, 2)


def test_comparison_prints_writes_and_judges(run: Run, tmp_path: Path) -> None:
    sides = table(tmp_path / "a.csv", 1), table(tmp_path / "b.csv", 2)
    code, out, err = run("compare", *sides, "--out", tmp_path / "r", "--fail-if", "easy.delta.high < 2")
    assert code == 1
    assert "gate failed: easy.delta.high" in err
    assert "before" in out
    assert (tmp_path / "r" / "figures" / "dumbbells.png").exists()
    assert (tmp_path / "r" / "report.md").read_text(encoding="utf-8").startswith("## ")


def test_scores_can_be_compared(run: Run, tmp_path: Path) -> None:
    files = [archive(tmp_path / name) for name in ("a.npz", "b.npz")]
    code, out, _ = run("compare", *files, "--json")
    assert code == 0
    assert json.loads(out)["hard"]["delta"]["value"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("audit", "missing.csv"), "there is no file missing.csv"),
        (("audit", "p.csv", "--true", "lable"), "did you mean 'label'"),
        (("audit", "p.csv", "--fail-if", "hard ?? 3"), "cannot read the condition"),
        (("audit", "missing.csv", "--fail-if", "hard ?? 3"), "cannot read the condition"),
        (("audit", "p.csv", "--confidence", "1.5"), "confidence"),
        (("audit", "p.csv", "--names", "missing.txt"), "class names"),
        (("compare", "p.csv", "short.csv"), "same samples"),
        (("compare", "p.csv", "nothing*.csv"), "no file matches"),
        (("compare", "p.csv", ","), "got an empty name"),
        (("compare", "p.csv", "p.npz"), "class"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table(Path("p.csv"), 1)
    pl.read_csv("p.csv").head(50).write_csv("short.csv")
    np.savez("p.npz", y_true=[0], y_pred=[1])
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_markup_in_names_is_text(run: Run, tmp_path: Path) -> None:
    found = labels(1)
    names = np.array([*HOSTILE[:5], "[bold]not markup[/bold]"])
    np.savez(tmp_path / "p.npz", class_names=names, **found)
    code, out, _ = run("audit", tmp_path / "p.npz")
    assert code == 0
    assert "[bold]not markup[/bold]" in out


@pytest.mark.parametrize("verb", ["audit", "compare"])
def test_help_teaches_by_example(run: Run, verb: str) -> None:
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert f"classgap {verb} " in out
    assert "--fail-if" in out
    assert "Exit codes" in out


def test_paragraphs_of_help_fill_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They kept the line breaks of the source, so that every second line was short."""
    monkeypatch.setenv("COLUMNS", "100")
    _, text, _ = run("learning-curve", "-h")
    assert "are needed, and four times as many must have been seen" in text
    assert "\n classgap learning-curve a.csv b.csv c.csv --samples 50,100,200 " in text


def test_no_digit_is_lost_in_a_narrow_terminal() -> None:
    """Numbers were cut, as in "75…"."""
    import io

    from rich.console import Console

    from classgap.cli.output import plain_table

    out = io.StringIO()
    heads = ["label", *("precision", "interval") * 3]
    Console(file=out, width=60).print(plain_table(heads, [["stop sign", *("75.2 %", "68.9 % – 81.4 %") * 3]]))
    assert "…" not in out.getvalue()
    assert out.getvalue().count("81.4") == out.getvalue().count("75.2") == 3
