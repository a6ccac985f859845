"""SupCon, BCL, DRO-LT and GML."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.heads import CosineHead, FeatureTap
from classgap.losses import BalancedSoftmaxLoss, BCLLoss, DBMLoss, DROLTLoss, GMLLoss, LossBatch, MR2Loss, SupConLoss
from classgap.losses.bcl import balanced_contrast
from classgap.losses.dro_lt import robust_centroid_contrast
from classgap.losses.gml import class_log_mean_exp, queue_sizes
from classgap.losses.supcon import supervised_contrast
from reference import contrast

K, D = 5, 6
COUNTS = [40, 20, 10, 6, 4]
PRIOR = np.array(COUNTS) / 80


def batch(samples: int = 10, views: int = 1, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(views * samples, K, generator=generator, dtype=torch.float64)
    features = torch.randn(views * samples, D, generator=generator, dtype=torch.float64)
    target = torch.randint(0, K - 1, (samples,), generator=generator).repeat(views)  # the last class is absent
    return logits, target, features


def sphere(rows: int, seed: int = 0):
    return F.normalize(torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


# --- SupCon -----------------------------------------------------------------------------------------------------------


def test_supervised_contrast_matches_reference():
    embeddings, labels = sphere(9), [0, 1, 0, 2, 1, 0, 3, 1, 0]  # 2 and 3 have no partner
    expected = contrast.supcon(embeddings.numpy(), labels, 0.2)
    assert supervised_contrast(embeddings, torch.tensor(labels), temperature=0.2).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [4, 4]])
def test_supervised_contrast_without_choice_is_zero(labels):
    embeddings = sphere(len(labels)).requires_grad_()
    losses = supervised_contrast(embeddings, torch.tensor(labels))
    losses.sum().backward()
    assert losses.abs().max().item() == pytest.approx(0.0, abs=1e-12)
    assert torch.isfinite(embeddings.grad).all()


def test_supcon_is_cross_entropy_plus_contrast_of_projections():
    logits, target, features = batch(views=2)
    criterion = SupConLoss(K, D, weight=0.7, temperature=0.3).double()
    embeddings = F.normalize(criterion.projection(features), dim=1)
    expected = F.cross_entropy(logits, target) + 0.7 * supervised_contrast(embeddings, target, temperature=0.3).mean()
    assert criterion(logits, target, features).item() == pytest.approx(expected.item())


def test_first_stage_of_supcon_ignores_the_head():
    logits, target, features = batch(views=2)
    logits.requires_grad_()
    SupConLoss(K, D, ce_weight=0.0).double()(logits, target, features).backward()
    assert not logits.grad.any()


# --- BCL --------------------------------------------------------------------------------------------------------------


def test_balanced_contrast_matches_reference():
    embeddings, prototypes, labels = sphere(7), sphere(4, seed=5), [0, 0, 0, 1, 1, 2, 0]
    expected = contrast.bcl(embeddings.numpy(), labels, prototypes.numpy(), 0.3)
    losses = balanced_contrast(embeddings, torch.tensor(labels), prototypes, temperature=0.3)
    assert losses.tolist() == pytest.approx(expected)


def test_one_class_of_equal_rows_is_not_contrasted():
    same = torch.ones(2, 1)
    assert balanced_contrast(same, torch.zeros(2, dtype=torch.long), same[:1]).tolist() == pytest.approx(
        [0.0, 0.0], abs=1e-6
    )


def build_bcl(head: nn.Module | None = None, **params):
    torch.manual_seed(0)
    criterion = BCLLoss(K, D, class_counts=COUNTS, **params).double()
    criterion.bind_head(nn.Linear(D, K).double() if head is None else head)
    return criterion


def projected(projection, rows: torch.Tensor) -> np.ndarray:
    arrays = {name: value.detach().numpy() for name, value in projection.state_dict().items()}
    return contrast.bcl_projection(rows.detach().numpy(), arrays)


@pytest.mark.parametrize("head", [nn.Linear(D, K).double(), CosineHead(D, K).double()], ids=["linear", "cosine"])
def test_bcl_matches_reference_with_prototypes_from_the_classifier(head):
    logits, target, features = batch(views=3)
    criterion = build_bcl(head, alpha=1.5, beta=0.4)
    embeddings = projected(criterion.projection, features)[10:]  # BatchNorm sees all views, the contrast two of them
    prototypes = projected(criterion.prototype_projection, head.weight)
    adjusted = logits[:10] + torch.tensor(PRIOR).log()
    expected = 1.5 * F.cross_entropy(adjusted, target[:10]).item()
    expected += 0.4 * np.mean(contrast.bcl(embeddings, target[10:].tolist(), prototypes, 0.1))
    assert criterion(logits, target, features).item() == pytest.approx(expected, rel=1e-6)


def test_bcl_has_no_prototypes_of_its_own():
    logits, target, features = batch(views=3)
    head = nn.Linear(D, K).double()
    criterion = build_bcl(head)
    criterion(logits, target, features).backward()
    assert head.weight.grad.abs().sum() > 0
    assert not any(parameter is head.weight for parameter in criterion.parameters())
    assert not any(len(value) == K for value in criterion.state_dict().values() if value.dim())


def test_bcl_follows_the_classifier_also_when_copied():
    logits, target, features = batch(views=3)
    model = nn.Sequential(nn.Linear(D, K)).double()
    criterion = build_bcl(model[0])
    alone, (copied, together) = copy.deepcopy(criterion), copy.deepcopy((model, criterion))
    before = alone(logits, target, features)
    with torch.no_grad():
        model[0].weight.add_(torch.randn_like(model[0].weight))
    assert alone(logits, target, features) != before
    assert together(logits, target, features) == before
    together(logits, target, features).backward()
    assert copied[0].weight.grad is not None
    assert model[0].weight.grad is None


def test_bcl_asks_for_the_classifier():
    logits, target, features = batch(views=3)
    criterion = BCLLoss(K, D, class_counts=COUNTS).double()
    with pytest.raises(InputError, match=r"bind_head\(model.head\)"):
        criterion(logits, target, features)
    for wrong in (nn.Linear(D, K + 1), nn.Linear(D + 1, K), nn.ReLU()):
        with pytest.raises(InputError, match=rf"shape \({K}, {D}\)"):
            criterion.bind_head(wrong)


def test_bcl_with_another_classification_term():
    logits, target, features = batch(views=3)
    cosines = torch.tanh(logits)
    criterion = build_bcl(alpha=1.0, beta=0.0, base="dbm", base_params={"variant": "bs"})
    expected = DBMLoss(K, variant="bs", class_counts=COUNTS)(cosines[:10], target[:10])
    assert criterion(cosines, target, features).item() == pytest.approx(expected.item())
    assert "cosine_head" in criterion.needs


def test_a_stateful_base_is_frozen_with_its_owner():
    logits, target, features = batch()
    criterion = build_bcl(views=1, base="mr2")
    assert isinstance(criterion.base, MR2Loss)
    before = {key: value.clone() for key, value in criterion.base.state_dict().items()}
    with criterion.frozen():
        criterion(logits, target, features)
    assert all(torch.equal(value, before[key]) for key, value in criterion.base.state_dict().items())
    criterion(logits, target, features)
    assert not all(torch.equal(value, before[key]) for key, value in criterion.base.state_dict().items())


# --- DRO-LT -----------------------------------------------------------------------------------------------------------


def test_robust_contrast_matches_reference():
    _, target, features = batch()
    generator = torch.Generator().manual_seed(3)
    centroids = torch.randn(K, D, generator=generator, dtype=torch.float64)
    epsilon = torch.rand(K, generator=generator, dtype=torch.float64)
    expected = contrast.dro_lt(features.numpy(), target.tolist(), centroids.numpy(), epsilon.tolist(), 0.7)
    assert robust_centroid_contrast(features, target, centroids, epsilon, temperature=0.7).item() == pytest.approx(
        expected
    )


def test_robust_contrast_as_the_elm_paper_writes_it():
    logits, target, features = batch()
    criterion = DROLTLoss(K, D, rule="count", form="elm", weight=0.3, class_counts=COUNTS).double()
    value = criterion(logits, target, features).item()
    centroids, epsilon = criterion.centroids.mean.numpy(), criterion.epsilon.tolist()
    expected = contrast.elm_dro_lt(features.numpy(), target.tolist(), centroids, epsilon)
    assert value == pytest.approx(F.cross_entropy(logits, target).item() + 0.3 * expected, rel=1e-6)
    assert expected != pytest.approx(
        contrast.dro_lt(features.numpy(), target.tolist(), centroids, epsilon, 1.0), rel=0.01
    )


@pytest.mark.parametrize("form", ["dro_lt", "elm"])
def test_robust_contrast_of_one_sample_is_zero(form):
    value = robust_centroid_contrast(torch.randn(1, D), torch.tensor([2]), torch.zeros(K, D), torch.ones(K), form=form)
    assert value.item() == 0.0


def test_larger_radii_are_harder():
    _, target, features = batch()
    losses = [
        robust_centroid_contrast(features, target, torch.zeros(K, D), torch.full((K,), radius)).item()
        for radius in (0.0, 0.5, 1.0)
    ]
    assert losses == sorted(losses)
    assert losses[0] < losses[2]


def test_dro_lt_learns_its_radii_and_follows_the_centroids():
    logits, target, features = batch()
    criterion = DROLTLoss(K, D, weight=0.5, decay=0.75).double()
    criterion(logits, target, features).backward()
    assert criterion.epsilon.grad.abs().sum() > 0
    means = {k: features[target == k].mean(0) for k in set(target.tolist())}
    for k, mean in means.items():
        assert torch.allclose(criterion.centroids.mean[k], mean)
    criterion(logits, target, features + 4)
    for k, mean in means.items():
        assert torch.allclose(criterion.centroids.mean[k], mean + 1)


def test_dro_lt_centroids_of_a_pass_stay_for_the_epoch():
    logits, target, features = batch()
    criterion = DROLTLoss(K, D, centroids="epoch").double()
    criterion.start_epoch(0, lambda: iter([LossBatch(logits, target, features, torch.arange(10))]))
    before = criterion.centroids.mean.clone()
    criterion(logits, target, features + 4)
    assert torch.equal(criterion.centroids.mean, before)
    assert torch.allclose(before[target[0]], features[target == target[0]].mean(0))


def test_dro_lt_radii_from_counts():
    criterion = DROLTLoss(K, D, rule="count", epsilon=2.0, class_counts=COUNTS)
    assert criterion.epsilon.tolist() == pytest.approx([2 / math.sqrt(n / 16) for n in COUNTS])
    assert not list(criterion.parameters())


# --- GML --------------------------------------------------------------------------------------------------------------


class Teacher(nn.Module):
    """Returns what it is shown: inputs are the teacher's features."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(D, K).double()

    def forward(self, inputs):
        return self.head(inputs), inputs


