"""The bench: jobs that survive crashes and are never run twice, honest selection, tables that agree with ``compare``."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import multiprocessing
import queue
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import classgap
from classgap._checks import InputError
from classgap.bench import RULES, Result, Suite, Task, Variant, append_results, load_suite, read_results
from classgap.bench.jobs import Job, JobFolder, complete, job_key
from classgap.bench.pool import Event, run_jobs, work
from classgap.bench.render import Table
from classgap.bench.results import Candidate, collect_done, pack, unpack
from classgap.bench.suites import parse_seeds
from classgap.bench.tables import difference, mean_interval, suite_tables
from classgap.bench.work import run_job
from classgap.cli._app import app
from classgap.train import TrainConfig
from classgap.train.epoch import read_log

EPOCHS = 2
CLI = [sys.executable, "-m", "classgap", "bench"]
SUITE_FILE = """
    from classgap.bench import Suite, Task, Variant
    from classgap.train import TrainConfig

    def suite():
        base = TrainConfig().override(["data.per_class=13", "epochs=2", "batch=24", "optim.lr=0.05", "model=mlp-16"])
        return Suite("mine", (Task("digits", base),), (Variant("erm"), Variant("mr2", "mr2")), seeds=(0, 1))
"""


def tiny(**changes: Any) -> Suite:
    settings = ["data.per_class=13", f"epochs={EPOCHS}", "batch=24", "optim.lr=0.05", "model=mlp-16"]
    base = TrainConfig().override([*settings, "checkpoint_steps=2"])
    variants = (Variant("erm"), Variant("re-run", seed_shift=1000), Variant("mr2", "mr2"))
    given: dict[str, Any] = {"name": "tiny", "tasks": (Task("digits", base),), "variants": variants, "seeds": (0, 1)}
    return Suite(**{**given, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Path, dict[str, Result]]:
    """All jobs of the tiny suite, run here one after the other."""
    suite, out = tiny(), tmp_path_factory.mktemp("done")
    for job in suite.jobs():
        folder = JobFolder(out, job)
        with folder.claimed() as mine:
            assert mine
            run_job(job, folder)
    append_results(out / "results.jsonl", collect_done(suite.jobs(), out))
    return suite, out, read_results([out / "results.jsonl"])


def same(one: Result, two: Result) -> bool:
    skipped = {"seconds"}
    records = [{k: v for k, v in r.to_record().items() if k not in skipped} for r in (one, two)]
    return json.dumps(records[0]) == json.dumps(records[1])


# --- suites and keys ----------------------------------------------------------------------------------------------------


def test_jobs_are_named_by_what_is_run_not_by_what_it_is_called() -> None:
    suite = tiny()
    renamed = tiny(
        name="other",
        tasks=(dataclasses.replace(suite.tasks[0], name="elsewhere"),),
        variants=(Variant("baseline"), Variant("null", seed_shift=1000), Variant("ours", "mr2")),
    )
    assert [job.key for job in suite.jobs()] == [job.key for job in renamed.jobs()]
    assert len({job.key for job in suite.jobs()}) == 6
    assert [job.seed for job in suite.jobs()] == [0, 0, 0, 1, 1, 1]  # every variant once, then again


def test_a_key_holds_the_defaults_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    from classgap import registry

    plain = TrainConfig().override(["method=mr2"])
    spelled = TrainConfig().override(["method=mr2", "method.c_bar=1.0", "method.lam=0.1"])
    whole_number = TrainConfig().override(["method=mr2", "method.c_bar=1"])
    assert job_key(plain) == job_key(spelled) == job_key(whole_number)
    before, stored = job_key(plain), complete(plain)
    spec = registry.get("loss", "mr2")
    defaults = {**spec.defaults, "c_bar": 3.0}
    monkeypatch.setattr(type(spec), "defaults", property(lambda self: defaults))
    assert job_key(plain) != before  # a new default is a new run …
    assert job_key(stored) == before  # … and the old one still is what it was


def test_methods_with_a_schedule_hear_how_long_the_run_is() -> None:
    config = TrainConfig().override(["method=drw", "epochs=7"])
    assert complete(config).method.params["epochs"] == 7


def test_only_takes_patterns() -> None:
    suite = tiny()
    assert {job.variant for job in suite.jobs(only=["*/re*", "digits/mr2"])} == {"re-run", "mr2"}
    with pytest.raises(InputError, match="fits none of digits/erm"):
        suite.jobs(only=["nothing/*"])


def test_suites_that_cannot_be() -> None:
    suite = tiny()
    with pytest.raises(InputError, match="variants with different names"):
        tiny(variants=(Variant("a"), Variant("a")))
    with pytest.raises(InputError, match="must have tasks"):
        tiny(tasks=())
    with pytest.raises(InputError, match="without '/'"):
        tiny(variants=(Variant("a/b"),))
    with pytest.raises(InputError, match="did you mean 'erm'"):
        tiny(reference="erms")
    there = suite.tasks[0].config.override(["data=npz:/somewhere/x.npz"])
    with pytest.raises(InputError, match="belong to one machine"):
        tiny(tasks=(Task("absolute", there),))


def test_suite_files(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'beside'\n")
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(SUITE_FILE).replace('"mine"', "neighbour.NAME") + "\nimport neighbour\n")
    assert load_suite(str(path)).name == "beside"
    assert load_suite("smoke").reference == "cross_entropy"
    path.write_text("x = 1\n")
    with pytest.raises(InputError, match="must define suite"):
        load_suite(str(path))
    path.write_text("def suite():\n    return 3\n")
    with pytest.raises(InputError, match=r"must return a classgap.bench.Suite, got int"):
        load_suite(str(path))
    with pytest.raises(InputError, match="did you mean 'smoke'"):
        load_suite("smok")


@pytest.mark.parametrize("text", ["", "a", "3:1", "-1", "0:x"])
def test_seeds_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


# --- jobs ---------------------------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])  # in mid-epoch, at the end of one, after the last
def test_a_job_cut_off_becomes_what_it_would_have_been(done: Any, tmp_path: Path, share: float) -> None:
    suite, _, results = done
    job = suite.jobs()[2]
    folder = JobFolder(tmp_path, job)

    def crash(now: float) -> None:
        if now >= share:
            raise Crash

    with pytest.raises(Crash), folder.claimed():
        run_job(job, folder, crash)
    assert not folder.done.exists()
    with folder.claimed() as mine:
        assert mine  # the lock went with the crash
        again = run_job(job, folder)
    assert same(again, results[job.key])
    assert len(read_log(folder.path / "log.jsonl")) == EPOCHS


def test_a_job_belongs_to_one_worker(done: Any, tmp_path: Path) -> None:
    suite, out, _ = done
    job = suite.jobs()[0]
    with JobFolder(tmp_path, job).claimed() as first, JobFolder(tmp_path, job).claimed() as second:
        assert first
        assert not second
    with JobFolder(out, job).claimed() as mine:
        assert not mine  # done


def test_workers_share_jobs_and_one_that_is_killed_is_replaced(done: Any, tmp_path: Path) -> None:
    suite, _, results = done
    events: list[Event] = []

    def tell(event: Event | None) -> None:
        if event is not None:
            if event.kind == "running" and not any(e.kind == "running" for e in events):
                multiprocessing.active_children()[0].kill()
            events.append(event)

    path = tmp_path / "results.jsonl"
    errors = run_jobs(suite.jobs(), tmp_path, results=path, workers=2, threads=1, tell=tell)
    assert errors == {}
    assert sorted(e.key for e in events if e.kind == "done") == sorted(results)  # every job, none twice
    found = read_results([path])
    assert all(same(found[key], result) for key, result in results.items())


def test_a_job_that_cannot_be_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process wants its Ctrl-C
    base = tiny().tasks[0].config
    suite = tiny(
        tasks=(Task("missing", base.override(["data=npz:nowhere.npz"])), Task("digits", base)),
        variants=(Variant("erm"),),
        seeds=(0,),
    )
    events: queue.Queue[Event] = queue.Queue()
    work(suite.jobs(), tmp_path, tmp_path / "r.jsonl", 1, "this session", events)
    missing, digits = suite.jobs()
    told = [event for event in events.queue if event.kind != "running"]
    assert [(event.kind, event.key) for event in told] == [("failed", missing.key), ("done", digits.key)]
    assert "no file nowhere.npz" in told[0].text
    assert set(read_results([tmp_path / "r.jsonl"])) == {digits.key}
    assert JobFolder(tmp_path, missing).failed("another session") is None  # which will try again


def test_a_diverging_run_is_a_result(tmp_path: Path) -> None:
    suite = tiny(variants=(Variant("erm"), Variant("wild", settings=("optim.lr=1e30",))), seeds=(0,))
    for job in suite.jobs():
        run_job(job, JobFolder(tmp_path, job))
    results = {result.key: result for result in collect_done(suite.jobs(), tmp_path)}
    wild = results[suite.jobs()[1].key]
    assert "not finite in epoch" in wild.diverged
    assert wild.candidates == ()
    table = suite_tables(suite, results)[0].accuracy
    assert table.rows[1][:3] == ("wild", "0 + 1 diverged", "–")


# --- results ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [3, 256, 1000])
def test_packed_predictions_come_back(num_classes: int) -> None:
    rng = np.random.default_rng(0)
    y_true, y_pred = rng.integers(0, num_classes, (2, 5000))
    order = np.argsort(y_true, kind="stable")
    assert (unpack(pack(y_true, y_pred, num_classes), y_true[order], num_classes) == y_pred[order]).all()


def test_a_result_agrees_with_itself(done: Any) -> None:
    _, _, results = done
    for result in results.values():
        assert {rule for c in result.candidates for rule in c.rules} == {"last", "val_hard", "val_balanced"}
        for candidate in result.candidates:
            right = result.predictions(candidate) == result.y_true
            assert np.bincount(result.y_true[right], minlength=10).tolist() == list(candidate.test_correct)
            balanced = np.mean(np.array(candidate.val_correct) / np.array(result.val_support))
            assert result.curve["val_balanced"][candidate.epoch] == pytest.approx(balanced, rel=1e-3)
        assert same(Result.from_record(json.loads(json.dumps(result.to_record()))), result)


def test_results_merge_and_duplicates_are_ignored(done: Any, tmp_path: Path) -> None:
    _, _, results = done
    everything = list(results.values())
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert append_results(one, everything[:4]) == 4
    assert append_results(two, everything[3:]) == 3
    assert append_results(one, everything[2:5]) == 1
    assert len(one.read_text().splitlines()) == 5
    assert set(read_results([one, two, tmp_path / "absent.jsonl"])) == set(results)


def test_a_torn_line_is_mended(done: Any, tmp_path: Path) -> None:
    _, _, results = done
    everything, path = list(results.values()), tmp_path / "r.jsonl"
    append_results(path, everything[:2])
    whole = path.read_text()
    path.write_text(whole[:-100])  # a crash while the second line was written
    assert len(read_results([path])) == 1
    append_results(path, everything[1:2])
    assert path.read_text() == whole
    path.write_text(whole.rstrip("\n"))  # an editor took the last line end away
    append_results(path, everything[2:3])
    assert len(read_results([path])) == 3
    path.write_text("{\n" + whole)
    with pytest.raises(InputError, match="line 1, cannot be read"):
        read_results([path])
    path.write_text('{"key": 1}\n')
    with pytest.raises(InputError, match="line 1, is no result"):
        read_results([path])


# --- selection ----------------------------------------------------------------------------------------------------------

LOG = [
    {"epoch": 0, "val": {"hard": 0.2, "balanced": 0.5}},
    {"epoch": 1, "val": {"hard": 0.4, "balanced": 0.6}},
    {"epoch": 2, "val": {"hard": 0.4, "balanced": 0.7}},
    {"epoch": 3, "val": {"hard": None, "balanced": 0.6}},
]


def test_rules_choose_epochs() -> None:
    assert {name: rule.best(LOG) for name, rule in RULES.items() if rule.honest} == {
        "last": 3,
        "val_hard": 2,  # the later of two equal ones
        "val_balanced": 2,
    }
    assert RULES["val_hard"].best(LOG[:2]) == 1
    with pytest.raises(InputError, match="val_fraction"):
        RULES["val_hard"].best([{"epoch": 0}])


def test_rules_pick_what_was_recorded(done: Any) -> None:
    _, _, results = done
    result = next(iter(results.values()))
    made = [
        Candidate(7, ("last",), (), (50,) * 10, ""),
        Candidate(3, ("val_hard", "val_balanced"), (), (40,) * 5 + (60,) * 5, ""),
        Candidate(5, (), (), (51,) * 10, ""),
    ]
    result = dataclasses.replace(result, candidates=tuple(made))
    assert {name: rule.pick(result).epoch for name, rule in RULES.items()} == {
        "last": 7,
        "val_hard": 3,
        "val_balanced": 3,
        "test_oracle": 5,
    }
    assert "TEST ORACLE" in RULES["test_oracle"].meaning
    with pytest.raises(InputError, match="no epoch recorded"):
        RULES["val_hard"].pick(dataclasses.replace(result, candidates=tuple(made[:1])))


# --- tables -------------------------------------------------------------------------------------------------------------


def test_tables_agree_with_compare(done: Any) -> None:
    suite, _, results = done
    tables = suite_tables(suite, results)[0]

    def reports(variant: int) -> list[Any]:
        found = [results[suite.jobs()[variant + 3 * s].key] for s in (0, 1)]
        return [
            classgap.audit(r.y_true, r.predictions(RULES["last"].pick(r)), class_names=r.class_names) for r in found
        ]

    direct = classgap.compare(reports(0), reports(2), n_boot=300)
    row = next(line for line in tables.differences.rows if line[0] == "mr2")
    deltas = [direct.metrics["overall"], *(direct.groups[r]["hard"] for r in ("own", "reference", "cross"))]
    assert row[2:6] == tuple(difference(c.delta.value, c.delta.low, c.delta.high) for c in deltas)
    assert row[-1] == direct.verdict.title
    accuracy = next(line for line in tables.accuracy.rows if line[0] == "mr2")
    mean, half = mean_interval([report.overall.value for report in reports(2)])
    assert accuracy[2] == f"{100 * mean:.1f} ± {100 * half:.1f}"
    assert [line[0] for line in tables.differences.rows] == ["re-run", "mr2"]  # the null has its own row


def test_tables_of_a_part(done: Any) -> None:
    suite, _, results = done
    part = suite_tables(suite, results, seeds=[1], only=["*/mr2"], rule=RULES["test_oracle"])[0]
    assert [line[:2] for line in part.accuracy.rows] == [("erm", "1"), ("mr2", "1")]
    assert "TEST ORACLE" in part.accuracy.caption
    assert "TEST ORACLE" in part.differences.caption
    assert "seed 1" in part.accuracy.caption
    assert suite_tables(suite, {}) == []
    two = tiny(tasks=(*suite.tasks, dataclasses.replace(suite.tasks[0], name="again")))
    assert [t.task.name for t in suite_tables(two, results, only=["again/mr2"])] == ["again"]


def test_runs_on_other_data_are_not_compared(done: Any) -> None:
    suite, _, results = done
    jobs = suite.jobs()
    for stale in ([jobs[2].key], [jobs[2].key, jobs[5].key]):  # one run of a variant, all of them
        changed = {k: dataclasses.replace(r, split_hash="0" * 12) if k in stale else r for k, r in results.items()}
        with pytest.raises(InputError, match="different data"):
            suite_tables(suite, changed)


def test_text_cannot_break_out_of_a_table() -> None:
    nasty = r"<b>50 % | a_b & {c} \x $1 #"
    table = Table(nasty, nasty, ("variant", "runs", "verdict"), ((nasty, "3", "Worse"),))
    page = table.render("html")
    assert "<b>" not in page
    assert page.count("&lt;b&gt;50 % | a_b &amp; {c}") == 3
    tex = table.render("tex")
    assert tex.count(r"50 \% | a\_b \& \{c\} \textbackslash{}x \$1 \#") == 3
    assert r"\begin{tabular}{lrl}" in tex
    lines = table.render("md").splitlines()
    assert r"&lt;b>50 % \| a_b & {c} \\x $1 #" in lines[4]
    assert len({len(line) for line in lines[2:5]}) == 1  # aligned
    assert lines[3].startswith("| ---")


# --- command line -------------------------------------------------------------------------------------------------------


def _cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_command_line(done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed results count as done, whatever became of the job folders."""
    suite, _, results = done
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent(SUITE_FILE).replace('"model=mlp-16"', '"model=mlp-16", "checkpoint_steps=2"')
    (tmp_path / "mine.py").write_text(text)
    nothing = _cli("mine.py", "--tables-only")
    assert "no results of mine yet" in str(nothing.exception)
    append_results(tmp_path / "mine.jsonl", [results[job.key] for job in suite.jobs(only=["*/erm"])])
    committed = (tmp_path / "mine.jsonl").read_bytes()
    listed = _cli("mine.py", "--list")
    assert [line.split()[1] for line in listed.stdout.splitlines()] == ["done", "open", "done", "open"]
    again = _cli("mine.py", "--only", "*/erm", "--format", "tex")
    assert again.exit_code == 0
    assert "all 2 jobs of mine are done" in again.stderr
    assert r"\begin{tabular}" in again.stdout
    assert (tmp_path / "mine.jsonl").read_bytes() == committed
    assert not (tmp_path / "runs").exists()
    wrong = _cli("mine.py", "--rule", "best")
    assert isinstance(wrong.exception, InputError)
    assert "value for --rule" in str(wrong.exception)


