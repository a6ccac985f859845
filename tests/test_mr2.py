"""MR²: against the paper's equations written out, and the identities they imply."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from classgap.checks import InputError
from classgap.losses import MR2Loss, gamma_margin_cross_entropy, representation_margin, within_class_pull
from classgap.losses.mr2 import margins_from_moments
from reference import mr2 as reference

K, N, D = 5, 24, 6


def batch(seed=0, classes=K, samples=N, width=D):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (samples,), generator=generator)
    features = torch.randn(samples, width, generator=generator) * (1 + target[:, None]) / 4
    return torch.randn(samples, classes, generator=generator) * 2, target, features


@pytest.mark.parametrize("temperature", [1.0, 3.0, None])
@pytest.mark.parametrize("spread", ["pooled", "ratio", "ema", "zero"])
def test_whole_loss_matches_reference(temperature, spread):
    criterion = MR2Loss(K, c_bar=1.7, lam=0.3, temperature=temperature, spread=spread, fit_power=0.0)
    steps = [batch(seed) for seed in range(4)]
    for logits, target, features in steps:
        value = criterion(logits, target, features=features)
    seen = [(f.numpy(), y.tolist()) for _, y, f in steps]
    second, spreads = reference.running_moments(seen, K)
    if spread == "ema":
        second, spreads["ema"] = reference.published_averages(seen, K)
    sbar = 0.0 if spread == "zero" else np.nanmean(spreads[spread])
    logit = reference.logit_margin(logits, target.tolist(), reference.gamma(second, 1.7))
    rep = reference.representation_margin(features, target.tolist(), sbar, temperature or 10 * D)
    assert float(criterion.last["logit"]) == pytest.approx(logit, rel=1e-5)
    assert float(criterion.last["rep"]) == pytest.approx(rep, rel=1e-4)
    assert float(value) == pytest.approx(logit + 0.3 * rep, rel=1e-5)


def test_published_is_the_paper_step_by_step():
    """Eq. (1), (2), (4) with c̄ = 2, λ = 0.5 and moving averages of decay 0.9: value and state of several steps."""
    criterion, seen = MR2Loss.published(K), []
    for seed in range(6):
        logits, target, features = batch(seed, samples=9)  # some classes are absent or single
        seen.append((features.numpy(), target.tolist()))
        value = criterion(logits, target, features=features)
        second, deviation = reference.published_averages(seen, K)
        np.testing.assert_allclose(criterion.moments.second.numpy(), second, rtol=1e-5)
        np.testing.assert_allclose(criterion.moments.class_spread.numpy(), deviation, rtol=1e-4, atol=1e-7)
        logit = reference.logit_margin(logits, target.tolist(), reference.gamma(second, 2.0))
        rep = reference.representation_margin(features, target.tolist(), np.nanmean(deviation))
        assert float(value) == pytest.approx(logit + 0.5 * rep, rel=1e-5)


@pytest.mark.parametrize(("file", "c_bar", "decay"), [("cifar", 2.0, 0.9), ("imagenet", 1.0, 0.999)])
def test_released_is_the_code_step_by_step(file, c_bar, decay):
    """Norm of order 5 of mean and deviation, exponent / 10d, factor d/10, mean per class over K, slack of the file."""
    criterion, state = MR2Loss.released(K, file=file, lam=0.7), (np.zeros(K), np.zeros(K))
    for seed in range(6):
        logits, target, features = batch(seed, samples=9)
        features = 8 * features  # so that the exponent is not linear
        value = criterion(logits, target, features=features)
        state, expected, logit, rep = reference.released_step(
            state, logits.numpy(), target.tolist(), features.numpy(), K, c_bar, 0.7, decay, file
        )
        np.testing.assert_allclose(criterion.mean_norm.numpy(), state[0], rtol=1e-5)
        np.testing.assert_allclose(criterion.variance.numpy(), state[1], rtol=1e-5)
        assert float(criterion.last["logit"]) == pytest.approx(logit, rel=1e-5)
        assert float(criterion.last["rep"]) == pytest.approx(rep, rel=1e-5)
        assert float(value) == pytest.approx(expected, rel=1e-5)


def test_temperature_connects_the_paper_and_the_code():
    """With T = 10·d, weight λ/100 and equally many samples per class, eq. (2) has the gradient of the released code."""
    target = torch.arange(20) % K
    features = torch.randn(20, D, generator=torch.Generator().manual_seed(0), dtype=torch.double).requires_grad_()
    released = MR2Loss.released(K, c_bar=1.0, lam=1.0).double()
    by_code = torch.autograd.grad(released(torch.zeros(20, K).double(), target, features=features), features)[0]
    rep = representation_margin(features, target, torch.tensor(0.0).double(), temperature=10 * D)
    torch.testing.assert_close(torch.autograd.grad(rep / 100, features)[0], by_code)


def test_at_most_eleven_parameters():
    parameters = inspect.signature(MR2Loss).parameters.values()
    assert sum(p.kind is not p.VAR_KEYWORD for p in parameters) <= 11  # besides the options that all losses share


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_margins_of_any_norm(p):
    criterion = MR2Loss(K, c_bar=2.0, p=p)
    logits, target, features = batch()
    criterion(logits, target, features=features)
    second, _ = reference.running_moments([(features.numpy(), target.tolist())], K, p=np.inf if p == math.inf else p)
    np.testing.assert_allclose(criterion.gamma.numpy(), reference.gamma(second, 2.0), rtol=1e-5)
    assert float(criterion.gamma.mean()) == pytest.approx(2.0, rel=1e-6)


def test_cosine_head_needs_another_norm_than_2():
    logits, target, features = batch()
    features = F.normalize(features)
    gammas = {}
    for p in (2, 3):
        criterion = MR2Loss(K, c_bar=2.0, p=p)
        criterion(logits, target, features=features)
        gammas[p] = criterion.gamma
    torch.testing.assert_close(gammas[2], torch.full((K,), 2.0))
    assert gammas[3].std() > 1e-3


def test_margins_minimise_the_bound():
    """Σ a/γ² is (Σ a^⅓)³/(c̄K)², below that of uniform margins with the same mean; scaling features changes nothing."""
    a = torch.tensor([1.0, 3.0, 0.5, 20.0])
    gamma = margins_from_moments(a, 1.5)
    bound = (a / gamma**2).sum()
    torch.testing.assert_close(bound, a.pow(1 / 3).sum() ** 3 / (1.5 * 4) ** 2)
    assert bound < (a / 1.5**2).sum()
    torch.testing.assert_close(margins_from_moments(100 * a, 1.5), gamma)


def test_equal_spread_and_unit_margin_is_cross_entropy():
    logits, target, features = batch()
    criterion = MR2Loss(K, c_bar=1.0, lam=0.0)
    value = criterion(logits, target, features=F.normalize(features))
    torch.testing.assert_close(value, F.cross_entropy(logits, target))


def test_unseen_classes_do_not_inflate_margins():
    criterion = MR2Loss(K, c_bar=2.0)
    logits, _, features = batch()
    criterion(logits, torch.arange(N) % 2, features=features)
    assert float(criterion.gamma[:2].mean()) == pytest.approx(2.0)
    assert criterion.gamma[2:].tolist() == [2.0] * 3


def test_pull_identities():
    same = torch.ones(4, 3)
    target = torch.zeros(4, dtype=torch.long)
    expected = math.log(1 + 3 * math.exp(-2 * 0.7))
    torch.testing.assert_close(within_class_pull(same, target, torch.tensor(1.4)), torch.full((4,), expected))
    two = torch.tensor([[0.0], [3.0]])
    torch.testing.assert_close(
        within_class_pull(two, target[:2], torch.tensor(9.0)), torch.full((2,), math.log(2.0)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("seed", range(3))
def test_pull_is_a_relaxation_of_the_hard_margin(seed):
    """max(0, max d² − 2s̄) ≤ ℓ ≤ the same + ln b (eq. 3 of the paper)."""
    _, target, features = batch(seed)
    losses = within_class_pull(features, target, torch.tensor(0.5))
    for i in range(N):
        partners = [j for j in range(N) if j != i and target[j] == target[i]]
        hard = max([0.0] + [float((features[i] - features[j]).square().sum()) - 0.5 for j in partners])
        assert hard - 1e-4 <= float(losses[i]) <= hard + math.log(1 + len(partners)) + 1e-4


def test_pair_modes_agree_on_two_samples():
    two, target = torch.randn(2, 3), torch.zeros(2, dtype=torch.long)
    values = [within_class_pull(two, target, torch.tensor(0.3), pair=mode) for mode in ("sum", "mean", "pairwise")]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


def test_pairwise_mode_is_unbiased_in_the_batch_size():
    """The mean over all batches of 2 samples of a class is the value of the whole class."""
    generator = torch.Generator().manual_seed(0)
    population = torch.randn(40, 2, generator=generator, dtype=torch.double)
    target = torch.zeros(40, dtype=torch.long)
    whole = within_class_pull(population, target, torch.tensor(2.0), pair="pairwise").mean()
    batches = [
        within_class_pull(population[pair], target[:2], torch.tensor(2.0), pair="pairwise").mean()
        for pair in torch.combinations(torch.arange(40))
    ]
    assert float(torch.stack(batches).mean()) == pytest.approx(float(whole), rel=1e-9)


@pytest.mark.parametrize("pair", ["sum", "mean", "pairwise"])
@pytest.mark.parametrize("options", [{}, {"anchors": (3, 9)}, {"index": torch.arange(N) // 2}])
def test_pull_gradients(pair, options):
    _, target, features = batch()
    features = features.double().requires_grad_()
    slack = torch.tensor(0.2, dtype=torch.double)

    def function(features):
        return within_class_pull(features, target, slack, scale=0.3, pair=pair, **options)

    assert torch.autograd.gradcheck(function, (features,))


def test_pull_in_chunks_is_the_same(monkeypatch):
    _, target, features = batch(samples=60)
    features.requires_grad_()
    slack = torch.tensor(0.2)
    whole = within_class_pull(features, target, slack)
    (gradient,) = torch.autograd.grad(whole.sum(), features)
    monkeypatch.setattr("classgap.batchstats.pairs._CHUNK", 7 * D)
    parts = within_class_pull(features, target, slack)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), features)[0], gradient)


def test_logit_adjustment_is_added_after_the_division():
    counts = [50, 20, 10, 5, 5]
    logits, target, features = batch()
    log_prior = np.log(np.array(counts) / 90)
    criterion = MR2Loss(K, lam=0.0, class_counts=counts, tau=0.7)
    value = criterion(logits, target, features=features)
    expected = reference.logit_margin(logits, target.tolist(), criterion.gamma.numpy(), log_prior, 0.7)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert criterion.scores(logits) is logits


def test_logit_adjustment_vanishes_on_balanced_counts():
    logits, target, features = batch()
    plain = MR2Loss(K)(logits, target, features=features)
    torch.testing.assert_close(MR2Loss(K, class_counts=[7] * K)(logits, target, features=features), plain)


def test_slack_of_imbalanced_data_is_not_decided_by_frequent_classes():
    assert MR2Loss(K).moments.spread == "pooled"
    assert MR2Loss(K, class_counts=[50, 20, 10, 5, 5]).moments.spread == "ratio"


def test_the_value_stays_comparable_at_high_temperatures():
    """T ln b, a constant of hundreds at T = 10·d, is not part of the value; at T = 1 nothing is taken away."""
    _, target, features = batch()
    small = features / 1e3
    for temperature in (1.0, 60.0, 5120.0):
        value = representation_margin(small, target, torch.tensor(0.0), temperature=temperature)
        sizes = torch.bincount(target, minlength=K)[target].double()
        assert float(value) == pytest.approx(float(sizes.log().mean()), abs=2e-3)


def test_soft_targets_are_the_expectation_over_labels():
    logits, target, features = batch()
    other = (target + 1) % K
    criterion = MR2Loss(K, fit_power=0.0)
    criterion(logits, target, features=features)
    soft = 0.7 * F.one_hot(target, K) + 0.3 * F.one_hot(other, K)
    with criterion.frozen():
        mixed = criterion(logits, soft, features=features)
        hard, rep = criterion(logits, target, features=features), criterion.lam * criterion.last["rep"]
        criterion(logits, other, features=features)
    swapped = criterion.last["logit"]
    torch.testing.assert_close(mixed, 0.7 * (hard - rep) + 0.3 * swapped + rep)


@pytest.mark.parametrize("spread", ["pooled", "ratio", "ema"])
def test_double_precision_inputs(spread):
    """Statistics stay float32; value and gradient follow the inputs."""
    criterion = MR2Loss(K, spread=spread)
    logits, target, features = (part.double() if part.is_floating_point() else part for part in batch())
    value = criterion(logits, target, features=features)
    assert value.dtype == torch.double
    single = MR2Loss(K, spread=spread)(*[p.float() if p.is_floating_point() else p for p in batch()])
    assert float(value) == pytest.approx(float(single), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, None])
@pytest.mark.parametrize(
    "options", [{}, {"spread": "ratio"}, {"spread": "ema"}, {"class_counts": [9, 5, 3, 2, 1]}], ids=str
)
def test_numpy_and_tensors_agree(monkeypatch, temperature, options):
    """Small arrays are NumPy's on the CPU and tensors on an accelerator: same values, gradients and state."""

    def steps():
        criterion = MR2Loss(K, temperature=temperature, **options)
        for seed in range(3):
            logits, target, features = batch(seed)
            logits.requires_grad_(), features.requires_grad_()
            criterion(logits, target, features=features, index=torch.arange(N) // 2).backward()
            yield from (criterion.last["logit"], criterion.last["rep"], logits.grad, features.grad)
        yield from (criterion.gamma, criterion.sbar, *criterion.state_dict().values())

    expected = list(steps())
    monkeypatch.setattr("classgap.batchstats.backend.on_host", lambda tensor: False)
    torch.testing.assert_close(list(steps()), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loss_cast_with_its_model_keeps_the_precision_of_its_statistics(dtype):
    """Sums of squares of wide features overflow float16."""
    full, narrow = MR2Loss(K), MR2Loss(K).to(dtype)
    for seed in range(3):
        logits, target, features = batch(seed, samples=256, width=768)
        values = [criterion(logits, target, features=features * 4) for criterion in (full, narrow)]
        assert values[0] == values[1]
    assert torch.equal(full.moments.sums, narrow.moments.sums)


def test_label_of_vanishing_probability():
    """Its log-probability is beyond the exponent range of float32; value and gradient are those of cross-entropy."""
    logits = torch.tensor([[500.0, 0.0, -500.0], [3.0, 1.0, 2.0]], requires_grad=True)
    target = torch.tensor([2, 0])
    value = gamma_margin_cross_entropy(logits, target, torch.ones(3))
    expected = F.cross_entropy(logits, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v, logits)[0] for v in (value, expected)))