def build_gml(**params):
    torch.manual_seed(0)
    criterion = GMLLoss(K, D, slots=30, class_counts=COUNTS, **params).double()
    criterion.bind_teacher(Teacher())
    return criterion


def test_queue_sizes_add_up_and_have_a_floor():
    sizes = queue_sizes(torch.tensor(COUNTS, dtype=torch.float32), 64, 3)
    assert sizes.sum() == 64
    assert sizes.min() >= 3
    assert sizes.argmax() == 0


def test_class_log_mean_exp_matches_reference():
    query, keys = sphere(4), sphere(7, seed=2)
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 4])
    usable = torch.rand(4, 7, generator=torch.Generator().manual_seed(0)) > 0.3
    scores = class_log_mean_exp(query @ keys.T / 0.1, labels, usable, K)
    for i in range(4):
        expected = contrast.gml_scores(query[i].numpy(), keys.numpy(), labels.tolist(), usable[i].tolist(), 0.1, K)
        present = ~np.isnan(expected)
        assert scores[i].numpy()[present] == pytest.approx(expected[present])
        assert (scores[i].numpy()[~present] < -1000).all()


def test_gml_contrast_matches_reference():
    logits, target, features = batch()
    criterion = build_gml(alpha=0.0)
    criterion.observe(features)
    criterion(torch.tanh(logits), target, features, torch.arange(10))
    queue = criterion.queue
    keys = F.normalize(criterion.key_projection(queue.keys[queue.filled]), dim=1).detach().numpy()
    queries = F.normalize(criterion.query_projection(features), dim=1).detach().numpy()
    expected = contrast.gml_contrast(queries, target.tolist(), keys, queue.labels[queue.filled].tolist(), 0.1, PRIOR)
    assert criterion.last["contrast"].item() == pytest.approx(expected, rel=1e-6)


