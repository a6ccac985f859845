"""The last layer: a cosine classifier, and a tap that reads the features fed into any model's head."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgap.batchstats.backend import is_mapped
from classgap.checks import InputError, did_you_mean, number, one_of

HeadScale = float | Literal["learned"]
START_SCALE = 1 / 0.07  # of a learned scale, as in CLIP
LIMITS = (0.0, math.log(100))  # of its logarithm, as in OpenCLIP


class CosineHead(nn.Module):
    r"""Bias-free linear layer with both sides normalised, times a scale of its own if it is given one.

    .. math:: z_{ik} = s\,\cos(\phi_i, w_k)

    Cosines lie in :math:`[-1, 1]`: without a scale a softmax over :math:`K` of them cannot come close to 1, and cross-entropy
    not below :math:`\ln(1 + (K-1)e^{-2})`, 2.67 for 100 classes. Losses with ``cosine_head`` in their ``needs`` (LDAM, DBM,
    CosFace, ArcFace, SphereFace, GML) have a scale of their own and want raw cosines; all others want a scale here.

    The representation is the unit vector :math:`\phi/\|\phi\|`; that is what :class:`FeatureTap` hands to a loss. On it

    - MR² with ``p=2`` gives every class the same margin; use ``p=3``;
    - distances are at most 2, so weights, slacks and margins tuned for a linear head do not transfer (center, range, ELM, DRO-LT,
      L-GM, the representation margin of MR²), and ``squeeze`` of the features is a constant;
    - spread-out compares directions, so its result is the same;
    - losses with a projection of their own (SupCon, BCL, GML) declare ``encoder_features`` and get the features before they are
      normalised, as in the code of their authors.

    Args:
        scale: ``None`` returns raw cosines. A number is a fixed :math:`s`. ``"learned"`` is CLIP's ``logit_scale``:
            :math:`s = e^t`, with a parameter :math:`t` that starts at :math:`\ln(1/0.07)` and is clipped to
            :math:`[0, \ln 100]` whenever the layer is called in training mode. Do not decay :math:`t` (see
            :func:`learned_scales`).
    Attributes:
        weight: :math:`(K, d)`; its rows start uniform in :math:`(-1, 1)`, renormalised to unit length. Lengths have no effect.
        logit_scale: :math:`t`, or ``None``.
    Shape:
        input :math:`(*, d)`, output :math:`(*, K)`, at least float32 also under autocast.
    Example:
        >>> head = CosineHead(4, 3)
        >>> head(torch.ones(2, 4)).shape, head.scale
        (torch.Size([2, 3]), None)
        >>> CosineHead(4, 3, scale="learned").scale
        tensor(14.2857, grad_fn=<ExpBackward0>)

    Reference: Radford et al., *Learning transferable visual models from natural language supervision*, ICML 2021,
    arXiv:2103.00020, sec. 2.5, for the learned scale. Their code has the parameter and its start; the upper limit is in the
    paper only, and OpenCLIP (arXiv:2212.07143) has both limits in its training loop.
    """

    logit_scale: nn.Parameter | None
    fixed_scale: Tensor | None

    def __init__(self, in_features: int, out_features: int, *, scale: HeadScale | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.register_parameter("logit_scale", None)
        self.register_buffer("fixed_scale", None)
        if isinstance(scale, str):
            one_of("scale (if it is not a number)", scale, ("learned",))
            self.logit_scale = nn.Parameter(torch.empty(()))
        elif scale is not None:
            # A buffer, for logits depend on it: a file of weights says all there is to say about the network.
            self.fixed_scale = torch.tensor(float(number("scale", scale, low=0.0, open_low=True)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows anew, and put a learned scale back to its start."""
        with torch.no_grad():
            self.weight.uniform_(-1, 1)
            self.weight.copy_(F.normalize(self.weight, dim=1))
            if self.logit_scale is not None:
                self.logit_scale.fill_(math.log(START_SCALE))

    @property
    def scale(self) -> Tensor | None:
        """What cosines are multiplied by; ``None`` for raw cosines."""
        if self.logit_scale is not None:
            log_scale = _at_least_float32(self.logit_scale)
            value = log_scale.detach()
            # At a limit, clamp alone would have no gradient, and the scale would stay there for ever.
            return (log_scale + (value.clamp(*LIMITS) - value)).exp()
        return None if self.fixed_scale is None else _at_least_float32(self.fixed_scale)

    def unit(self, features: Tensor) -> Tensor:
        """Features of length 1, which is how this layer sees them; 0 stays 0."""
        # Half precision would quantise angles near 0 and π, where the margin losses live.
        with torch.autocast(features.device.type, enabled=False):
            return F.normalize(_at_least_float32(features), dim=-1)

    @torch.no_grad()
    def as_linear(self) -> Tensor:
        """Weight :math:`(K, d)` of the linear layer, without bias, that gives the same logits for :meth:`unit` features."""
        rows, scale = F.normalize(_at_least_float32(self.weight), dim=-1), self.scale
        return rows if scale is None else scale * rows

    def forward(self, features: Tensor) -> Tensor:
        """Cosine of every sample with every class, times the scale."""
        if self.logit_scale is not None and self.training:
            with torch.no_grad():  # what clipping after each step of the optimiser comes to
                self.logit_scale.clamp_(*LIMITS)
        unit = self.unit(features)
        with torch.autocast(features.device.type, enabled=False):
            cosines, scale = F.linear(unit, F.normalize(_at_least_float32(self.weight), dim=-1)), self.scale
            return cosines if scale is None else scale * cosines

    def extra_repr(self) -> str:
        """Sizes, as ``nn.Linear`` prints them, and the scale."""
        scale = "" if self.scale is None else f", scale={self.scale.item():.4g}"
        learned = "" if self.logit_scale is None else " (learned)"
        return f"in_features={self.in_features}, out_features={self.out_features}{scale}{learned}"


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def cosine_heads(model: nn.Module) -> list[CosineHead]:
    """All cosine heads of a model; several networks side by side have one each."""
    return [module for module in model.modules() if isinstance(module, CosineHead)]


