"""Spread, distances, Fisher separability, angles, neural collapse."""

from __future__ import annotations

import numpy as np
import pytest

from classgap import arrays
from classgap.checks import InputError
from classgap.measure.diagnostics import geometry
from classgap.measure.diagnostics.geometry import fisher, spread
from classgap.measure.diagnostics.geometry.angles import angles_between, largest_margin
from classgap.measure.diagnostics.geometry.fisher import fisher_separability
from reference import geometry as reference


def clusters(seed=0, k=4, d=6, n=30, scale=1.0):
    """Gaussian classes of different size and spread, and a head."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(k), n + 3 * np.arange(k))
    x = rng.normal(size=(k, d))[y] * 2 + rng.normal(size=(len(y), d)) * (1 + np.arange(k))[y][:, None] * 0.3
    return x * scale, y, rng.normal(size=(k, d)), rng.normal(size=k)


def simplex(k, d=None):
    """k unit vectors with pairwise cosine -1/(k-1) in d dimensions."""
    vertices = np.eye(k) - 1 / k
    vertices /= np.linalg.norm(vertices, axis=1, keepdims=True)
    return np.pad(vertices, ((0, 0), (0, (d or k) - k)))


def rotation(d, seed=5):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def test_spread_matches_loop_reference():
    x, y, *_ = clusters()
    found = geometry.describe(x, y, 4).spread
    for k in range(4):
        own = x[y == k]
        assert found.spread[k] == pytest.approx(reference.spread(own))
        assert found.spread_unbiased[k] == pytest.approx(reference.spread(own, ddof=1))
        assert found.diameter[k] == pytest.approx(reference.diameter(own))
        assert found.variance_norm[k] == pytest.approx(np.linalg.norm(own.var(axis=0)))
        assert found.second_moment[k] == pytest.approx((own**2).sum(axis=1).mean())
        assert found.ratio[k] == pytest.approx(reference.spread(own) / np.linalg.norm(own.mean(axis=0)))
        squared = ((own - own.mean(axis=0)) ** 2).sum(axis=1)
        assert found.squared_error[k] == pytest.approx(squared.std(ddof=1) / np.sqrt(len(own)), rel=1e-9)
    assert found.largest_norm == pytest.approx(np.linalg.norm(x, axis=1).max())


def test_largest_distances_and_their_excess_match_loop_reference():
    """ELM's d_max of every sample, and MR²'s eq. 3, by class and over all samples."""
    x, y, *_ = clusters()
    found = geometry.describe(x, y, 4)
    d_max, excess = reference.max_distances(x, y), reference.hard_representation_margin(x, y, 4)
    np.testing.assert_allclose(found.spread.max_distance / found.spread.largest_norm, d_max)
    np.testing.assert_allclose(found.spread.excess, excess, atol=1e-12)
    assert 0 < (excess > 0).mean() < 1
    for column, values in (("mean_max_distance", d_max), ("mr2_excess_distance", excess)):
        np.testing.assert_allclose(found.columns()[column], [values[y == k].mean() for k in range(4)], atol=1e-12)
        assert found.summary()[column] == pytest.approx(values.mean())


def test_excess_lies_within_the_soft_maximum_of_equation_2():
    x, y, *_ = clusters(scale=0.5)
    found = geometry.describe(x, y, 4).spread
    slack = 2 * (found.spread**2).mean()
    for i in (0, 50, 100):
        squared = ((x[y == y[i]] - x[i]) ** 2).sum(axis=1)
        soft = np.log(1 + np.exp(squared[squared > 0] - slack).sum())
        assert found.excess[i] <= soft <= found.excess[i] + np.log((y == y[i]).sum())


def test_two_points_have_closed_forms():
    found = geometry.describe(np.array([[0.0, 0], [2, 0], [0, 5], [0, 5]]), np.array([0, 0, 1, 1]), 2)
    np.testing.assert_allclose(found.spread.spread, [1, 0])
    np.testing.assert_allclose(found.spread.spread_unbiased, [np.sqrt(2), 0])
    np.testing.assert_allclose(found.spread.diameter, [2, 0])
    np.testing.assert_allclose(found.columns()["max_distance"], [0.4, 0])
    np.testing.assert_allclose(found.columns()["mean_max_distance"], [0.4, 0])
    np.testing.assert_allclose(found.spread.excess, [3, 3, 0, 0])  # s̄ is 1/2: 4 - 2 · 1/2


def test_diameter_of_a_class_beyond_the_anchors_is_at_most_the_exact_one(monkeypatch):
    x, y, *_ = clusters(n=60)
    exact = geometry.describe(x, y, 4).spread
    monkeypatch.setattr(spread, "ANCHORS", 5)
    monkeypatch.setattr(geometry.summary, "ANCHORS", 5)
    found = geometry.describe(x, y, 4)
    for name in ("diameter", "max_distance"):
        ratio = getattr(found.spread, name) / getattr(exact, name)
        assert ratio.max() <= 1 + 1e-12
        assert np.median(ratio) > 0.95
    assert any("farthest from the class mean" in note for note in found.notes)


@pytest.mark.parametrize("normalise", [True, False])
def test_fisher_matches_loop_reference(normalise):
    x, y, *_ = clusters(d=3)
    units = x / np.linalg.norm(x, axis=1, keepdims=True) if normalise else x
    found = fisher_separability(x, y, 4, covariance="pairwise", normalise=normalise)
    for i in range(4):
        for j in range(4):
            if i != j:
                assert found.criterion[i, j] == pytest.approx(reference.fisher(units[y == i], units[y == j], 1e-3))
    np.testing.assert_allclose(found.separability, np.nanmean(found.criterion, axis=1))
    value, index = fisher.smallest(found.criterion)
    np.testing.assert_array_equal(index, np.nanargmin(found.criterion, axis=1))
    np.testing.assert_allclose(value, np.nanmin(found.criterion, axis=1))


def test_two_clusters_have_the_closed_form_criterion():
    """Equal isotropic covariances: J is the squared distance over twice the variance, plus ridge."""
    corners = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])  # unbiased covariance (2/3) I
    x, y = np.vstack([corners, corners + np.array([3, 0])]), np.repeat([0, 1], 4)
    for covariance in ("pairwise", "pooled"):
        found = fisher_separability(x, y, 2, covariance=covariance, normalise=False, ridge=0.0)
        assert found.criterion[0, 1] == pytest.approx(9 / (4 / 3), rel=1e-6)


def test_pooled_equals_pairwise_when_covariances_are_equal():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(50, 4))
    means = rng.normal(size=(5, 4)) * 3
    x, y = np.vstack([noise + m for m in means]), np.repeat(np.arange(5), 50)
    a, b = (fisher_separability(x, y, 5, covariance=c, normalise=False).criterion for c in ("pairwise", "pooled"))
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_corrected_distance_is_unbiased():
    """Plug-in Mahalanobis distances are far too large with few samples; the corrected ones are right on average."""
    plug_in, corrected = [], []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        y = np.repeat(np.arange(4), 12)
        x = rng.normal(size=(48, 10)) + 3 * np.eye(4, 10)[y]
        found = fisher_separability(x, y, 4, covariance="pooled", normalise=False, ridge=0.0)
        off = ~np.eye(4, dtype=bool)
        plug_in.append(2 * found.criterion[off].mean())
        corrected.append(found.distance[off].mean())
    assert np.mean(plug_in) > 21
    error = np.std(corrected) / np.sqrt(len(corrected))
    assert abs(np.mean(corrected) - 18) < 4 * error


@pytest.mark.parametrize("covariance", ["pairwise", "pooled"])
def test_boundary_error_is_that_of_the_best_straight_boundary(covariance):
    """Unit Gaussians 2 apart: Φ(−1) = 15.9 % on the wrong side; a boundary tried where it was fitted would promise less."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 900)
    x = rng.normal(size=(2700, 5)) + np.array([[0.0, 0], [2, 0], [0, 9]])[y] @ np.eye(2, 5)
    found = fisher_separability(x, y, 3, covariance=covariance, normalise=False)
    np.testing.assert_array_equal(found.nearest, [1, 0, 0])
    np.testing.assert_array_equal(found.boundary_trials, 1800)
    np.testing.assert_allclose(found.boundary_error, [0.159, 0.159, 0], atol=0.02)


