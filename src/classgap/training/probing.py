"""A grid of linear heads on the features of a frozen network, trained as one problem.

All heads with the same seed see the same batches, so their logits are one matrix product, and their losses are one call under
:func:`torch.func.vmap` over the parameters of the loss; small heads with different seeds also share that call. A loss, or one of
its parameters, that cannot be computed so is called once for each value; which is which is found out on the first two batches, by
comparing both ways.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from classgap.checks import InputError, did_you_mean
from classgap.data import MEMORY_MB, Split, TrainingData
from classgap.losses import ClassLoss, LossBatch
from classgap.training.build import build_network, build_order, declared_loss, declared_needs
from classgap.training.config import TrainConfig
from classgap.training.probe_report import HeadResult, ProbeReport, head_result
from classgap.training.probe_steps import HeadOptimizer, stack_heads
from classgap.training.run import open_data
from classgap.training.schedule import in_epochs, rate_factor

AXES = ("lr", "weight_decay", "seed")
_GIVEN = ("num_classes", "num_features", "class_counts", "epochs", "options")  # arguments of a loss that are no axis
_REFUSED = ("views", "experts", "teacher", "head", "encoder_features")
_TOLERANCE = 1e-4
_SMALL = 2**20  # logits in one step; where there are more, the number of calls hardly matters


def probe(
    data: str,
    grid: Mapping[str, Sequence[Any]],
    *,
    settings: Sequence[str] = (),
    memory: int = MEMORY_MB,
    watch: Callable[[int, int], None] | None = None,
) -> ProbeReport:
    """Train one linear head for every point of a grid, all at the same time, and evaluate each on validation and test set.

    A head is what ``classgap train --set model=linear`` with the same settings gives, up to rounding.

    Args:
        data: A file of :func:`classgap.features`, or another data set of vectors.
        grid: Values for each axis: ``lr``, ``weight_decay``, ``seed``, or a parameter of the method such as ``tau`` or ``c_bar``.
        settings: What all heads share, as in :func:`classgap.train`: ``["method=mr2", "epochs=50", "data.val_fraction=0.2"]``.
        watch: Called with the number of finished steps and of all.
    """
    base = TrainConfig().override(["model=linear", *settings, f"data={data}"])
    points = _points(base, grid)
    sets = open_data(base.data, memory=memory)
    _check(base, sets)
    started = time.perf_counter()
    trained = _loops(base, sets, points)
    total = base.epochs * sum(group.steps for group in trained)
    finished = itertools.count(1)
    for group in trained:
        group.train(lambda: watch(next(finished), total) if watch else None)
    results: list[HeadResult] = []
    for group in trained:
        results += group.results()
    order = {id(point): place for place, point in enumerate(points)}
    results.sort(key=lambda result: order[id(result.point)])
    return ProbeReport(base, tuple(results), sets, time.perf_counter() - started)


def _points(base: TrainConfig, grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The points of the grid, each with a learning rate, a weight decay and a seed."""
    spec = declared_loss(base)
    known = [*AXES, *(name for name in inspect.signature(spec.cls).parameters if name not in _GIVEN)]
    for axis, values in grid.items():
        if axis not in known:
            raise InputError(did_you_mean(axis, known, what=f"axis of a grid for method {spec.name}"))
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
            raise InputError(f"grid axis {axis} must be a list of values, got {values!r}")
    usual = {"lr": base.optim.lr, "weight_decay": base.optim.weight_decay, "seed": base.seed}
    combinations = itertools.product(*grid.values())
    points = [{**usual, **dict(zip(grid, values, strict=True))} for values in combinations]
    for point in points:
        _config(base, point)  # wrong values are errors before anything is trained
    return points


