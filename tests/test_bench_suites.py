"""Suites of the bench: jobs are named by what is run, and what cannot be is a sentence."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path

import pytest

from bench_suite import SUITE_FILE, tiny
from classgap.checks import InputError
from classgap.suites import Task, Variant, load_suite
from classgap.suites.jobs import complete, job_key
from classgap.suites.suite import parse_seeds
from classgap.training import TrainConfig


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
    spelled = TrainConfig().override(["method=mr2", "method.c_bar=1.0", "method.lam=0.01"])
    whole_number = TrainConfig().override(["method=mr2", "method.c_bar=1"])
    assert job_key(plain) == job_key(spelled) == job_key(whole_number)
    before, stored = job_key(plain), complete(plain)
    spec = registry.get("loss", "mr2")
    defaults = {**spec.defaults, "c_bar": 3.0}
    monkeypatch.setattr(type(spec), "defaults", property(lambda self: defaults))
    assert job_key(plain) != before  # a new default is a new run …
    assert job_key(stored) == before  # … and the old one still is what it was


def test_a_key_holds_the_defaults_of_the_stage() -> None:
    """MARC's stage once had a ridge of 0.1: results of that time must not pass for those without one."""
    plain, spelled, other = (
        TrainConfig().override(["stage=marc", *more])
        for more in ([], ["stage.ridge=0", "stage.steps=2000"], ["stage.ridge=0.1", "stage.steps=none"])
    )
    assert job_key(plain) == job_key(spelled) != job_key(other)
    assert complete(plain).stage.params["ridge"] == 0
    assert complete(TrainConfig()).stage == TrainConfig().stage


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
    with pytest.raises(InputError, match="every variant must be a Variant"):
        tiny(variants=(Variant("a"), (Variant("b"),)))
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
    with pytest.raises(InputError, match=r"must return a classgap.suites.Suite, got int"):
        load_suite(str(path))
    with pytest.raises(InputError, match="did you mean 'smoke'"):
        load_suite("smok")


@pytest.mark.parametrize("text", ["", "a", "3:1", "-1", "0:x"])
def test_seeds_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)