def test_boundary_between_equal_classes_is_a_coin_toss():
    """40 dimensions and 30 samples a class: fitted and tried on the same samples it would seem near perfect."""
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(6), 30)
    found = fisher_separability(rng.normal(size=(180, 40)), y, 6)
    assert 0.4 < found.boundary_error.mean() < 0.6


def test_boundary_is_tried_on_a_bounded_number_of_samples(monkeypatch):
    x, y, *_ = clusters(n=60)
    monkeypatch.setattr(fisher, "BOUNDARY_SAMPLES", 20)
    assert (fisher_separability(x, y, 4).boundary_trials <= 40).all()


def test_auto_uses_class_covariances_only_where_they_can_be_estimated():
    x, y, *_ = clusters(d=6, n=30)
    assert fisher_separability(x, y, 4).covariance == "pairwise"
    assert fisher_separability(x[::6], y[::6], 4).covariance == "pooled"  # 5 samples of the first class in 6 dimensions


def test_auto_bounds_the_work(monkeypatch):
    x, y, *_ = clusters()
    monkeypatch.setattr(fisher, "MAX_OPERATIONS", 10)
    found = geometry.describe(x, y, 4)
    assert found.fisher.covariance == "pooled"
    assert any("pooled" in note for note in found.notes)


def test_very_wide_features_have_no_fisher_criterion(monkeypatch):
    x, y, *_ = clusters()
    monkeypatch.setattr(fisher, "MAX_WIDTH", 5)
    found = geometry.describe(x, y, 4)
    assert np.isnan(found.fisher.separability).all()
    assert any("not computed" in note for note in found.notes)
    assert np.isfinite(found.collapse.nc1)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_simplex_features_are_fully_collapsed(k):
    vertices = simplex(k, k + 2) @ rotation(k + 2)
    y = np.repeat(np.arange(k), 5)
    found = geometry.describe(vertices[y] + 10.0, y, k, weight=3 * vertices, bias=-3 * vertices.sum(axis=1) * 10.0)
    for name, value in vars(found.collapse).items():
        assert value == pytest.approx(0, abs=1e-9), name
    assert found.head.angles.margin == pytest.approx(found.head.limit)