def test_gml_without_contrast_and_teacher_terms_is_balanced_softmax_on_scaled_cosines():
    logits, target, features = batch()
    cosines = torch.tanh(logits)
    criterion = build_gml(alpha=0.0, beta=0.0)
    criterion.observe(features)
    expected = BalancedSoftmaxLoss(K, class_counts=COUNTS)(30 * cosines, target)
    assert criterion(cosines, target, features, torch.arange(10)).item() == pytest.approx(expected.item())


def test_gml_teacher_is_frozen_and_no_part_of_the_state():
    criterion = build_gml()
    assert not any("teacher" in key for key in criterion.state_dict())
    assert not any(p is q for p in criterion.parameters() for q in criterion._teacher[0].parameters())
    assert not any(p.requires_grad for p in criterion._teacher[0].parameters())


def test_gml_distils_to_a_student_that_says_the_same():
    _, target, features = batch()
    criterion = build_gml(alpha=1.0, beta=0.0)
    criterion._teacher[0].head = CosineHead(D, K).double()
    cosines = criterion._teacher[0](features)[0].double()
    criterion.observe(features)
    expected = BalancedSoftmaxLoss(K, class_counts=COUNTS)(30 * cosines, target)
    assert criterion(cosines, target, features, torch.arange(10)).item() == pytest.approx(expected.item(), abs=1e-5)