def _config(base: TrainConfig, point: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a single run at this point."""
    return base.override([_assignment(axis, value) for axis, value in point.items()])


def _assignment(axis: str, value: Any) -> str:
    section = {"lr": "optim.", "weight_decay": "optim.", "seed": ""}.get(axis, "method.")
    return f"{section}{axis}={value}"


def _seeds(points: Sequence[Mapping[str, Any]]) -> list[int]:
    return list(dict.fromkeys(int(point["seed"]) for point in points))


def _check(base: TrainConfig, data: TrainingData) -> None:
    """Refuse what is not the training of one linear layer."""
    needs = declared_needs(base)
    sections = {name: getattr(base, name).name for name in ("sampler", "mix", "wrapper", "average", "stage")}
    parts = [f"{section}={name}" for section, name in sections.items() if name != "none"]
    if base.predict.augment:
        parts.append(f"predict.augment={','.join(base.predict.augment)}")
    if base.teacher is not None:
        parts.append(f"teacher={base.teacher}")
    if base.model.wise < 1:
        parts.append(f"model.wise={base.model.wise:g}")
    if refused := [need for need in _REFUSED if need in needs]:
        raise InputError(
            f"method {base.method.name} needs {', '.join(refused)}, which a linear head on features does not have"
        )
    if base.model.name != "linear" or base.model.head == "causal" or parts:
        what = parts[0] if parts else f"model={base.model.name}"
        raise InputError(f"probe trains linear heads; {what} is for classgap train")
    if len(data.in_shape) != 1:
        raise InputError(
            f"probe needs features, but data={data.name} has samples of shape {data.in_shape}; write them with classgap features"
        )
    if base.optim.clip or base.optim.accumulate != 1 or base.precision != "32-true":
        raise InputError("probe has no optim.clip, optim.accumulate or precision; use classgap train for these")


def _loops(base: TrainConfig, data: TrainingData, points: Sequence[dict[str, Any]]) -> list[Loop]:
    """One loop over all seeds, or one for each."""
    by_seed = [[point for point in points if point["seed"] == seed] for seed in _seeds(points)]
    if len(points) * base.batch * data.num_classes <= _SMALL:
        together = Loop(base, data, by_seed)
        if together.mapped is not None:
            return [together]
    found: list[Loop] = []
    for one in by_seed:
        found.append(Loop(base, data, [one], *found[:1]))
    return found


class Loop:
    """Heads that are trained together: points with the same seed see the same batches, and each seed has as many points.

    Args:
        other: Heads that differ from these in their seed alone, which are grouped in the same way.
    """

    def __init__(
        self,
        base: TrainConfig,
        data: TrainingData,
        by_seed: Sequence[Sequence[dict[str, Any]]],
        other: Loop | None = None,
    ) -> None:
        self.base, self.data, self.points = base, data, [point for points in by_seed for point in points]
        networks, configs = [], [_config(base, point) for point in self.points]
        for config in configs:
            torch.manual_seed(config.seed)  # as a run does
            networks.append(build_network(config, data))
        if any(p.requires_grad for p in networks[0].criterion.parameters()):
            raise InputError(f"method {base.method.name} learns parameters of its own; use classgap train")
        self.heads = stack_heads([network.model for network in networks])
        self.criteria: list[ClassLoss] = [network.criterion.train() for network in networks]
        self.seed_of = torch.arange(len(by_seed)).repeat_interleave(len(by_seed[0]))
        self.orders = [build_order(config, data) for config in configs[:: len(by_seed[0])]]
        full, tail = divmod(self.orders[0].length(0), base.batch)
        self.steps = full + (tail >= 2)
        varied = [a for a in self.points[0] if a not in AXES and len({str(p[a]) for p in self.points}) > 1]
        self.mapped: list[str] | None = self._trial(varied) if other is None else other.mapped
        self.groups = _groups(self.points, self.criteria, varied, self.mapped)

    def _epoch(self, epoch: int) -> Iterator[Tensor]:
        """(S, B) rows of each batch, for S seeds."""
        orders = torch.stack([order(epoch) for order in self.orders])
        for step in range(self.steps):
            yield orders[:, step * self.base.batch : (step + 1) * self.base.batch]

    def _trial(self, varied: list[str]) -> list[str] | None:
        """The varied parameters over which the loss can be mapped; ``None`` if it cannot be mapped at all."""
        own_state = "features" in self.criteria[0].needs or _counts_labels(self.criteria[0])
        if own_state and len(self.orders) > 1:
            return None  # statistics of the batches, which differ between seeds
        batches = list(itertools.islice(self._epoch(0), 2))
        agreed = [axis for axis in varied if _agree(self.points, self.criteria, [axis], self._losses_on(batches))]
        return agreed if _agree(self.points, self.criteria, agreed, self._losses_on(batches)) else None

    def _losses_on(self, batches: list[Tensor]) -> Callable[[list[_Group]], list[Tensor]]:
        """Gradients on the first batches, for one way of grouping the heads; nothing is trained."""

        def losses(groups: list[_Group]) -> list[Tensor]:
            found: list[Tensor] = []
            for rows in batches:
                logits = self._logits(rows).detach().requires_grad_()
                loss = self._losses(groups, logits, rows, 0)
                found += torch.autograd.grad(loss.sum(), logits)
            return found

        return losses

    def _inputs(self, rows: Tensor) -> Tensor:
        """(S, B, d)."""
        return next(iter(self.data.train.read([rows.flatten()]))).view(*rows.shape, -1)

    def _logits(self, rows: Tensor) -> Tensor:
        """(G, B, K)."""
        return self.heads.logits(self._inputs(rows))

    def _losses(self, groups: list[_Group], logits: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """The loss of every head, in the order of the points."""
        target = self.data.train.y[rows]
        features = None
        if "features" in self.criteria[0].needs:  # then there is a single seed
            features = self.heads.features(self._inputs(rows))
        if len(groups) == 1:
            return groups[0](logits, target, features, rows, epoch, self.seed_of)
        parts = [
            group(logits[group.places], target, features, rows, epoch, self.seed_of[group.places]) for group in groups
        ]
        return torch.cat(parts)[_inverse(groups)]

    def train(self, tick: Callable[[], None]) -> None:
        """All epochs."""
        optimizer = HeadOptimizer(self.base.optim, self.heads.parameters, self.points)
        until = [epoch * self.steps for epoch in range(self.base.epochs + 1)]
        schedule = in_epochs(self.base.schedule, until)
        for epoch in range(self.base.epochs):
            for criterion in {id(g.criterion): g.criterion for g in self.groups}.values():
                criterion.start_epoch(epoch, _no_pass)
            for step, rows in enumerate(self._epoch(epoch)):
                loss = self._losses(self.groups, self._logits(rows), rows, epoch)
                gradients = torch.autograd.grad(loss.sum(), self.heads.parameters)
                optimizer.step(gradients, rate_factor(schedule, epoch + step / self.steps, self.base.epochs))
                tick()
        if not all(bool(torch.isfinite(p).all()) for p in self.heads.parameters):
            raise InputError("the loss of some heads is not finite; leave out the largest learning rates of the grid")

    @torch.no_grad()
    def results(self) -> list[HeadResult]:
        """Every head with its accuracies."""
        test = self._scores(self.data.test)
        val = None if self.data.val is None else self._scores(self.data.val)
        found = []
        for place, point in enumerate(self.points):
            outputs = {"test": (test[place], self.data.test.y)}
            if val is not None and self.data.val is not None:
                outputs["val"] = val[place], self.data.val.y
            found.append(head_result(point, self.heads.weights(place, self.criteria[place].cosine_scale), outputs))
        return found

    def _scores(self, split: Split) -> Tensor:
        x = next(iter(split.read([torch.arange(len(split))])))
        logits = self.heads.logits(x[None])
        return torch.stack([c.scores(z, self.heads.features(x)) for c, z in zip(self.criteria, logits, strict=True)])


def _counts_labels(criterion: ClassLoss) -> bool:
    """Whether the loss keeps state that follows from the labels of each batch, and so differs between seeds."""
    return type(criterion).update_from_labels is not ClassLoss.update_from_labels


def _no_pass() -> Any:
    raise InputError("this method needs a pass over the training set before each epoch; use classgap train")


@dataclass(frozen=True, eq=False)
class _Group:
    """Heads whose losses are one call: ``values`` has a tensor (G,) for each parameter that differs between them."""

    criterion: ClassLoss
    places: list[int]
    values: dict[str, Tensor]
    mapped: bool

    def __call__(
        self, logits: Tensor, target: Tensor, features: Tensor | None, rows: Tensor, epoch: int, seed_of: Tensor
    ) -> Tensor:
        """(G,) losses of logits (G, B, K); targets, features and rows are (S, B, …), one for each seed."""
        criterion, several = self.criterion, len(target) > 1 and self.mapped
        seed = seed_of if several else seed_of[0]
        target, rows, features = target[seed], rows[seed], None if features is None else features[seed]
        if not self.mapped:
            single: Tensor = criterion(logits[0], target, features=features, index=rows, epoch=epoch)
            return single.reshape(1)
        if criterion.updating and not several:
            criterion.update_from_labels(target)
        before = {name: getattr(criterion, name) for name in self.values}

        def loss(logits: Tensor, values: dict[str, Tensor], target: Tensor, rows: Tensor) -> Tensor:
            for name, value in values.items():
                setattr(criterion, name, value)
            return criterion.compute(LossBatch(logits, target, features, rows, epoch))

        try:
            own = 0 if several else None
            losses: Tensor = vmap(loss, in_dims=(0, 0, own, own))(logits, self.values, target, rows)
        finally:
            criterion.last = {}  # it holds tensors of the inside of vmap
            for name, value in before.items():
                setattr(criterion, name, value)
        return losses


def _groups(
    points: Sequence[Mapping[str, Any]], criteria: Sequence[ClassLoss], varied: Sequence[str], mapped: list[str] | None
) -> list[_Group]:
    """Heads that differ in nothing but mapped parameters of the loss and the optimiser share a group, and one loss."""
    if mapped is None:
        return [_Group(criterion, [place], {}, False) for place, criterion in enumerate(criteria)]
    found: dict[tuple[str, ...], list[int]] = {}
    for place, point in enumerate(points):
        found.setdefault(tuple(str(point[a]) for a in varied if a not in mapped), []).append(place)
    return [
        _Group(
            criteria[places[0]],
            places,
            {axis: torch.tensor([float(points[place][axis]) for place in places]) for axis in mapped},
            True,
        )
        for places in found.values()
    ]


def _agree(
    points: Sequence[Mapping[str, Any]],
    criteria: Sequence[ClassLoss],
    mapped: list[str],
    losses: Callable[[list[_Group]], list[Tensor]],
) -> bool:
    """Whether mapping the loss over these parameters gives what single losses give, also after the first batch."""
    numbers = all(isinstance(getattr(criteria[0], a, None), float | int) for a in mapped)
    if not numbers or criteria[0].label_smoothing or criteria[0].class_weight is not None:
        return False
    varied = [a for a in points[0] if a not in AXES]
    try:
        found = losses(_groups(points, copy.deepcopy(list(criteria)), varied, mapped))
    except Exception:  # whatever torch raises about what it cannot map
        return False
    expected = losses(_groups(points, copy.deepcopy(list(criteria)), varied, None))
    pairs = zip(found, expected, strict=True)
    return all(torch.allclose(a, b, rtol=_TOLERANCE, atol=1e-7) for a, b in pairs)


def _inverse(groups: Sequence[_Group]) -> Tensor:
    """Where the loss of each point is among the losses of the groups."""
    return torch.tensor([place for group in groups for place in group.places]).argsort()