def test_neural_collapse_matches_loop_reference():
    x, y, weight, bias = clusters()
    found = geometry.describe(x, y, 4, weight=weight, bias=bias).collapse
    expected = reference.neural_collapse(x, y, weight, bias)
    np.testing.assert_allclose(tuple(vars(found).values()), expected, rtol=1e-5)


def test_collapse_without_head_has_no_head_numbers():
    x, y, *_ = clusters()
    found = geometry.describe(x, y, 4)
    assert np.isfinite(
        [found.collapse.nc1, found.collapse.cdnv, found.collapse.nc2_norm, found.collapse.nc2_angle]
    ).all()
    assert np.isnan([found.collapse.nc3, found.collapse.nc4, found.collapse.nc2_weight_norm]).all()
    assert found.head is None
    assert "weight_norm" not in found.columns()
    assert set(found.neighbours()) == {"fisher", "mean_angle"}


def test_classifier_margin_and_its_limit():
    assert angles_between(np.eye(4)).margin == pytest.approx(90)
    assert angles_between(simplex(4)).margin == pytest.approx(largest_margin(4, 4)) == pytest.approx(109.4712, abs=1e-4)
    assert largest_margin(100, 64) == 90  # CIFAR-100 with a ResNet-32
    assert largest_margin(129, 64) <= 90
    assert largest_margin(6, 2) == pytest.approx(60)  # six directions in the plane
    assert largest_margin(12, 3) >= 63.43  # the icosahedron reaches 63.43°
    assert largest_margin(3, 1) == 0
    assert np.isnan(largest_margin(1, 5))


def test_no_directions_exceed_the_limit():
    rng = np.random.default_rng(0)
    for k, d in [(3, 5), (5, 4), (8, 4), (30, 3), (5, 1)]:
        best = max(angles_between(rng.normal(size=(k, d))).margin for _ in range(200))
        assert best <= largest_margin(k, d) + 1e-6


def test_angles_find_the_neighbour_and_skip_zero_vectors():
    vectors = np.array([[1.0, 0], [1, 0.1], [0, 0], [-1, 0]])
    found = angles_between(vectors)
    np.testing.assert_array_equal(found.neighbour, [1, 0, -1, 1])
    assert np.isnan(found.nearest[2])
    assert found.margin == pytest.approx(np.degrees(np.arctan(0.1)))


def test_head_numbers_from_their_definitions():
    x, y, weight, bias = clusters()
    head = geometry.describe(x, y, 4, weight=weight, bias=bias).head
    logits = x @ weight.T + bias
    for k in range(4):
        own = x[y == k]
        norm = np.linalg.norm(weight[k])
        assert head.norms[k] == pytest.approx(norm)
        assert head.average_logit[k] == pytest.approx(logits[y == k, k].mean())
        assert head.average_margin[k] == pytest.approx(logits[y == k, k].mean() / norm)
        angle = np.degrees(np.arccos(own @ weight[k] / norm / np.linalg.norm(own, axis=1)))
        np.testing.assert_allclose(head.sample_angle[k], [angle.mean(), *np.quantile(angle, [0.25, 0.5, 0.75])])
    assert head.norm_variation == pytest.approx(head.norms.std() / head.norms.mean())