def test_bad_parameters():
    for options, message in [
        ({"c_bar": 0.0}, r"c_bar must be a finite number in \(0, inf\)"),
        ({"lam": -1.0}, "lam must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"margins": "spred"}, "did you mean 'spread'"),
        ({"spread": "pool"}, "did you mean 'pooled'"),
        ({"class_counts": [1, 2]}, "class_counts must have 5 entries"),
        ({"class_counts": [1, 2, 0, 4, 5]}, "class_counts must be positive, got 0.0 for class 2"),
    ]:
        with pytest.raises(InputError, match=message):
            MR2Loss(K, **options)
    with pytest.raises(InputError, match="num_classes must be a whole number >= 2"):
        MR2Loss(1)
    with pytest.raises(InputError, match="unknown value for spread"):
        MR2Loss.published(K, spread="pooled")
    with pytest.raises(InputError, match="unknown value for file"):
        MR2Loss.released(K, file="cifar10")


def test_the_representation_margin_waits_until_the_batch_is_classified() -> None:
    """A head that starts at 0 gives the features no gradient, so that a pull between them would be all that they follow."""
    features = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.tensor([1, 1, 2, 2, 3, 3] * 2)
    MR2Loss(4)(torch.zeros(12, 4), target, features=features).backward()
    assert features.grad is not None
    assert not features.grad.any()  # the first of equal logits is not the label of any sample

    right = 9.0 * torch.nn.functional.one_hot(target, 4)
    for share, logits in ((1.0, right), (0.5, torch.cat([right[:6], -right[6:]]))):
        found, constant = (MR2Loss(4, fit_power=power) for power in (4.0, 0.0))
        gradients = []
        for criterion in (found, constant):
            phi = features.detach().clone().requires_grad_()
            criterion(logits, target, features=phi).backward()
            gradients.append(phi.grad)
        torch.testing.assert_close(gradients[0], share**4 * gradients[1])
