"""SAM and adaptive SAM: what the two passes do to weights, statistics, scalers, clipping and checkpoints."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from classgap.checks import InputError
from classgap.losses import CenterLoss, CrossEntropyLoss
from classgap.optim import SAM, AdaptiveSAM

INPUTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.arange(16) % 3


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def loss_of(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(INPUTS), TARGET)


def sam_step(model: nn.Module, optimizer: SAM, *modules: nn.Module, clip: float | None = None) -> None:
    loss_of(model).backward()
    with optimizer.perturbed(model, *modules):
        loss_of(model).backward()
    if clip is not None:
        clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", [SAM, AdaptiveSAM])
@pytest.mark.parametrize("base", [sgd, lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)])
def test_radius_zero_is_the_base_optimiser_bit_for_bit(make, base):
    plain, sharp = network(), network()
    optimizer, wrapped = base(plain), make(base(sharp), rho=0.0)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(plain).backward()
        optimizer.step()
        sam_step(sharp, wrapped)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), sharp.state_dict().values(), strict=True))


@pytest.mark.parametrize(("make", "rho"), [(SAM, 0.3), (AdaptiveSAM, 0.8)])
def test_step_matches_the_paper(make, rho):
    """A linear model without normalisation, with the perturbation written out."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    w, b = (p.detach().double().numpy().copy() for p in model.parameters())
    optimizer = make(torch.optim.SGD(model.parameters(), lr=0.5), rho=rho)
    sam_step(model, optimizer)

    def gradient(w, b):
        logits = INPUTS.numpy() @ w.T + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        p = p / p.sum(1, keepdims=True) - np.eye(3)[TARGET.numpy()]
        return p.T @ INPUTS.numpy() / 16, p.mean(0)

    gw, gb = gradient(w, b)
    sw, sb = (1, 1) if make is SAM else (np.abs(w), np.abs(b))
    norm = np.sqrt(np.sum((sw * gw) ** 2) + np.sum((sb * gb) ** 2))
    hw, hb = gradient(w + rho * sw**2 * gw / norm, b + rho * sb**2 * gb / norm)
    assert model.weight.detach().numpy() == pytest.approx(w - 0.5 * hw, abs=1e-6)
    assert model.bias.detach().numpy() == pytest.approx(b - 0.5 * hb, abs=1e-6)


def test_perturbation_has_length_rho_and_ends_exactly():
    model = network()
    optimizer = SAM(sgd(model), rho=0.25)
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model).backward()
    first = loss_of(model).item()
    with optimizer.perturbed(model):
        assert all(p.grad is None for p in model.parameters())
        moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
        assert moved.norm().item() == pytest.approx(0.25, rel=1e-5)
        assert loss_of(model).item() > first
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_weights_return_after_an_error_in_the_second_pass():
    model = network()
    optimizer = SAM(sgd(model))
    before = copy.deepcopy(model.state_dict())
    loss_of(model).backward()
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def second_pass():
        with optimizer.perturbed(model):
            loss_of(model)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        second_pass()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not torch.equal(before["1.running_mean"], state["1.running_mean"])  # the first pass did count


def test_running_statistics_belong_to_the_first_pass():
    sharp, plain = network(), network()
    sam_step(sharp, SAM(sgd(sharp), rho=1.0))
    loss_of(plain)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(sharp[1], name), getattr(plain[1], name))


def test_loss_state_belongs_to_the_first_pass():
    model, criterion, single = nn.Linear(4, 3), CenterLoss(3, 4), CenterLoss(3, 4)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    criterion(model(INPUTS), TARGET, INPUTS).backward()
    with optimizer.perturbed(model, criterion):
        assert not criterion.updating
        criterion(model(INPUTS), TARGET, INPUTS + 1).backward()
    assert criterion.updating
    single(model(INPUTS), TARGET, INPUTS)
    assert torch.equal(criterion.centers.mean, single.centers.mean)


def test_clipping_acts_on_the_gradient_that_is_used():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    sam_step(model, SAM(torch.optim.SGD(model.parameters(), lr=1.0), rho=0.5), clip=0.01)
    moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("make", [SAM, AdaptiveSAM])
