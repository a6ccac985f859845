"""Sources, splits, long-tail profiles, augmentation and batches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classgap.checks import InputError
from classgap.data import Batches, Normalise, Split, load_data, load_source, policies, profile_counts, shuffled
from classgap.data.splits import choose, hold_out, split_hash

TOTALS = [  # classes, largest class, imbalance, total, smallest class (methods of Cui et al. and Cao et al.)
    (10, 5000, 10, 20431, 500),
    (10, 5000, 20, 17023, 250),
    (10, 5000, 50, 13996, 100),
    (10, 5000, 100, 12406, 50),
    (10, 5000, 200, 11203, 25),
    (100, 500, 10, 19573, 50),
    (100, 500, 20, 15907, 25),
    (100, 500, 50, 12608, 10),
    (100, 500, 100, 10847, 5),
    (100, 500, 200, 9502, 2),
]


@pytest.mark.parametrize(("classes", "n_max", "imbalance", "total", "smallest"), TOTALS)
def test_exponential_profile_has_the_published_totals(
    classes: int, n_max: int, imbalance: int, total: int, smallest: int
) -> None:
    counts = profile_counts(classes, n_max, "exponential", imbalance)
    assert (counts.sum(), counts.min(), counts[0]) == (total, smallest, n_max)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_of_images_in_an_archive_may_come_first_or_last(channels: int, tmp_path: Path) -> None:
    """Images (N, 3, 32, 32) were read as 3 x 32 pixels with 32 channels."""
    rng = np.random.default_rng(0)
    last, y = rng.integers(0, 256, (12, 6, 8, channels)).astype(np.uint8), np.arange(12) % 2
    found = []
    for x in (last, last.transpose(0, 3, 1, 2)):
        np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        found.append(load_source(str(tmp_path / "a.npz")))
    assert found[0].in_shape == (channels, 6, 8)
    assert np.array_equal(found[0].x_train, found[1].x_train)
    np.savez(tmp_path / "a.npz", x_train=last[:, :3, :, :1].repeat(7, 3), y_train=y, x_test=last[:, :3, :3], y_test=y)
    with pytest.raises(InputError, match="x_train holds samples of"):
        load_source(str(tmp_path / "a.npz"))


def test_an_archive_of_a_single_class_is_refused(tmp_path: Path) -> None:
    x, y = np.zeros((6, 3), np.float32), np.zeros(6, np.int64)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(
        InputError, match=r"a\.npz has samples of a single class \(0\); a classifier needs at least two"
    ):
        load_data(str(tmp_path / "a.npz"))


def test_settings_of_the_division_that_would_be_ignored() -> None:
    with pytest.raises(InputError, match=r"data\.imbalance=10 needs a profile"):
        load_data("digits", imbalance=10)
    (note,) = load_data("digits", test_fraction=0.5).notes
    assert note == "data.test_fraction has no effect: digits has a test set"


def test_step_profile() -> None:
    for classes, n_max in ((10, 5000), (100, 500)):
        assert profile_counts(classes, n_max, "step", 100).sum() == 25250
    assert profile_counts(5, 100, "step", 10).tolist() == [100, 100, 10, 10, 10]


def test_no_class_is_emptied() -> None:
    assert profile_counts(100, 500, "exponential", 1000).min() == 1
    assert profile_counts(4, 5, "step", 100).min() == 1


def test_smaller_sets_are_nested_and_repeatable() -> None:
    labels = np.repeat(np.arange(3), 50)
    pool = np.arange(150)
    small, large = (choose(labels, pool, np.full(3, n), seed=0) for n in (10, 30))
    assert set(small) < set(large)
    assert np.array_equal(small, choose(labels, pool, np.full(3, 10), seed=0))
    assert not np.array_equal(small, choose(labels, pool, np.full(3, 10), seed=1))
    assert np.bincount(labels[small]).tolist() == [10, 10, 10]


def test_validation_is_stratified_and_apart_from_training_and_test() -> None:
    data = load_data("digits", per_class=20, val_fraction=0.2)
    assert data.val is not None
    assert data.class_counts.tolist() == [20] * 10
    assert torch.bincount(data.val.y).min() >= 14

    def rows(split: Split) -> set[bytes]:
        return {image.numpy().tobytes() for image in split.x}

    assert len(rows(data.train) | rows(data.val) | rows(data.test)) == 200 + len(data.val) + 1000  # digits has no twins
    rest, held = hold_out(np.repeat(np.arange(4), 10), 4, 0.3, seed=0)
    assert np.bincount(np.repeat(np.arange(4), 10)[held]).tolist() == [3] * 4
    assert sorted([*rest, *held]) == list(range(40))


def test_split_hash_tells_data_apart() -> None:
    base = load_data("digits", per_class=20)
    assert base.split_hash == load_data("digits", per_class=20).split_hash
    for other in ({"per_class": 21}, {"per_class": 20, "seed": 1}, {"per_class": 20, "val_fraction": 0.2}):
        assert load_data("digits", **other).split_hash != base.split_hash
    assert split_hash(np.arange(3), np.arange(2)) != split_hash(np.arange(2), np.arange(3))


def test_long_tail_of_a_source() -> None:
    data = load_data("digits", profile="exponential", imbalance=10, val_fraction=0)
    assert data.val is None
    expected = profile_counts(10, int(np.bincount(load_source("digits").y_train).min()), "exponential", 10)
    assert data.class_counts.tolist() == expected.tolist()


def test_real_archives_load(shared_data: Path) -> None:
    images = load_source(f"npz:{shared_data}/cifar10_500per.npz")
    assert images.x_train.shape == (5000, 3, 32, 32)
    assert images.class_names[3] == "cat"
    assert images.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=0.01)
    vectors = load_data(f"npz:{shared_data}/cifar100_effnetlite0_pca256.npz", per_class=100)
    assert vectors.in_shape == (256,)
    assert vectors.train.x.dtype == torch.float32
    with pytest.raises(InputError, match="needs images"):
        load_data(f"npz:{shared_data}/cifar100_effnetlite0_pca256.npz", augment=("crop",))


def test_fashion_mnist_from_either_place() -> None:
    try:
        source = load_source("fashion_mnist")
    except InputError:
        pytest.skip("Fashion-MNIST is not on this machine")
    assert source.x_train.shape == (60000, 1, 28, 28)
    assert np.bincount(source.y_test).tolist() == [1000] * 10
    assert source.augment == ("crop", "flip")


def test_absent_download_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path))
    with pytest.raises(InputError, match="classgap data prepare cifar10"):
        load_source("cifar10")
    with pytest.raises(InputError, match="classgap data prepare mnist"):
        load_source("mnist")


GOOD: dict[str, Any] = {
    "x_train": np.zeros((6, 4, 4, 3), np.uint8),
    "y_train": np.arange(6) % 3,
    "x_test": np.zeros((3, 4, 4, 3), np.uint8),
    "y_test": np.arange(3),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_test": None}, r"lacks y_test \(it has x_train, y_train, x_test\)"),
        ({"x_train": np.zeros((6, 4, 4, 3))}, "must be images uint8"),
        ({"x_train": np.full((6, 4), np.nan), "x_test": np.zeros((3, 4))}, "nan or infinite"),
        ({"y_train": np.arange(5)}, "one label for each of the 6"),
        ({"y_train": np.arange(6) - 1}, "class indices from 0"),
        ({"y_train": np.arange(6) / 2}, "class indices from 0"),
        ({"x_test": np.zeros((3, 5, 5, 3), np.uint8)}, r"x_test of \(5, 5, 3\)"),
        ({"class_names": np.array(["a", "b"])}, "class_names has 2 entries"),
    ],
)
def test_faulty_archives(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load_source(f"npz:{tmp_path}/d.npz")


def test_unreadable_and_unknown_sources(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **GOOD)
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not an NPZ archive"):
        load_source(f"npz:{tmp_path}/cut.npz")
    with pytest.raises(InputError, match="there is no file"):
        load_source(f"npz:{tmp_path}/none.npz")
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load_source("cifar1")


def test_impossible_splits() -> None:
    with pytest.raises(InputError, match=r"lower data\.per_class"):
        load_data("digits", per_class=75)
    with pytest.raises(InputError, match=r"set data\.val_fraction=0"):
        hold_out(np.array([0, 0, 1]), 2, 0.5, seed=0)
    with pytest.raises(InputError, match="did you mean 'flip'"):
        policies(["flop"], (0.5,))
    with pytest.raises(InputError, match="did you mean 'exponential'"):
        load_data("digits", profile="exponent")  # type: ignore[arg-type]


def _images(n: int = 6, side: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 255, (n, 3, side, side), generator=generator, dtype=torch.uint8)


def test_crop_is_a_shifted_window() -> None:
    images = _images()
    uniform = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.5, 0.5], [0.5, 0.0], [0.2, 0.9], [0.9, 0.2]])
    (crop,) = policies(["crop"], (0.5,))
    out = crop(images, uniform)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))  # an eighth of 16
    corners = (uniform * 5).long()
    for image, source, (top, left) in zip(out, padded, corners.tolist(), strict=True):
        assert torch.equal(image, source[:, top : top + 16, left : left + 16])
    assert torch.equal(out[2], images[2])


def test_flip_and_cutout() -> None:
    images = _images(2)
    (flip,) = policies(["flip"], (0.5,))
    out = flip(images, torch.tensor([[0.1, 0.0], [0.9, 0.0]]))
    assert torch.equal(out[0], images[0].flip(2))
    assert torch.equal(out[1], images[1])
    (cutout,) = policies(["cutout"], (0.5, 0.5, 0.5))
    out = cutout(images, torch.tensor([[0.5, 0.5], [0.0, 0.0]], dtype=torch.float64))
    assert (out[0, :, 4:12, 4:12] == 128).all()
    assert (out[0] != images[0]).any(0).sum() <= 64
    assert (out[1, :, :4, :4] == 128).all()
    assert torch.equal(out[1, :, 4:], images[1, :, 4:])


def test_autoaugment_depends_on_its_number_only() -> None:
    pytest.importorskip("torchvision")
    images = _images(4)
    drawn = ("autoaugment", "autoaugment_imagenet", "randaugment", "color_jitter", "resized_crop", "simclr", "blur")
    for name in drawn:
        (policy,) = policies([name], (0.5,))
        uniform = torch.rand(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        state = torch.get_rng_state()
        out = policy(images, uniform)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(policy(images[2:], uniform[2:]), out[2:])
        assert not torch.equal(out, images)


def test_crop_scale_bounds_the_part_that_is_kept() -> None:
    pytest.importorskip("torchvision")
    ramp = torch.arange(64, dtype=torch.uint8).expand(20, 3, 64, 64)  # the range of its columns is the width of a part
    uniform = torch.rand(20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for scale in (0.08, 0.9):
        (policy,) = policies(["resized_crop"], (0.5,), crop_scale=scale)
        widths = [int(image.max()) - int(image.min()) for image in policy(ramp, uniform)]
        assert (min(widths) >= 50) is (scale == 0.9)  # sqrt(0.9 × 3/4) of 64 is 52.6


def test_further_views_have_augmentations_of_their_own() -> None:
    plain = _batches(views=3)
    first, *_ = plain.epoch(0)
    for other in (_batches(views=3, view_policies=()), _batches(views=3, view_policies=policies(["flip"], (0.5,)))):
        batch, *_ = other.epoch(0)
        assert torch.equal(batch.x[:10], first.x[:10])  # the first view
        assert not torch.equal(batch.x[10:], first.x[10:])
    bare, *_ = _batches(views=3, view_policies=()).epoch(0)
    assert torch.equal(bare.x[10:20], bare.x[20:])
    assert _batches(policies=(), views=2, view_policies=policies(["flip"], (0.5,))).augmented
    same, *_ = _batches(views=3, view_policies=plain.policies).epoch(0)
    assert torch.equal(same.x, first.x)


def _batches(**changes: Any) -> Batches:
    split = Split(_images(53), torch.arange(53) % 4)
    names: dict[str, Any] = {"batch": 10, "order": shuffled(53, 0), "policies": policies(["crop", "flip"], (0.5,))}
    return Batches(split, **{**names, "normalise": Normalise((0.5,) * 3, (0.25,) * 3), "seed": 0, **changes})


def test_an_epoch_visits_everyone_once_and_can_start_anywhere() -> None:
    batches = _batches()
    whole = list(batches.epoch(3))
    assert len(whole) == batches.steps() == 6
    assert sorted(torch.cat([b.index for b in whole]).tolist()) == list(range(53))
    for late, again in zip(batches.epoch(3, start=4), whole[4:], strict=True):
        assert torch.equal(late.x, again.x)
        assert torch.equal(late.index, again.index)
    other = next(iter(batches.epoch(4)))
    assert not torch.equal(other.index, whole[0].index)
    assert not torch.equal(next(iter(_batches(seed=1).epoch(3))).x, whole[0].x)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_same_batches(world: int) -> None:
    parts = [_batches(rank=r, world=world).epoch(0) for r in range(world)]
    for whole, *shares in zip(_batches().epoch(0), *parts, strict=False):
        assert torch.equal(torch.cat([s.x[: len(s.y)] for s in shares]), whole.x)
        assert torch.equal(torch.cat([s.index for s in shares]), whole.index)
        assert {s.total for s in shares} == {whole.total}


def test_a_tail_too_small_for_batchnorm_is_left_out() -> None:
    assert _batches(batch=52).steps() == 1
    assert _batches(batch=50).steps() == 2


def test_a_process_without_samples_of_a_small_tail_has_inputs_for_batchnorm() -> None:
    (*_, first), (*_, second) = (_batches(batch=50, world=2, rank=rank).epoch(0) for rank in range(2))
    assert (len(first.y), len(second.y)) == (3, 0)
    assert (len(first.x), len(second.x)) == (3, 2)


def test_normalise() -> None:
    images = _images(2)
    for channels_last in (False, True):
        out = Normalise((0.5, 0.4, 0.3), (0.2, 0.2, 0.1), channels_last=channels_last)(images)
        expected = (images / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.2, 0.1]).view(
            3, 1, 1
        )
        torch.testing.assert_close(out, expected)
        assert out.is_contiguous(memory_format=torch.channels_last) is channels_last
    vectors = torch.randn(3, 5)
    assert Normalise((), ())(vectors) is vectors


def test_data_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from classgap.cli.app import app

    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    listed = CliRunner().invoke(app, ["data", "list"])
    assert listed.exit_code == 0
    assert re.search(r"^digits +yes ", listed.output, re.MULTILINE)
    assert re.search(r"^cifar10 +no ", listed.output, re.MULTILINE)
    assert (
        "797 training, 1000 test samples of 10 classes" in CliRunner().invoke(app, ["data", "prepare", "digits"]).output
    )
    assert isinstance(CliRunner().invoke(app, ["data", "prepare", "digit"]).exception, InputError)