def test_rotation_changes_nothing_and_scale_only_lengths():
    x, y, weight, bias = clusters()
    turn = rotation(6)
    plain = geometry.describe(x, y, 4, weight=weight, bias=bias)
    turned = geometry.describe(x @ turn, y, 4, weight=weight @ turn, bias=bias)
    scaled = geometry.describe(7 * x, y, 4, weight=weight / 7, bias=bias)
    for name, column in plain.columns().items():
        if name != "variance_norm":  # defined by the axes
            np.testing.assert_allclose(turned.columns()[name], column, rtol=1e-5, err_msg=name)
        factor = {"spread": 7, "spread_unbiased": 7, "variance_norm": 49, "weight_norm": 1 / 7, "average_margin": 7}
        factor["mr2_excess_distance"] = 49
        np.testing.assert_allclose(scaled.columns()[name], column * factor.get(name, 1), rtol=1e-5, err_msg=name)
    for name in ("nc1", "cdnv", "nc2_norm", "nc2_angle", "nc3", "nc4"):
        assert getattr(turned.collapse, name) == pytest.approx(getattr(plain.collapse, name), rel=1e-5)
        assert getattr(scaled.collapse, name) == pytest.approx(getattr(plain.collapse, name), rel=1e-5)


def test_far_from_the_origin_nothing_cancels():
    """Mean 1e4 times the spread, as in a collapsed network: float64 deviations around the mean, not differences of moments."""
    x, y, *_ = clusters(scale=1e-4)
    near, far = geometry.describe(x, y, 4), geometry.describe(x + 1.0, y, 4)
    np.testing.assert_allclose(far.spread.spread, near.spread.spread, rtol=1e-9)
    assert far.collapse.nc1 == pytest.approx(near.collapse.nc1, rel=1e-5)


def test_absent_class_is_nan_and_does_not_move_the_others():
    x, y, weight, bias = clusters()
    kept = y != 1
    full = geometry.describe(x[kept], y[kept], 4, weight=weight, bias=bias)
    alone = geometry.describe(
        x[kept], np.searchsorted([0, 2, 3], y[kept]), 3, weight=weight[[0, 2, 3]], bias=bias[[0, 2, 3]]
    )
    for name, column in full.columns().items():
        if name not in ("weight_norm", "weight_angle"):
            assert np.isnan(column[1]), name
            np.testing.assert_allclose(column[[0, 2, 3]], alone.columns()[name], err_msg=name)
    for name, value in vars(full.collapse).items():
        assert value == pytest.approx(vars(alone.collapse)[name]), name
    assert full.neighbours()["fisher"][1] == -1
    assert full.neighbours()["mean_angle"][1] == -1
    assert np.isfinite(list(full.summary().values())).all()


def test_single_sample_classes():
    found = geometry.describe(
        np.array([[0.0, 1], [1, 0], [1, 1], [1.5, 1]]), np.array([0, 1, 2, 2]), 3, weight=np.ones((3, 2))
    )
    np.testing.assert_allclose(found.spread.spread[:2], 0)
    assert np.isnan(found.spread.spread_unbiased[:2]).all()
    np.testing.assert_allclose(found.spread.diameter, [0, 0, 0.5])
    assert np.isfinite(found.fisher.separability).all()  # the pooled covariance comes from the third class
    lonely = fisher_separability(np.eye(2), np.arange(2), 2)
    assert np.isnan(lonely.criterion).all()
    pairwise = fisher_separability(np.eye(3)[[0, 1, 2, 2]], np.array([0, 1, 2, 2]), 3, covariance="pairwise")
    assert np.isnan(pairwise.criterion).all()


@pytest.mark.parametrize(("k", "d"), [(9, 2), (5, 1), (1, 3)])
def test_any_shape_is_measured(k, d):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(k), 8)
    found = geometry.describe(rng.normal(size=(len(y), d)), y, k, weight=rng.normal(size=(k, d)), bias=np.zeros(k))
    assert np.isfinite(found.spread.spread).all()
    assert all(len(column) == k for column in found.columns().values())
    assert np.isfinite(found.summary()["nc1"]) == (k > 1)


