"""Samplers: what an epoch visits, how processes share it, and what depends on nothing but seed and epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from classgap import registry
from classgap.checks import InputError
from classgap.samplers import (
    ClassAwareSampler,
    ClassBalancedSampler,
    PByQSampler,
    ProgressiveSampler,
    RepeatSampler,
    SquareRootSampler,
    error_repeats,
)

COUNTS = [60, 25, 10, 5]
LABELS = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))[
    torch.randperm(100, generator=torch.Generator().manual_seed(0))
]
ALL = {
    "class_balanced": {},
    "square_root": {},
    "progressive": {"epochs": 10},
    "class_aware": {},
    "p_by_q": {"classes": 3, "samples": 4},
}


def build(name: str, **params):
    return registry.get("sampler", name).build(labels=LABELS, **{**ALL[name], **params})


def shares(indices) -> list[float]:
    return (torch.bincount(LABELS[torch.as_tensor(indices)], minlength=4) / len(indices)).tolist()


def average_shares(sampler, epoch: int | None = None, draws: int = 200) -> list[float]:
    """Over many draws, of different epochs or of differently seeded samplers at one epoch."""
    if epoch is None:
        return shares(torch.cat([sampler(e) for e in range(draws)]))
    drawn = []
    for seed in range(draws):
        sampler.seed = seed
        drawn.append(sampler(epoch))
    return shares(torch.cat(drawn))


def test_every_sampler_is_registered():
    assert {m.name for m in registry.methods("sampler")} == set(ALL)


def test_class_balanced_frequencies():
    assert average_shares(ClassBalancedSampler(LABELS)) == pytest.approx([0.25] * 4, abs=0.015)


def test_square_root_frequencies():
    weights = torch.tensor(COUNTS).sqrt()
    assert average_shares(SquareRootSampler(LABELS)) == pytest.approx((weights / weights.sum()).tolist(), abs=0.015)


@pytest.mark.parametrize(("epoch", "balance"), [(0, 0.0), (5, 0.5), (10, 1.0), (50, 1.0)])
def test_progressive_frequencies(epoch, balance):
    expected = [(1 - balance) * n / 100 + balance / 4 for n in COUNTS]
    assert average_shares(ProgressiveSampler(LABELS, epochs=10), epoch) == pytest.approx(expected, abs=0.015)


def test_samples_within_a_class_are_equally_likely():
    visits = torch.bincount(torch.cat([ClassBalancedSampler(LABELS, seed=s)(0) for s in range(400)]), minlength=100)
    head = visits[LABELS == 0].float()
    assert head.std() < 3 * head.mean().sqrt()


def test_class_aware_visits_classes_in_turn_and_samples_in_cycles():
    order = ClassAwareSampler(LABELS, samples=4)(0)
    assert len(order) == 60 * 4
    runs = LABELS[order].view(-1, 4)
    assert (runs == runs[:, :1]).all()
    assert all(sorted(turn.tolist()) == [0, 1, 2, 3] for turn in runs[:, 0].view(-1, 4))
    visits = torch.bincount(order, minlength=100)
    assert visits[LABELS == 0].tolist() == [1] * 60
    assert visits[LABELS == 2].tolist() == [6] * 10
    assert visits[LABELS == 3].tolist() == [12] * 5


def test_p_by_q_batches():
    sampler = PByQSampler(LABELS, classes=3, samples=4)
    order = sampler(1)
    batches = order.view(-1, 12)
    assert len(batches) == 9  # enough for 100 samples
    for batch in batches:
        labels, counts = LABELS[batch].unique(return_counts=True)
        assert len(labels) == 3
        assert counts.tolist() == [4] * 3
        assert len(batch.unique()) == 12  # every class has at least four samples, so none repeats


def test_p_by_q_repeats_samples_of_tiny_classes_only():
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    for batch in PByQSampler(labels, classes=2, samples=4)(0).view(-1, 8):
        assert len(batch[labels[batch] == 0].unique()) == 4
        assert sorted(batch[labels[batch] == 1].tolist()) == [4, 4, 5, 5]


@pytest.mark.parametrize("name", ALL)
def test_an_epoch_depends_on_seed_and_epoch_only(name):
    first, second = build(name, seed=3), build(name, seed=3)
    first(7)
    assert torch.equal(first(2), second(2))
    assert not torch.equal(first(2), first(3))
    assert not torch.equal(first(2), build(name, seed=4)(2))


@pytest.mark.parametrize("name", ALL)
def test_before_the_start_every_sample_comes_once(name):
    sampler = build(name, start_epoch=2)
    assert sorted(sampler(1).tolist()) == list(range(100))
    sampler.set_epoch(1)
    assert len(sampler) >= 100
    assert sorted(sampler(2).tolist()) != list(range(100))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_processes_share_one_draw(name, world):
    ranks = [build(name, rank=r, world_size=world) for r in range(world)]
    for sampler in ranks:
        sampler.set_epoch(4)
    parts = [list(sampler) for sampler in ranks]
    assert len({len(part) for part in parts}) == 1
    assert [len(sampler) for sampler in ranks] == [len(part) for part in parts]
    order, block = ranks[0](4).tolist(), ranks[0].block
    dealt = [
        index for start in range(0, len(parts[0]), block) for part in parts for index in part[start : start + block]
    ]
    assert dealt[: len(order)] == order  # disjoint shares that together are the draw
    assert dealt[len(order) :] == (order * 2)[: len(dealt) - len(order)]  # filled up to equal length


@pytest.mark.parametrize("name", ALL)
def test_resuming_continues_where_it_stopped(name):
    sampler = build(name, rank=1, world_size=2)
    sampler.set_epoch(3)
    whole = list(sampler)
    sampler.set_epoch(3, position=16)
    assert len(sampler) == len(whole) - 16
    assert list(sampler) == whole[16:]
    assert list(sampler) == whole  # only once


def test_works_in_a_data_loader():
    sampler = PByQSampler(LABELS, classes=4, samples=3)
    for batch in DataLoader(LABELS, batch_size=12, sampler=sampler):
        assert torch.bincount(batch, minlength=4).tolist() == [3] * 4


def test_labels_may_skip_classes():
    order = ClassBalancedSampler([7, 7, 7, 2])(0)
    assert set(order.tolist()) <= {0, 1, 2, 3}


def test_just_train_twice_repeats_errors():
    wrong = torch.tensor([False, True, False, True])
    repeats = error_repeats(wrong, 3)
    assert repeats.tolist() == [1, 4, 1, 4]
    order = RepeatSampler(repeats)(0)
    assert torch.bincount(order).tolist() == [1, 4, 1, 4]
    none = RepeatSampler(error_repeats(torch.zeros(4, dtype=torch.bool), 50))(0)
    assert sorted(none.tolist()) == [0, 1, 2, 3]  # a first model without errors: plain training


def test_large_long_tail_is_fast_enough():
    counts = (1000 * 0.001 ** (torch.arange(500) / 499)).long().clamp_min(1)
    labels = torch.repeat_interleave(torch.arange(500), counts)
    order = ClassAwareSampler(labels)(0)
    assert len(order) == 500_000
    assert len(PByQSampler(labels, classes=32, samples=4)(0)) >= len(labels)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ClassBalancedSampler(torch.zeros(3)), "labels"),
        (lambda: ClassBalancedSampler([]), "labels"),
        (lambda: PByQSampler(LABELS, classes=5), "at most 4"),
        (lambda: ClassAwareSampler(LABELS, samples=0), "samples"),
        (lambda: ProgressiveSampler(LABELS, epochs=0), "epochs"),
        (lambda: ClassBalancedSampler(LABELS, rank=2, world_size=2), "rank"),
        (lambda: RepeatSampler([0, 0]), "zeros"),
        (lambda: RepeatSampler([1.5]), "whole number"),
        (lambda: error_repeats(torch.tensor([True]), -1), "factor"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_labels_of_a_table():
    pd = pytest.importorskip("pandas")
    labels = pd.Series([0, 1, 1, 0, 1], index=[7, 3, 9, 1, 0])  # as train_test_split leaves them
    assert ClassBalancedSampler(labels).counts.tolist() == [2, 3]
    for bad in (pd.Series(["a", "b"]), [0.5, 1.5], [[0, 1]]):
        with pytest.raises(InputError, match="labels must be one class index for each sample"):
            ClassBalancedSampler(bad)
