"""Methods that train in several stages, ``stage=NAME``: they can be used with any loss, and each stage is a separate run."""

from __future__ import annotations

from functools import partial

from classgap.checks import InputError, number, whole
from classgap.registry import Float, Int, method
from classgap.samplers import RepeatSampler, error_repeats
from classgap.training.build import declared_needs
from classgap.training.config import TrainConfig
from classgap.training.loop import Trainer
from classgap.training.stages.base import MultiStage, Stage, plain_run
from classgap.training.stages.parts import (
    later_stage,
    length_of,
    require_linear_layer,
    require_one_network,
    take_weights,
    with_epochs,
)


@method(
    "jtt",
    kind="stage",
    family="robust",
    paper="arXiv:2107.09044",
    space={"factor": Int(1, 100, default=5, log=True), "first": Float(0.02, 1.0, default=0.1, log=True)},
)
class JustTrainTwice(MultiStage):
    """Just train twice: a short first run finds the hard samples, and a second run from scratch visits them more often.

    The first run is cross-entropy. What it gets wrong on its training set, in evaluation mode and without augmentation, is
    visited ``1 + factor`` times per epoch in the second run, which trains with the method of the configuration.

    When to use: some samples of a class are hard for a reason that is not annotated, and the worst class or group matters most.
    Expect: on balanced data a gain on hard samples if the first run makes few errors, otherwise none; on long tails the
    first run misclassifies mostly rare classes, so they are visited more often.
    Pitfalls: an epoch grows by ``factor`` times the number of errors; if the first run is wrong almost everywhere, or nowhere,
    all samples are visited equally often and nothing changes; samples with wrong labels are hard too.

    Args:
        factor: Copies added of each error.
        first: Length of the first run: a share of the epochs if at most 1, otherwise their number.
    Reference: Liu et al., *Just train twice*, ICML 2021.
    """

    def __init__(self, *, factor: int = 5, first: float = 0.1) -> None:
        self.factor = whole("stage.factor", factor, low=0)
        self.first = number("stage.first", first, low=0.0, open_low=True)

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        if config.sampler.name != "none":
            raise InputError("stage jtt sets how often a sample is visited; set sampler=none")
        first = with_epochs(plain_run(config), length_of(self.first, config))
        return Stage("stage1", first), Stage("", config, begin=self._repeat_errors)

    def _repeat_errors(self, trainer: Trainer, before: Trainer) -> None:
        split = trainer.data.train
        wrong = before.predict(split)[0].argmax(1).cpu() != split.y
        trainer.batches.order = RepeatSampler(error_repeats(wrong, self.factor), seed=trainer.config.seed)


@method(
    "linear_probe",
    kind="stage",
    family="head",
    paper="arXiv:2004.11362",
    space={"epochs": Int(1, 100, default=10, log=True), "lr": Float(0.01, 10.0, default=0.1, log=True)},
)
class LinearProbe(MultiStage):
    """A new linear head, trained with cross-entropy on the frozen network that the method has trained.

    With ``method=supcon method.ce_weight=0`` this is the original two-stage supervised contrastive learning.

    When to use: the method trains features and no classifier, or to measure the quality of the features alone.
    Expect: on balanced data about the accuracy of the first stage, where that stage trained a classifier at all; on long
    tails a head whose class preferences depend on the sampler.
    Pitfalls: the head sees augmented training samples, as any training does; with a long tail set ``sampler=class_aware``, or use
    the exact ``crt``. After a cosine head it is linear too, on features that are not normalised.

    Args:
        epochs: Length of the second stage.
        lr: Its learning rate, which falls along a cosine.
        sampler: Which samples its epochs visit, ``"none"`` for every one once.
    Reference: Khosla et al., *Supervised contrastive learning*, NeurIPS 2020, sec. 4.
    """

    def __init__(self, *, epochs: int = 10, lr: float = 0.1, sampler: str = "none") -> None:
        self.epochs = whole("stage.epochs", epochs, low=1)
        self.lr = number("stage.lr", lr, low=0.0, open_low=True)
        self.sampler = sampler

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        require_one_network(config, "linear_probe")
        probe = later_stage(plain_run(config), self.epochs, self.lr, self.sampler)
        return Stage("stage1", config), Stage("", probe, trains="head", begin=partial(take_weights, head=False))


@method(
    "three_stage",
    kind="stage",
    family="head",
    paper="arXiv:2104.03066",
    space={
        "features_lr": Float(1e-4, 0.1, default=5e-3, log=True),
        "head_lr": Float(1e-3, 0.1, default=1e-2, log=True),
    },
)
class ThreeStage(MultiStage):
    """Cross-entropy, then the method on the features alone, then the classifier alone; the last two with balanced sampling.

    With ``method=dro_lt method.weight=1 method.centroids=epoch`` this is DRO-LT as released, with four differences: the authors'
    second stage weighs cross-entropy by n_k / n_max and decays the radii, its best epoch on the test set goes on to the
    third, and the rates of both stages are constant; here they fall along a cosine.

    When to use: losses on features that need a network to start from, on long-tailed data.
    Expect: on balanced data little but longer training; on long tails a gain for the tail, most of it from the
    balanced last stage.
    Pitfalls: three learning rates to set; the tail is repeated many times in the last two stages.

    Args:
        features: Length of the second stage: a share of the epochs if at most 1, otherwise their number.
        head: Length of the third stage, in the same way.
        features_lr: Learning rate of the second stage.
        head_lr: Learning rate of the third stage.
        sampler: Which samples the epochs of these two visit.
    Reference: Samuel & Chechik, *Distributional robustness loss for long-tail learning*, ICCV 2021.
    """

    def __init__(
        self,
        *,
        features: float = 0.4,
        head: float = 0.1,
        features_lr: float = 5e-3,
        head_lr: float = 1e-2,
        sampler: str = "class_aware",
    ) -> None:
        self.features = number("stage.features", features, low=0.0, open_low=True)
        self.head = number("stage.head", head, low=0.0, open_low=True)
        self.features_lr = number("stage.features_lr", features_lr, low=0.0, open_low=True)
        self.head_lr = number("stage.head_lr", head_lr, low=0.0, open_low=True)
        self.sampler = sampler

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        require_one_network(config, "three_stage")
        require_linear_layer(config, "three_stage")
        if "cosine_head" in declared_needs(config):
            raise InputError(
                f"stage three_stage starts from cross-entropy with a linear head, but {config.method.name} works on cosines; "
                "leave the stage out, or choose another method or method.base"
            )
        if config.model.head == "cosine":
            raise InputError(
                "stage three_stage trains one linear head in all its stages and cannot hand it to a cosine head; leave "
                "model.head and model.head_scale out"
            )
        first = plain_run(config)
        features = later_stage(config, length_of(self.features, config), self.features_lr, self.sampler)
        head = later_stage(first, length_of(self.head, config), self.head_lr, self.sampler)
        return (
            Stage("stage1", first),
            Stage("stage2", features, trains="body", begin=take_weights),
            Stage("", head, trains="head", begin=take_weights),
        )
