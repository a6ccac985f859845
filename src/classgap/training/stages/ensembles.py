"""Several runs of one configuration that decide together, ``stage=ensemble``, or teach together, ``stage=ensemble_teacher``."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

import torch
from torch import nn

from classgap import posthoc, registry
from classgap.checks import LARGEST_SEED, InputError, number, one_of, whole
from classgap.data import TrainingData
from classgap.models import COMBINATIONS, ClassAffine, Combination, Ensemble
from classgap.registry import Choice, Int, method
from classgap.training.average_config import AverageConfig
from classgap.training.build import Network, build_criterion, build_network, declared_loss
from classgap.training.config import MethodConfig, PartConfig, ScheduleConfig, TrainConfig
from classgap.training.counts import choose_counts
from classgap.training.epoch import read_log
from classgap.training.loop import Trainer
from classgap.training.outputs import ScoredNetwork
from classgap.training.stages.base import MultiStage, Stage, learns_from_scores, teacher_run
from classgap.training.stages.estimators import validation_set
from classgap.training.stages.parts import log_outputs

SEED_STEP = 10_000
_RIDGE = 1.0  # the smallest pull of the offsets towards nothing that the gap dial tries by itself


def build_ensemble(
    config: TrainConfig,
    data: TrainingData,
    *,
    teacher: nn.Module | None = None,
    members: int,
    combine: Combination,
    corrected: bool,
) -> Network:
    """Networks of ``members`` runs with the scores of their losses, under the loss that leaves scores as they are."""
    networks = [build_network(config, data) for _ in range(members)]
    plain = dataclasses.replace(config, method=MethodConfig())
    counts = choose_counts(declared_loss(plain), plain.method.params, data)
    correction = ClassAffine(data.num_classes) if corrected else None
    model = Ensemble((ScoredNetwork(n.model, n.criterion, n.head) for n in networks), combine, correction)
    return dataclasses.replace(
        networks[0],
        model=model,
        criterion=build_criterion(plain, data, counts),
        experts=members,
        head_is_new=False,
        about_weights=(),
    )


class EnsembleTrainer(Trainer):
    """Puts finished runs side by side; nothing is trained. The time in its log is that of all members.

    Args:
        dial: Strength of a gap dial that is fitted to the validation set; None for none.
    """

    member_seconds = 0.0

    def __init__(self, *args: Any, dial: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dial = dial
        if dial is not None:
            validation_set(self.data)

    def run(self) -> None:
        """Train the members, fit the dial to what they say together, then evaluate it."""
        if self.finished:
            return
        self._begin()
        started = time.perf_counter() - self.member_seconds
        if self.dial is not None:
            self._turn(posthoc.GapDial(self.dial, ridge=_RIDGE))
        split = self.data.train
        scores, features = self.predict(split)
        log_outputs(self, scores, features, split.y.to(scores.device), started)

    def _turn(self, dial: posthoc.GapDial) -> None:
        """Fit the offsets of the classes, and store them in the network."""
        held_out = validation_set(self.data)
        scores, _ = self.predict(held_out)
        dial.fit(scores.float().cpu().numpy(), held_out.y.cpu().numpy(), class_counts=self.data.class_counts.numpy())
        correction = self.model.module.correction
        for name, learned in (("scale", dial.scale_), ("offset", dial.offset_)):
            getattr(correction, name).copy_(torch.from_numpy(learned))

    def take_member(self, member: Trainer, position: int) -> None:
        """Use the network of this finished run as the member at ``position``."""
        parts = {"network": member.weights(), "criterion": member.criterion.state_dict()}
        own = f"members.{position}."
        state = {f"{own}{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        self.model.load_state_dict({**self.model.state_dict(), **state})
        self.member_seconds += sum(record["seconds"] for record in read_log(member.log))


def _take_member(trainer: Trainer, member: Trainer, position: int) -> None:
    assert isinstance(trainer, EnsembleTrainer)
    trainer.take_member(member, position)


def member_configs(config: TrainConfig, members: int, seed_step: int) -> tuple[TrainConfig, ...]:
    """The same run with ``members`` seeds, the first of them its own."""
    seeds = [config.seed + position * seed_step for position in range(members)]
    if seeds[-1] > LARGEST_SEED:
        raise InputError(f"stage.seed_step={seed_step}: the last member would have the seed {seeds[-1]}; lower it")
    return tuple(dataclasses.replace(config, seed=seed) for seed in seeds)


@method(
    "ensemble",
    kind="stage",
    family="ensemble",
    paper="arXiv:1612.01474",
    space={
        "members": Int(2, 10, default=3),
        "combine": Choice(COMBINATIONS, default="probabilities"),
        "dial": Choice((None, 1.0, 2.0), default=None),
    },
)
class EnsembleStage(MultiStage):
    """The same run with several seeds; the mean of the probabilities that their networks give is the prediction.

    Each member is a run of its own, in the folder ``member1``, ``member2``, …, and differs from the others in its first weights
    and in the order and augmentation of its samples; the split of the data is the same. Scores are the logarithm of the mean
    probability, so their softmax is the mean. Features are those of all members side by side.

    When to use: accuracy matters more than the time of training and of prediction, each of which is that of one run times the
    number of members; compare with one run of as many times the epochs.
    Expect: on balanced data and on long tails a gain for all classes, larger where single runs differ more; hard classes have
    no preference, so their gain is that of uncertain samples.
    With ``dial=1`` and mirrored views hard classes gained on both image tasks tried, and easy ones did not lose.
    Pitfalls: a member is a whole network: ``classgap predict`` and ``classgap export`` take as many times as long. There is no
    last layer for the corrections of ``classgap fix`` to be folded into. Members of runs with neighbouring seeds are different
    as long as their seeds differ by less than ``seed_step``.

    Args:
        members: Number of runs.
        combine: ``"probabilities"`` takes the mean of the probabilities, as the paper does: every member has one vote, which it
            may divide. ``"logits"`` takes the mean of the scores: a member with larger scores counts more, and a class that one
            member excludes is out.
        seed_step: Difference of the seeds of two members: seed, seed + 10000, seed + 20000, … The first member is the run with
            the seed itself.
        dial: Strength of a gap dial (:class:`classgap.posthoc.GapDial`) that is fitted to the mean of the members on the
            validation set, and is part of the saved network; none by default. Where the ensemble lifts mostly easy classes, the
            dial moves this gain to the hard ones. It needs more than about ten validation samples of each class.
    Reference: Lakshminarayanan et al., *Simple and scalable predictive uncertainty estimation using deep ensembles*, NeurIPS
    2017, without its adversarial training.
    """

    def __init__(
        self,
        *,
        members: int = 3,
        combine: Combination = "probabilities",
        seed_step: int = SEED_STEP,
        dial: float | None = None,
    ) -> None:
        self.members = whole("stage.members", members, low=2)
        self.combine: Combination = one_of("stage.combine", combine, COMBINATIONS)
        self.seed_step = whole("stage.seed_step", seed_step, low=1)
        self.dial = None if dial is None else number("stage.dial", dial, low=0.0)

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        if config.teacher is not None:
            raise InputError(
                f"stage {self.method.name} trains every member from the beginning, so teacher={config.teacher} cannot be "
                "used; leave it out"
            )
        together = dataclasses.replace(
            config,
            epochs=1,
            schedule=ScheduleConfig("constant"),
            average=AverageConfig(),
            model=dataclasses.replace(config.model, pretrained=False, wise=1.0),
        )
        about = {"members": self.members, "combine": self.combine, "seed_step": self.seed_step, "dial": self.dial}
        runs = member_configs(config, self.members, self.seed_step)
        ensemble = Stage(
            "",
            together,
            trainer=EnsembleTrainer if self.dial is None else partial(EnsembleTrainer, dial=self.dial),
            needs_teacher=False,
            members=tuple(Stage(f"member{number}", run) for number, run in enumerate(runs, 1)),
            join=_take_member,
            build=partial(build_ensemble, members=self.members, combine=self.combine, corrected=self.dial is not None),
            alone=dataclasses.replace(config, stage=PartConfig(self.method.name, about)),
        )
        return (ensemble,)


@method(
    "ensemble_teacher",
    kind="stage",
    family="ensemble",
    paper="arXiv:1503.02531",
    space={"members": Int(2, 10, default=3), "combine": Choice(COMBINATIONS, default="probabilities")},
)
class EnsembleTeacher(MultiStage):
    """An ensemble as the teacher of a method that learns from scores: ``method=distillation stage=ensemble_teacher``.

    The members are those of ``stage=ensemble`` with the loss that the method has for labels, in the folders
    ``teacher/member1``, …; then one network learns from the mean of their tempered probabilities for each augmented sample.

    When to use: the gain of an ensemble is wanted and only one network can be used for prediction.
    Expect: on balanced data and on long tails part of the gain of the ensemble; see ``distillation``.
    Pitfalls: training costs members + 1 runs and a forward pass of all members in every step; compare with one run of as many
    times the epochs. The student has the seed, so the first weights and the order of samples, of the first member.

    Args:
        members: Number of runs that the teacher consists of.
        combine: ``"probabilities"`` averages tempered probabilities, ``"logits"`` scores: the arithmetic and the geometric mean
            of the paper.
        seed_step: Difference of the seeds of two members.
    Reference: Hinton, Vinyals & Dean, *Distilling the knowledge in a neural network*, 2015, sec. 1 and 5.
    """

    def __init__(self, *, members: int = 3, combine: Combination = "probabilities", seed_step: int = SEED_STEP) -> None:
        self.ensemble = EnsembleStage(members=members, combine=combine, seed_step=seed_step)

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        if not learns_from_scores(config):
            fitting = [m.name for m in registry.methods("loss") if getattr(m.cls, "learns_from", "") == "scores"]
            raise InputError(
                f"stage {self.method.name} needs a method that learns from the scores of a teacher "
                f"({', '.join(fitting)}), got method={config.method.name}; set method={fitting[0]} "
                f"method.base={config.method.name}"
            )
        if config.teacher is not None:
            raise InputError(
                f"stage {self.method.name} trains the teacher, so teacher={config.teacher} must be left out"
            )
        (teacher,) = self.ensemble.stages(teacher_run(config))
        return (
            dataclasses.replace(teacher, name="teacher"),
            Stage("", config, begin=_learn_from, needs_teacher=False),
        )


def _learn_from(trainer: Trainer, teacher: Trainer) -> None:
    trainer.bind_teacher(teacher.model.module)