def test_gml_queue_keeps_the_newest_keys_of_each_class():
    criterion = build_gml(least=2)
    size = int(criterion.queue.sizes[4])
    keys = torch.arange(size + 3.0)[:, None].expand(-1, D).double()
    target = torch.full((len(keys),), 4)
    for rows in torch.arange(len(keys)).split(2):
        criterion.queue.store(keys[rows], target[rows], rows)
    of_class = criterion.queue.labels == 4
    assert sorted(criterion.queue.key_index[of_class].tolist()) == list(range(3, size + 3))
    at_once = build_gml(least=2)
    at_once.queue.store(keys, target, torch.arange(len(keys)))
    assert sorted(at_once.queue.key_index[of_class].tolist()) == list(range(3, size + 3))
    assert not criterion.queue.filled[~of_class].any()


def test_only_the_temperature_learns_from_the_term_without_own_keys():
    logits, target, features = batch()
    features.requires_grad_()
    criterion = build_gml()
    criterion.observe(features.detach())
    criterion(torch.tanh(logits), target, features, torch.arange(10))
    prior = torch.tensor(PRIOR).log()
    _, tempered = criterion._contrasts(features, target, torch.arange(10), prior)
    tempered.backward()
    assert criterion.log_temperature.grad.abs() > 0
    assert features.grad is None or not features.grad.any()


def test_gml_asks_for_the_teacher():
    logits, target, features = batch()
    call = (torch.tanh(logits), target, features, torch.arange(10))
    without = GMLLoss(K, D, slots=30, class_counts=COUNTS).double()
    with pytest.raises(InputError, match="bind_teacher"):
        without.observe(features)
    criterion = build_gml()
    with pytest.raises(InputError, match="observe"):
        criterion(*call)
    criterion.observe(features)
    criterion(*call)
    with criterion.frozen():
        criterion(*call)  # the second pass of SAM sees the same batch
    with pytest.raises(InputError, match="observe"):
        criterion(*call)  # a new step needs a new look
    assert torch.isfinite(criterion.eval()(*call))
    criterion.bind_teacher(nn.Linear(D, K).double())
    with pytest.raises(InputError, match="FeatureTap"):
        criterion.observe(features)


def test_gml_with_a_tapped_teacher():
    logits, target, features = batch()
    network = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, K)).double()
    criterion = GMLLoss(K, D, teacher_features=8, slots=30, class_counts=COUNTS).double()
    criterion.bind_teacher(FeatureTap(network))
    criterion.observe(features)
    loss = criterion(torch.tanh(logits), target, features, torch.arange(10))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in criterion.parameters())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SupConLoss(K, D)(torch.zeros(3, K), torch.zeros(3, dtype=torch.long), torch.zeros(3, D)), "views=2"),
        (lambda: BCLLoss(K, D), "class_counts"),
        (lambda: BCLLoss(K, D, base="balanced_softmaxx", class_counts=COUNTS), "balanced_softmax"),
        (lambda: SupConLoss(K, D, temperature=0.0), "temperature"),
        (lambda: DROLTLoss(K, D, rule="count"), "class_counts"),
        (lambda: DROLTLoss(K, D, rule="guess"), "rule"),
        (lambda: DROLTLoss(K, D, form="squared"), "form"),
        (lambda: DROLTLoss(K, D, epsilon=1e38), "epsilon"),
        (lambda: GMLLoss(K, D, slots=5, class_counts=COUNTS), "slots"),
    ],
)
def test_bad_input_is_named(build, words):
    with pytest.raises(InputError, match=words):
        build()


def test_a_learned_radius_may_start_at_a_whole_number():
    assert torch.equal(DROLTLoss(K, D, epsilon=2).epsilon, torch.full((K,), 2.0))