def test_missing_data_are_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path))
    text = textwrap.dedent(SUITE_FILE).replace('"data.per_class=13"', '"data=npz:absent.npz"')
    (tmp_path / "mine.py").write_text(text)
    run = _cli("mine.py")
    assert isinstance(run.exception, InputError)
    assert "needs absent.npz" in str(run.exception)
    assert "CLASSGAP_DATA" in str(run.exception)
    assert not (tmp_path / "runs").exists()


def test_archives_are_found_by_name_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from classgap.data import load_source

    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.normal(size=(8, 3)), "x_test": rng.normal(size=(4, 3))}
    np.savez(tmp_path / "there.npz", y_train=np.arange(8) % 2, y_test=np.arange(4) % 2, **arrays)
    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path))
    assert load_source("npz:there.npz").in_shape == (3,)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupting_leaves_no_process_and_loses_nothing(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SUITE_FILE).replace("epochs=2", "epochs=3000"))
    with subprocess.Popen(
        [*CLI, "mine.py"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as run:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/bench/mine/jobs/*/checkpoint.pt")) and time.monotonic() < deadline:
            time.sleep(0.1)
        run.send_signal(how)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    (folder,) = (tmp_path / "runs/bench/mine/jobs").iterdir()
    config = TrainConfig.from_dict(json.loads((folder / "run.json").read_text())["config"])
    job = Job("mine", "digits", "erm", 0, config)
    with JobFolder(tmp_path / "runs/bench/mine", job).claimed() as mine:
        assert mine  # nobody holds it any more


# --- committed evidence -------------------------------------------------------------------------------------------------

EVIDENCE = Path(__file__).resolve().parents[1] / "benchmarks" / "evidence"


@pytest.mark.parametrize("path", sorted(EVIDENCE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_results_belong_to_their_suite(path: Path) -> None:
    results, suite = read_results([path]), load_suite(str(path.with_suffix(".py")))
    asked = {job.key for job in suite.jobs()}
    assert len(asked & set(results)) > 0.5 * len(results)
    for result in results.values():
        assert result.diverged or int(result.support.sum()) == len(result.predictions(result.candidates[0]))


@pytest.mark.slow
def test_the_page_of_evidence_is_what_the_results_say() -> None:
    spec = importlib.util.spec_from_file_location("evidence_page", EVIDENCE / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == module.PAGE.read_text(), "run python benchmarks/evidence/page.py"