def learned_scales(model: nn.Module) -> list[nn.Parameter]:
    """The learned scales of these: an optimiser should not decay them."""
    return [head.logit_scale for head in cosine_heads(model) if head.logit_scale is not None]


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every linear or cosine layer, and what says of itself that it ``is_head``, by name in order of registration."""
    return {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, (nn.Linear, CosineHead)) or getattr(m, "is_head", False)
    }


_AFTER_A_CONVOLUTION = (
    "Before a convolution there is no vector of features per sample; end the model with nn.AdaptiveAvgPool2d(1), nn.Flatten() "
    "and nn.Linear(channels, classes)."
)


def find_head(model: nn.Module, layer: str | None = None) -> tuple[str, nn.Module]:
    """Name and module of the layer that makes the logits: the one named, or the last linear layer.

    Models of timm say themselves which one it is. Two parallel heads of the same shape (distilled models) are an error
    that lists both, since no rule could tell which one the caller means.
    """
    modules = dict(model.named_modules())
    linears = linear_layers(model)
    maps = [module for module in modules.values() if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    if layer is not None:
        wrapped = f"module.{layer}"  # the model may sit inside DistributedDataParallel
        for name in (layer, wrapped):
            if modules.get(name) in maps:
                raise InputError(f"layer {layer!r} is a convolution. {_AFTER_A_CONVOLUTION}")
            if name in modules:
                return name, modules[name]
        raise InputError(did_you_mean(layer, linears or modules, what="layer"))
    if not linears:
        advice = _AFTER_A_CONVOLUTION if maps else "Name its last layer with layer='…'."
        raise InputError(f"{type(model).__name__} has no linear layer to tap. {advice}")
    get_classifier = getattr(model, "get_classifier", None)
    declared = get_classifier() if callable(get_classifier) else None
    for name, module in linears.items():
        if module is declared:
            return name, module
    name = list(linears)[-1]
    twins = _parallel_heads(modules, linears, name)
    if twins:
        raise InputError(
            f"{type(model).__name__} has several candidates for its last linear layer: {', '.join([*twins, name])}; "
            f"choose one with layer={name!r}"
        )
    return name, linears[name]


def _parallel_heads(modules: Mapping[str, nn.Module], linears: Mapping[str, nn.Module], name: str) -> list[str]:
    """Other linear layers of the same shape beside ``name``; inside ``nn.Sequential`` they are a chain, not rivals."""
    parent = name.rpartition(".")[0]
    if isinstance(modules[parent], nn.Sequential):
        return []
    shape = linears[name].weight.shape
    return [n for n, m in linears.items() if n != name and n.rpartition(".")[0] == parent and m.weight.shape == shape]


def replace_head(model: nn.Module, head: nn.Module) -> None:
    """Put ``head`` where the model's last linear layer is."""
    parent, _, child = find_head(model)[0].rpartition(".")
    setattr(model.get_submodule(parent), child, head)