@pytest.mark.parametrize("size", [8, 11])  # with 11, rounding makes the two means differ
def test_constant_features(size):
    """All features equal: no spread, no directions, nothing invented."""
    y = np.arange(size) % 2
    found = geometry.describe(np.full((size, 3), 0.1), y, 2, weight=np.eye(2, 3), bias=np.zeros(2))
    np.testing.assert_allclose(found.spread.spread, 0, atol=1e-15)
    assert np.isnan(found.collapse.nc1)
    assert np.isnan(found.collapse.nc2_norm)
    assert np.isnan(found.collapse.nc3)
    assert found.fisher.criterion[0, 1] == 0


def test_constant_within_classes_is_infinitely_separable():
    found = geometry.describe(np.repeat(np.eye(3), 4, axis=0), np.repeat(np.arange(3), 4), 3)
    assert found.collapse.nc1 == 0
    assert np.isinf(found.fisher.separability).all()


def test_equal_means_are_no_collapse():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(10, 3))
    x = np.vstack([half, -half, 2 * half, -2 * half])  # both class means are 0
    found = geometry.describe(x, np.repeat([0, 1], 20), 2).collapse
    assert found.nc1 == np.inf
    assert found.cdnv == np.inf


def test_block_size_does_not_matter(monkeypatch):
    x, y, weight, bias = clusters()
    whole = geometry.describe(x, y, 4, weight=weight, bias=bias)
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 40)
    split = geometry.describe(x, y, 4, weight=weight, bias=bias)
    for name, column in whole.columns().items():
        np.testing.assert_allclose(split.columns()[name], column, rtol=1e-6, err_msg=name)
    for name, value in whole.summary().items():
        assert split.summary()[name] == pytest.approx(value, rel=1e-6), name


def test_half_precision_features_are_summed_in_double():
    x, y, *_ = clusters(n=2000, k=2)
    low = geometry.describe((x + 100).astype(np.float16), y, 2)
    exact = (x + 100).astype(np.float16).astype(np.float64)
    assert low.spread.spread[0] == pytest.approx(reference.spread(exact[y == 0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.zeros(5)}, "features must be a numeric matrix"),
        ({"features": np.full((4, 2), np.inf)}, "nan or infinite"),
        ({"features": np.zeros((0, 2)), "y_true": np.zeros(0, int)}, "at least one row"),
        ({"y_true": np.array([0, 1])}, "one entry per row"),
        ({"weight": np.zeros((2, 3))}, r"weight must have shape \(3, 2\), got \(2, 3\); pass weight.T"),
        ({"weight": np.zeros((3, 2)), "bias": np.zeros(2)}, "bias must be 3 numbers"),
        ({"weight": np.zeros((3, 2)), "bias": np.array([0, np.nan, 0])}, "bias holds nan"),
        ({"bias": np.zeros(3)}, "bias also needs weight"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"features": np.zeros((4, 2)), "y_true": np.array([0, 1, 2, 2]), "num_classes": 3} | change
    with pytest.raises(InputError, match=message):
        geometry.describe(**given)


def test_unknown_covariance_is_named():
    with pytest.raises(InputError, match="did you mean 'pooled'"):
        fisher_separability(np.eye(2), np.arange(2), 2, covariance="pool")


def test_real_embeddings(shared_data):
    archive = np.load(shared_data / "cifar100_effnetlite0_pca256.npz")
    x, y, names = archive["x_test"], archive["y_test"].astype(int), archive["class_names"].astype(str)
    found = geometry.describe(x, y, 100)
    own = x[y == 7].astype(np.float64)
    assert found.spread.spread[7] == pytest.approx(reference.spread(own))
    assert found.spread.diameter[7] == pytest.approx(reference.diameter(own))
    assert 0 < found.summary()["nc1"] < 100
    nearest = dict(zip(names, names[found.neighbours()["fisher"]], strict=True))
    assert nearest["boy"] in ("girl", "man", "baby", "woman")
    assert nearest["maple_tree"].endswith("_tree")


def test_nearest_class_where_all_classes_are_infinitely_separable():
    found = geometry.describe(np.eye(4).repeat(6, axis=0), np.arange(4).repeat(6), 5)
    assert np.isinf(found.columns()["nearest_fisher"][:4]).all()
    assert found.neighbours()["fisher"].tolist() == [1, 0, 0, 0, -1]
