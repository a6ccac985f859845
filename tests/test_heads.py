"""CosineHead and FeatureTap over real model families (random weights, small configurations)."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from classgap.checks import InputError
from classgap.heads import CosineHead, FeatureTap, replace_head

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
TOKENS = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])


def _timm(name: str) -> tuple[nn.Module, dict[str, Any]]:
    timm = pytest.importorskip("timm")
    return timm.create_model(name, num_classes=5), {"x": IMAGES}


def _torchvision(name: str) -> tuple[nn.Module, dict[str, Any]]:
    models = pytest.importorskip("torchvision").models
    return models.get_model(name, num_classes=5), {"x": IMAGES}


def _transformer(name: str) -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    tokens = {"input_ids": TOKENS, "attention_mask": (TOKENS > 0).long()}
    small = {"vocab_size": 30, "num_labels": 5, "pad_token_id": 0}
    if name == "bert":
        layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        return transformers.BertForSequenceClassification(transformers.BertConfig(**layers, **small)), tokens
    if name == "roberta":  # its head is a small network: dense, then out_proj
        layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**layers, **small)), tokens
    if name == "gpt2":  # classifies every token and pools afterwards
        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, bos_token_id=1, eos_token_id=1, **small)
        return transformers.GPT2ForSequenceClassification(config), tokens
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=64, num_labels=5
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": IMAGES}


CASES = [
    *[(_timm, n) for n in ("resnet10t", "mobilenetv3_small_050", "test_vit", "test_convnext")],
    *[(_torchvision, n) for n in ("resnet18", "mobilenet_v3_small", "squeezenet1_0")],
    *[(_transformer, n) for n in ("bert", "roberta", "gpt2", "vit")],
]


@pytest.mark.parametrize(("family", "name"), CASES, ids=[n for _, n in CASES])
def test_features_are_what_the_head_was_fed(family: Any, name: str) -> None:
    model, inputs = family(name)
    model.eval()
    if name == "squeezenet1_0":  # its head is a convolution: nothing to find
        for layer, what in ((None, "no linear layer"), ("classifier.1", "is a convolution")):
            with pytest.raises(InputError, match=rf"{what}.* end the model with .*nn.Linear"):
                FeatureTap(model, layer)
        return
    keys = list(model.state_dict())
    plain = model(**inputs)
    tap = FeatureTap(model).eval()
    logits, features = tap(**inputs)
    torch.testing.assert_close(logits, getattr(plain, "logits", plain))
    torch.testing.assert_close(tap.head(features), logits)
    assert list(model.state_dict()) == keys
    assert list(tap.state_dict()) == keys


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_weights_travel_between_tap_and_plain_model() -> None:
    saved_through_tap = FeatureTap(_net()).state_dict()
    plain = _net()
    plain.load_state_dict(saved_through_tap)
    tap = FeatureTap(_net())
    tap.load_state_dict(plain.state_dict())
    for key, value in plain.state_dict().items():
        assert torch.equal(tap.state_dict()[key], value)


def test_calling_the_plain_model_keeps_nothing_alive() -> None:
    model = _net()
    tap = FeatureTap(model)
    model(torch.randn(2, 4))
    assert tap._calls is None


def test_copy_taps_its_own_model() -> None:
    tap = FeatureTap(_net()).eval()
    other = copy.deepcopy(tap)
    nn.init.zeros_(other.head.weight)
    x = torch.randn(2, 4)
    logits, features = other(x)
    torch.testing.assert_close(logits, other.head(features))
    assert not torch.equal(tap(x)[0], logits)


def test_compiles_without_graph_breaks() -> None:
    tap = FeatureTap(_net()).eval()
    x = torch.randn(2, 4)
    compiled = torch.compile(tap, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), tap(x))


@pytest.mark.bf16
def test_autocast_reaches_the_model() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = FeatureTap(_net()).eval()(torch.randn(2, 4))
    assert logits.dtype == features.dtype == torch.bfloat16


def test_inside_and_around_distributed_data_parallel(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x, model = torch.randn(6, 4), _net()
        outside = nn.parallel.DistributedDataParallel(FeatureTap(model))
        logits, features = outside(x)
        torch.testing.assert_close(model[3](features), logits)
        logits.sum().backward()
        assert list(outside.state_dict()) == [f"module.{k}" for k in model.state_dict()]
        outside.load_state_dict(outside.state_dict())
        tap = FeatureTap(nn.parallel.DistributedDataParallel(_net()), layer="3")
        assert tap.layer == "module.3"
        assert tap(x)[1].shape == (6, 8)
    finally:
        torch.distributed.destroy_process_group()


def test_output_with_logits_attribute() -> None:
    output = namedtuple("output", ["logits", "aux"])

    class WithAux(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return output(self.fc(input=x), None)

    assert FeatureTap(WithAux())(torch.ones(2, 4))[1].shape == (2, 4)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.distilled = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def test_errors_name_the_way_out() -> None:
    with pytest.raises(InputError, match=r"several candidates.*head, distilled.*layer="):
        FeatureTap(TwoHeads())
    assert FeatureTap(TwoHeads(), layer="head")(torch.ones(1, 4))[0].shape == (1, 3)
    with pytest.raises(InputError, match=r"'distilled' did not run"):
        FeatureTap(TwoHeads(), layer="distilled")(torch.ones(1, 4))
    with pytest.raises(InputError, match=r"did you mean 'head'"):
        FeatureTap(TwoHeads(), layer="heat")
    shared = nn.Linear(3, 3)
    with pytest.raises(InputError, match="ran 2 times"):
        FeatureTap(nn.Sequential(shared, shared))(torch.ones(1, 3))
    with pytest.raises(InputError, match="gives 8 values but the model returned 3"):
        FeatureTap(_net(), layer="0").eval()(torch.ones(1, 4))

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self.fc(x)]

    with pytest.raises(InputError, match="must return logits"):
        FeatureTap(Odd())(torch.ones(1, 4))


def test_cosine_head_returns_cosines() -> None:
    torch.manual_seed(0)
    head = CosineHead(6, 4)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(4))
    x = torch.randn(5, 6)
    expected = torch.nn.functional.cosine_similarity(x[:, None], head.weight[None], dim=-1)
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head(7 * x), expected)
    head.weight.data *= 3
    torch.testing.assert_close(head(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(x.bfloat16()).dtype == torch.float32
    assert "out_features=4" in repr(head)


@pytest.mark.parametrize("scale", [None, 16, "learned"])
def test_a_cosine_head_is_linear_on_unit_vectors(scale: object) -> None:
    torch.manual_seed(0)
    head, x = CosineHead(6, 4, scale=scale), torch.randn(5, 6)  # type: ignore[arg-type]
    cosines = torch.nn.functional.cosine_similarity(x[:, None], head.weight[None], dim=-1)
    by = {None: 1.0, 16: 16.0, "learned": 1 / 0.07}[scale]
    torch.testing.assert_close(head(x), by * cosines)
    torch.testing.assert_close(head.unit(x) @ head.as_linear().T, head(x).detach())
    torch.testing.assert_close(head.double()(x.double()), by * cosines.double(), rtol=1e-5, atol=1e-5)
    assert (scale is None) == (head.scale is None)
    assert set(head.state_dict()) == {"weight", *{None: (), 16: ("fixed_scale",), "learned": ("logit_scale",)}[scale]}
    other = CosineHead(6, 4, scale=scale if scale != 16 else 3)  # type: ignore[arg-type]
    other.double().load_state_dict(head.state_dict())
    torch.testing.assert_close(other(x.double()), head(x.double()))  # a file of weights holds the scale
    assert ("scale=1" in repr(head)) == (scale is not None)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), True, "lerned"])
def test_a_scale_is_a_positive_number_or_learned(bad: object) -> None:
    with pytest.raises(InputError, match="scale"):
        CosineHead(6, 4, scale=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "limit"), [(9.0, 100.0), (-2.0, 1.0)])
def test_a_learned_scale_is_clipped_and_can_come_back(value: float, limit: float) -> None:
    head, x = CosineHead(6, 4, scale="learned"), torch.randn(5, 6)
    assert head.logit_scale is not None
    with torch.no_grad():
        head.logit_scale.fill_(value)
    torch.testing.assert_close(head.eval()(x), limit * head.unit(x) @ torch.nn.functional.normalize(head.weight).T)
    assert head.logit_scale.item() == value  # evaluation writes nothing
    head.train()(x)[:, 0].sum().backward()
    assert head.logit_scale.item() == pytest.approx(np.log(limit), abs=1e-6)
    assert head.logit_scale.grad is not None
    assert abs(head.logit_scale.grad.item()) > 1e-3
    head.reset_parameters()
    assert head.logit_scale.exp().item() == pytest.approx(1 / 0.07)


@pytest.mark.parametrize("scale", [None, "learned"])
def test_features_behind_a_cosine_head_are_unit_vectors(scale: object) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), CosineHead(8, 3, scale=scale))  # type: ignore[arg-type]
    x = torch.randn(6, 4)
    before = model[:2](x)
    logits, features = FeatureTap(model)(x)
    torch.testing.assert_close(features, torch.nn.functional.normalize(before, dim=1))
    torch.testing.assert_close(features @ model[2].as_linear().T, logits)
    features[:, 0].sum().backward()  # a loss on them trains the network, along the sphere
    grad = model[0].weight.grad
    assert grad is not None
    assert grad.abs().sum() > 0
    assert torch.equal(FeatureTap(model, unit=False)(x)[1], before)
    inside = FeatureTap(nn.ModuleDict({"module": model})["module"])
    assert torch.equal(inside(x)[1], features)


@pytest.mark.bf16
def test_unit_vectors_are_single_precision_under_autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), CosineHead(8, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert FeatureTap(model)(torch.randn(6, 4))[1].dtype == torch.float32


def test_a_replaced_head_is_tapped_like_any_other() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(6, 4)
    assert (FeatureTap(model)(x)[1].norm(dim=1) - 1).abs().max() > 0.1
    replace_head(model, CosineHead(8, 3, scale="learned"))
    torch.testing.assert_close(FeatureTap(model)(x)[1].norm(dim=1), torch.ones(6))


def test_a_tap_shows_the_signature_and_attributes_of_its_model() -> None:
    model, inputs = _transformer("bert")
    tap = FeatureTap(model)
    assert list(inspect.signature(tap.forward).parameters) == list(inspect.signature(model.forward).parameters)
    assert tap.config is model.config
    assert tap.main_input_name == "input_ids"
    assert not hasattr(tap, "no_such_attribute")
    with pytest.raises(AttributeError, match="no_such_attribute"):
        tap.no_such_attribute  # noqa: B018
    for other in (copy.deepcopy(tap), pickle.loads(pickle.dumps(tap))):
        assert other.config is not model.config
        assert other.forward.__self__ is other
        torch.testing.assert_close(other.eval()(**inputs)[0], tap.eval()(**inputs)[0])
    assert "input_ids" in inspect.signature(copy.deepcopy(tap).forward).parameters


def test_a_tap_listens_while_somebody_else_calls_the_model() -> None:
    model = _net().eval()
    tap, x = FeatureTap(model), torch.randn(2, 4)
    with tap.listening() as calls:
        logits = model(x)
    model(x)  # not recorded
    torch.testing.assert_close(model[3](tap.features_of(calls, logits)), logits)
    with pytest.raises(InputError, match="did not run"):
        tap.features_of([], logits)


class _TwoHeads(nn.Module):
    """Logits of ``head``; a layer with as many outputs runs after it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(4, 6)
        self.aux = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.extra = self.aux(self.other(x))
        return self.head(self.body(x))


class _MeanOfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).mean(1)


def test_features_that_are_not_behind_the_logits_are_refused():
    x = torch.randn(5, 4)
    with pytest.raises(InputError, match="not the output of layer 'aux', and head may be the head as well"):
        FeatureTap(_TwoHeads())(x)
    model = _TwoHeads()
    assert torch.equal(FeatureTap(model, "head")(x)[1], model.body(x))
    with pytest.raises(InputError, match="the logits are those of none of them"):
        FeatureTap(_MeanOfTokens())(torch.randn(5, 7, 4))
    chain = nn.Sequential(
        nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)
    )  # two layers with as many outputs, one after the other
    assert FeatureTap(chain)(x)[1].shape == (5, 3)