class FeatureTap(nn.Module):
    """Call a classifier and get ``(logits, features)``; features are exactly the tensor fed into its last linear layer.

    Of a :class:`CosineHead` they are the unit vectors that are compared with the classes.

    Works on torchvision, timm, Hugging Face and plain models without touching them: ``state_dict`` of the model *and of
    the tap* have the model's own keys, so a checkpoint saved either way loads either way. Wrap first, then compile or
    distribute: ``torch.compile(FeatureTap(model))``, ``DistributedDataParallel(FeatureTap(model))``.

    ``forward`` has the parameters of the model's own ``forward``, and an attribute that the tap does not have is looked up in
    the model (``tap.config``, ``tap.num_classes``), so that tools which inspect the model still find what they look for.

    Token classifiers that pool after the head (GPT-like sequence classification) give the features of the pooled token.

    Args:
        model: Any classifier that returns logits, or an object with ``.logits``.
        layer: Name of the head, as in ``model.named_modules()``, where the last linear layer is not it.
        unit: ``False`` gives the features before a cosine head normalises them: for losses with ``encoder_features`` in their
            ``needs``, and their teachers. Nothing changes for other heads.
    Example:
        >>> tap = FeatureTap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        >>> logits, features = tap(torch.randn(5, 4))
        >>> logits.shape, features.shape
        (torch.Size([5, 3]), torch.Size([5, 8]))
    """

    def __init__(self, model: nn.Module, layer: str | None = None, *, unit: bool = True) -> None:
        super().__init__()
        self.model, self.unit = model, unit
        self.layer, head = find_head(model, layer)
        self._calls: list[tuple[Tensor, Tensor]] | None = None  # None: not recording
        self._gradients = True  # whether they were enabled when the head ran
        # Where no head was named, other layers with as many outputs, e.g. that of an auxiliary loss.
        named = layer is not None or callable(getattr(model, "get_classifier", None))
        self._rivals = [] if named else _as_wide(model, self.layer)
        head.register_forward_hook(self._listen, with_kwargs=True)
        self._register_state_dict_hook(_strip_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]
        # Hugging Face's Trainer drops every column of the data that the signature of forward does not name.
        self.forward = MethodType(_with_parameters_of(type(self).forward, model.forward), self)  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        """What the tap does not have, the model may have."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("model")  # absent while a copy is being made
            if model is None or not hasattr(model, name):
                raise
            return getattr(model, name)

    @property
    def head(self) -> nn.Module:
        """The tapped layer."""
        return self.model.get_submodule(self.layer)

    def _listen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if self._calls is not None:
            self._gradients = torch.is_grad_enabled()
            self._calls.append((args[0] if args else next(iter(kwargs.values())), output))

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Within this block, inputs and outputs of the head are recorded, whoever calls the model.

        For a trainer that calls the model itself: hand what was recorded and the logits to :meth:`features_of`.
        """
        calls = self._calls = []
        try:
            yield calls
        finally:
            self._calls = None

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Logits and the features behind them."""
        self._calls = []
        try:
            logits = logits_of(self.model(*args, **kwargs))
            calls = self._calls
        finally:
            self._calls = None
        return logits, self.features_of(calls, logits)

    def features_of(self, calls: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> Tensor:
        """The features :math:`(N, d)` behind these logits, from the calls that were recorded of the head."""
        if len(calls) != 1:
            ran = "did not run" if not calls else f"ran {len(calls)} times"
            raise InputError(
                f"layer {self.layer!r} {ran} in the forward pass, so its input is not the features; name the layer that "
                f"makes the logits with layer='…' (and tap the model before compiling it)"
            )
        features, output = calls[0]
        if output.shape[-1] != logits.shape[-1]:
            raise InputError(
                f"layer {self.layer!r} gives {output.shape[-1]} values but the model returned {logits.shape[-1]} "
                f"logits, so it is not the head; name it with layer='…' (linear: {', '.join(linear_layers(self.model))})"
            )
        if self._rivals and _can_be_read(logits) and not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            self._check_output(output.detach(), logits.detach())
        if logits.requires_grad and not self._gradients:
            raise InputError(
                f"layer {self.layer!r} ran without gradients inside activation checkpointing, so its features have none; use "
                'use_reentrant=False (gradient_checkpointing_kwargs={"use_reentrant": False} in Hugging Face\'s Trainer)'
            )
        if output.dim() > logits.dim():
            features = _pooled_token(features, output, logits)
        head = self.head
        return head.unit(features) if self.unit and isinstance(head, CosineHead) else features

    def _check_output(self, output: Tensor, logits: Tensor) -> None:
        """Refuse a layer whose output is not the logits where another layer may be the head; once is enough."""
        if output.shape == logits.shape and not torch.equal(output, logits):
            raise InputError(
                f"the logits are not the output of layer {self.layer!r}, and {', '.join(self._rivals)} may be the head as well; "
                "name the layer that makes the logits with layer='…'"
            )
        self._rivals = []


def _can_be_read(tensor: Tensor) -> bool:
    """Whether a decision may depend on the values: not while compiling, and not under :func:`torch.func.vmap`."""
    return not torch.compiler.is_compiling() and not is_mapped(tensor)


def _as_wide(model: nn.Module, layer: str) -> list[str]:
    width = getattr(model.get_submodule(layer), "out_features", None)
    others = (name for name in linear_layers(model) if name != layer)
    return [name for name in others if width is not None and model.get_submodule(name).out_features == width]


def _with_parameters_of(method: Callable[..., Any], other: Callable[..., Any]) -> FunctionType:
    """A copy of ``method`` that shows the parameters of the bound method ``other``, where these can be told."""
    source = cast("FunctionType", method)
    copy = FunctionType(source.__code__, source.__globals__, source.__name__, source.__defaults__, source.__closure__)
    copy.__doc__ = source.__doc__
    with contextlib.suppress(TypeError, ValueError):  # a scripted model has a compiled forward
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        shown = inspect.Signature([own, *inspect.signature(other).parameters.values()])
        copy.__signature__ = shown  # type: ignore[attr-defined]
    return copy


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a classifier returns."""
    if not isinstance(output, Tensor):
        output = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise InputError(f"the model must return logits or an object with .logits, got {type(output).__name__}")
    return output


def _pooled_token(features: Tensor, output: Tensor, logits: Tensor) -> Tensor:
    """Features (N, T, d) → (N, d): the token whose head output became the logits."""
    found = (output.to(logits.dtype) == logits.unsqueeze(1)).all(-1)
    if _can_be_read(logits) and not bool(found.any(1).all()):
        raise InputError(
            "the head runs on every token and the logits are those of none of them (a mean, say), so there is no one feature "
            "vector behind them; average the tokens before the head"
        )
    position = found.int().argmax(1)
    return features[torch.arange(len(features), device=features.device), position]


# The tap must be invisible in checkpoints, or weights saved through it would not load into the plain model.
def _strip_prefix(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    for key in [k for k in state if k.startswith(f"{prefix}model.")]:
        state[prefix + key[len(prefix) + len("model.") :]] = state.pop(key)


def _add_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [k for k in state if k.startswith(prefix)]:
        state[f"{prefix}model.{key[len(prefix) :]}"] = state.pop(key)
