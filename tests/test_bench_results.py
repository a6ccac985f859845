"""Results of the bench: files that merge and mend, and honest selection of an epoch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_suite import same
from classgap.checks import InputError
from classgap.suites import RULES, Result, append_results, read_results
from classgap.suites.records import archive_of, read_records, write_archive
from classgap.suites.results import EpochResult, archive_results, pack, unpack
from classgap.suites.tables import suite_tables


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
    with pytest.raises(InputError, match="line 1, is not a result"):
        read_results([path])


def test_an_archive_is_small_and_gives_the_same_tables(done: Any, tmp_path: Path) -> None:
    suite, _, results = done
    everything, path = list(results.values()), tmp_path / "r.jsonl"
    append_results(path, everything[:4])
    size = path.stat().st_size
    assert archive_results(path) == 4
    assert not path.exists()
    assert archive_of(path).stat().st_size < size / 3
    assert append_results(path, everything) == len(everything) - 4  # what the archive holds is not added again
    found = read_results([path])
    assert set(found) == set(results)
    for rule in RULES.values():  # of archived and of new results together
        assert [t.differences for t in suite_tables(suite, found, rule=rule)] == [
            t.differences for t in suite_tables(suite, results, rule=rule)
        ]
    assert archive_results(path) == len(everything)
    again = read_results([path])
    for key, result in results.items():
        small, last = again[key], again[key].candidates[0]
        assert (small.right(last) == result.right(result.candidates[0])).all()
        assert small.curve == result.curve
        assert len(json.dumps(small.to_record())) < len(json.dumps(result.to_record()))
        with pytest.raises(InputError, match="not which wrong classes"):
            small.predictions(last)


def test_records_of_an_archive_come_first(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert read_records(path) == []
    write_archive(path, [{"n": 1}, {"n": 2}])
    path.write_text('{"n": 3}\n{"n": 4')  # the last line is cut off
    assert read_records(path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    path.unlink()
    odd = [
        {"class_names": ["a\u2028b", "c\x85d"]}
    ]  # ends of lines in Unicode; the results were lost with the plain file
    write_archive(path, odd)
    assert read_records(path) == odd
    archive_of(path).write_bytes(archive_of(path).read_bytes()[:-20])
    with pytest.raises(InputError, match=r"r\.jsonl\.xz cannot be read"):
        read_records(path)


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
        EpochResult(7, ("last",), (), (50,) * 10, ""),
        EpochResult(3, ("val_hard", "val_balanced"), (), (40,) * 5 + (60,) * 5, ""),
        EpochResult(5, (), (), (51,) * 10, ""),
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


def test_predictions_that_do_not_fit_their_counts_are_refused(done: Any, tmp_path: Path) -> None:
    """A flipped bit of an archive, which has no checksum of its own."""
    record = json.loads((done[1] / "results.jsonl").read_text().splitlines()[0])
    record["candidates"][0]["test_correct"][0] -= 1
    (tmp_path / "results.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match="do not fit its counts"):
        read_results([tmp_path / "results.jsonl"])