def test_gradient_scaler_changes_nothing(make):
    plain, scaled = network(), network()
    optimizer, wrapped = make(sgd(plain), rho=0.5), make(sgd(scaled), rho=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(3):
        sam_step(plain, optimizer, clip=0.5)
        scaler.scale(loss_of(scaled)).backward()
        with wrapped.perturbed(scaled):
            scaler.scale(loss_of(scaled)).backward()
        scaler.unscale_(wrapped)
        clip_grad_norm_(scaled.parameters(), 0.5)
        scaler.step(wrapped)
        scaler.update()
        wrapped.zero_grad()
    for p, q in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


def test_overflow_is_skipped_and_lowers_the_scale():
    model = network()
    before = copy.deepcopy(dict(model.named_parameters()))
    optimizer = SAM(sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(loss_of(model) * torch.inf).backward()
    with optimizer.perturbed(model):
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        scaler.scale(loss_of(model) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_schedulers_and_checkpoints_reach_the_base():
    model = network()
    optimizer = SAM(sgd(model))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    sam_step(model, optimizer)
    scheduler.step()
    assert optimizer.base.param_groups[0]["lr"] == 0.05
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    sam_step(model, optimizer)

    again = network(seed=9)
    again.load_state_dict(weights)
    resumed = SAM(sgd(again))
    resumed.load_state_dict(state)
    assert resumed.param_groups is resumed.base.param_groups
    sam_step(again, resumed)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


def test_works_through_fabric():
    lightning_fabric = pytest.importorskip("lightning_fabric")
    plain, wrapped = network(), network()
    reference = SAM(sgd(plain), rho=0.3)
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(wrapped, SAM(sgd(wrapped), rho=0.3))
    for _ in range(2):
        sam_step(plain, reference)
        optimizer.zero_grad()
        fabric.backward(loss_of(model))
        with optimizer.perturbed(model):
            fabric.backward(loss_of(model))
        optimizer.step()
    assert all(
        torch.equal(p, q) for p, q in zip(plain.state_dict().values(), wrapped.state_dict().values(), strict=True)
    )
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert optimizer.param_groups is optimizer.base.param_groups


def test_a_copy_is_whole():
    model = network()
    twin, optimizer = copy.deepcopy((model, SAM(sgd(model), rho=0.3)))
    sam_step(twin, optimizer)
    sam_step(model, reference := SAM(sgd(model), rho=0.3))
    assert repr(optimizer) == repr(reference)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_parameters_without_gradient_stay():
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    with optimizer.perturbed(model):  # no first pass at all: nowhere to climb
        F.cross_entropy(model[0](INPUTS), TARGET).backward()
    optimizer.step()
    assert model[1].weight.grad is None


def test_accumulated_gradients_are_those_of_the_whole_batch():
    whole, pieces = (nn.Linear(4, 3) for _ in range(2))
    pieces.load_state_dict(whole.state_dict())
    sam_step(whole, SAM(sgd(whole), rho=0.4))
    optimizer = SAM(sgd(pieces), rho=0.4)

    def accumulate():
        for rows in torch.arange(16).split(4):
            (F.cross_entropy(pieces(INPUTS[rows]), TARGET[rows]) / 4).backward()

    accumulate()
    with optimizer.perturbed(pieces):
        accumulate()
    optimizer.step()
    assert torch.allclose(whole.weight, pieces.weight, atol=1e-6)


def test_wrong_use_is_named():
    model = network()
    with pytest.raises(InputError, match="perturbed"):
        SAM(sgd(model)).step(lambda: 0.0)
    with pytest.raises(InputError, match="base"):
        SAM(model.parameters())
    with pytest.raises(InputError, match="rho"):
        SAM(sgd(model), rho=-1.0)


def test_plain_torch_criteria_are_accepted():
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    sam_step(model, SAM(sgd(model)), nn.CrossEntropyLoss(), CrossEntropyLoss(3))
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_groups_stay_shared_when_the_wrapped_optimiser_loads_a_checkpoint():
    layer = nn.Linear(2, 2)
    base = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    for sam in (SAM(base), copy.deepcopy(SAM(base))):
        sam.base.load_state_dict(copy.deepcopy(sam.base.state_dict()))
        schedule = torch.optim.lr_scheduler.StepLR(sam, 1, 0.5)
        sam.step()
        schedule.step()
        assert sam.base.param_groups[0]["lr"] == sam.param_groups[0]["lr"] == 0.05


def test_a_closure_that_does_nothing_is_that_of_lightning():
    def do_nothing_closure() -> None:
        return

    sam = SAM(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    sam.step(do_nothing_closure)
    with pytest.raises(InputError, match="SAM takes no closure"):
        sam.step(lambda: 0.0)
