"""Corrections of the last layer after training, ``stage=NAME``: an estimator of :mod:`classgap.posthoc` as a second stage."""

from __future__ import annotations

import dataclasses
from functools import partial

from classgap import posthoc
from classgap.checks import InputError, number, one_of, whole
from classgap.posthoc import PostHocMethod
from classgap.registry import Choice, Float, Int, method
from classgap.training.average_config import AverageConfig
from classgap.training.build import declared_needs
from classgap.training.config import ScheduleConfig, TrainConfig
from classgap.training.loop import Trainer
from classgap.training.stages.base import MultiStage, Stage
from classgap.training.stages.estimators import EstimatorTrainer, RefitTrainer
from classgap.training.stages.parts import require_linear_layer, require_one_network, take_weights


class EstimatorStages(MultiStage):
    """Base of second stages in which an estimator is fitted to the outputs of the frozen network for its training set.

    With ``passes=None`` to the outputs for the validation set; ``refit`` then trains again, with those samples too.
    """

    def __init__(self, estimator: PostHocMethod, passes: int | None, *, refit: bool = False) -> None:
        self.estimator = estimator
        self.passes = None if passes is None else whole("stage.passes", passes, low=1)
        self.refit = refit

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        require_one_network(config, self.method.name)
        require_linear_layer(config, self.method.name)
        once = dataclasses.replace(config, epochs=1, schedule=ScheduleConfig("constant"), average=AverageConfig())
        trainer = partial(EstimatorTrainer, estimator=self.estimator, passes=self.passes)
        fitted = Stage("stage2" if self.refit else "", once, begin=take_weights, trainer=trainer, needs_teacher=False)
        again = (Stage("", config, begin=_take_correction, trainer=RefitTrainer),) if self.refit else ()
        return Stage("stage1", config), fitted, *again


@method(
    "crt",
    kind="stage",
    family="head",
    paper="arXiv:1910.09217",
    space={"weight_decay": Float(1e-5, 1e-1, default=1e-2, log=True)},
)
class CRTStage(EstimatorStages):
    """Classifier re-training as second stage: a new head on the features of the frozen network, with equal class weights.

    Fitted exactly by :class:`classgap.posthoc.CRT` instead of by epochs with class-aware sampling.

    When to use: long tails; the standard way to decouple features from the classifier.
    Expect: on balanced data about the accuracy of the first stage; on long tails a gain for rare classes as far as
    their training features are like those of the test set.
    Pitfalls: training features of a network that has memorised its training set say little about rare classes: use
    augmentation. Behind a cosine head the new one is for unit vectors; the saved network keeps its own, see
    ``classgap.posthoc.load``.

    Args:
        weight_decay: On the new weights, for features of mean square one.
        passes: Passes over the augmented training set; one is enough without augmentation.
    Reference: Kang et al., *Decoupling representation and classifier*, ICLR 2020.
    """

    def __init__(self, *, weight_decay: float = 1e-2, passes: int = 1) -> None:
        super().__init__(posthoc.CRT(weight_decay=weight_decay), passes)


@method(
    "tau_norm",
    kind="stage",
    family="norm",
    paper="arXiv:1910.09217",
    space=posthoc.TauNorm.method.space,
)
class TauNormStage(EstimatorStages):
    """τ-normalisation as second stage: each row of the last layer divided by a power of its norm, the bias dropped.

    The power is chosen by :class:`classgap.posthoc.TauNorm` on the validation set, and nothing is trained. The result is part of
    the saved network.

    When to use: long tails; the cheapest of the second stages, since one number is chosen.
    Expect: on balanced data no gain; on long tails a gain for rare classes where their weight vectors are shorter.
    Pitfalls: strong weight decay may have made the norms equal, and a cosine head has none. With few validation samples of the
    rare classes the power is chosen by chance. The power was chosen on the validation set, so accuracy on it is too optimistic.

    Args:
        tau: The power: ``1`` gives unit rows, ``0`` only drops the bias. None (default) picks the value of 0, 0.1, …, 2 with the
            best balanced accuracy on the validation set; a number needs no validation set.
    Reference: Kang et al., *Decoupling representation and classifier*, ICLR 2020, sec. 4.
    """

    def __init__(self, *, tau: float | None = None) -> None:
        if tau is not None:
            number("stage.tau", tau, low=0.0)
        super().__init__(posthoc.TauNorm(tau=tau), None if tau is None else 1)

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        if config.model.head == "cosine" or "cosine_head" in declared_needs(config):
            raise InputError(
                f"stage tau_norm needs a linear head; method={config.method.name} model.head={config.model.head} has a cosine "
                "head, which ignores the norms of its rows; leave the stage out"
            )
        return super().stages(config)


@method(
    "lws",
    kind="stage",
    family="norm",
    paper="arXiv:1910.09217",
    space={"form": Choice(("logits", "weights"), default="logits"), "ridge": Float(1e-4, 10.0, default=0.1, log=True)},
)
class LWSStage(EstimatorStages):
    """Learnable weight scaling as second stage: one scale per class on the training logits of the frozen network.

    Fitted exactly by :class:`classgap.posthoc.LWS` instead of by epochs with class-aware sampling.

    When to use: long tails where a whole new head would over-fit.
    Expect: on balanced data almost no change; on long tails a gain for rare classes, smaller than that of
    a new head.
    Pitfalls: logits of memorised training samples are all correct and leave little to learn: use augmentation. A cosine head
    cannot hold the result: ``classgap.posthoc.load`` reads it from the folder of the run.

    Args:
        form: ``"logits"`` scales the whole score, ``"weights"`` only the part before the bias.
        ridge: Pull towards no change.
        passes: Passes over the augmented training set; one is enough without augmentation.
    Reference: Kang et al., *Decoupling representation and classifier*, ICLR 2020.
    """

    def __init__(self, *, form: str = "logits", ridge: float = 0.1, passes: int = 1) -> None:
        super().__init__(posthoc.LWS(form=form, ridge=ridge), passes)


@method(
    "marc",
    kind="stage",
    family="margin",
    paper="arXiv:2112.07225",
    space={"gamma": Float(0.0, 2.0, default=1.2), "steps": Int(100, 20_000, default=2000, log=True)},
)
class MARCStage(EstimatorStages):
    """Margin calibration as second stage: a scale and an offset for each class's margin, on the frozen network's logits.

    Fitted by :class:`classgap.posthoc.MARC` to the training set and by steps of SGD on eq. 11, as published, with the number of
    steps of the authors' code; the logits are computed once for all steps, not anew in each. The average margins that
    ``classgap audit`` reports of such a run are the calibrated ones of eq. 8.

    When to use: long tails; on balanced data fit it to held-out scores with ``classgap fix`` instead.
    Expect: on balanced data almost no change, since all classes have the same weight; on long tails a gain for rare
    classes where training scores are not all right already.
    Pitfalls: logits of memorised training samples are all correct and leave little to learn: use augmentation. A cosine head
    cannot hold the result: ``classgap.posthoc.load`` reads it from the folder of the run.

    Args:
        gamma: Exponent of the class weights.
        normalize: ``"batch"`` divides the loss of a batch by its number of samples (the paper), ``"weights"`` by the sum of their
            weights (the authors' code), which amounts to larger steps on long tails.
        ridge: Pull towards no change; the paper has none.
        steps: Steps of SGD. None solves exactly, which on training logits goes much further than the paper's steps and loses
            most of the gain; it needs a ridge of about 0.1 there.
        passes: Passes over the augmented training set; one is enough without augmentation.
    Reference: Wang et al., *Margin calibration for long-tailed visual recognition*, ACML 2022.
    """

    def __init__(
        self,
        *,
        gamma: float = 1.2,
        normalize: str = "batch",
        ridge: float = 0.0,
        steps: int | None = 2000,
        passes: int = 1,
    ) -> None:
        one_of("stage.normalize", normalize, ("batch", "weights"))
        number("stage.gamma", gamma, low=0.0)
        number("stage.ridge", ridge, low=0.0)
        if steps is not None:
            whole("stage.steps", steps, low=1)
        super().__init__(posthoc.MARC(gamma=gamma, normalize=normalize, ridge=ridge, steps=steps), passes)


@method(
    "disalign",
    kind="stage",
    family="margin",
    paper="arXiv:2103.16370",
    space={
        "form": Choice(("paper", "code"), default="paper"),
        "gamma": Float(0.0, 2.0, default=1.2),
        "ridge": Float(1e-4, 10.0, default=0.1, log=True),
    },
)
class DisAlignStage(EstimatorStages):
    """Distribution alignment as second stage: a class-wise correction, applied as far as a confidence in the sample says.

    Fitted by :class:`classgap.posthoc.DisAlign` to the frozen network's training logits and features.

    When to use: long tails where one correction for all samples of a class is too crude.
    Expect: on balanced data almost no change, since all classes have the same weight; on long tails about what
    ``marc`` gives.
    Pitfalls: the correction is no part of the saved network, as it cannot be; ``classgap.posthoc.load`` reads it from the
    folder of the run. Logits of memorised training samples leave little to learn: use augmentation.

    Args:
        form: ``"paper"`` or ``"code"``.
        gamma: Exponent of the class weights.
        ridge: Pull towards no change.
        passes: Passes over the augmented training set; one is enough without augmentation.
    Reference: Zhang et al., *Distribution alignment*, CVPR 2021.
    """

    def __init__(self, *, form: str = "paper", gamma: float = 1.2, ridge: float = 0.1, passes: int = 1) -> None:
        super().__init__(posthoc.DisAlign(form=form, gamma=gamma, ridge=ridge), passes)


@method(
    "gap_dial",
    kind="stage",
    family="dial",
    paper="classgap",
    space=posthoc.GapDial.method.space,
)
class GapDialStage(EstimatorStages):
    """The gap dial as second stage: per-class offsets that lift the hard classes, fitted to the validation set.

    Fitted by :class:`classgap.posthoc.GapDial` and folded into the last layer, so the saved network has them; a cosine head
    cannot hold them, ``classgap.posthoc.load`` reads them from the folder of the run.

    When to use: balanced data where hard classes matter more than the average; after a loss that gains for all classes alike,
    such as ``compact_logits``, whose gain it moves to the hard ones.
    Expect: on balanced data, after ``compact_logits`` and with ``refit``, 150 samples of each of 100 classes in total: the hard
    third up by 3.5 points, overall by 2, and easy classes no lower than with cross-entropy on as many samples. Without
    ``refit`` the held-out samples are not used for training, which costs most of that. After ``cross_entropy`` a trade: +1.5
    hard for -1.5 easy. On long tails it was measured as a post-hoc method only.
    Pitfalls: with a few hundred held-out samples in all, offsets and their strength are chosen by chance and may cost; the
    offsets were fitted to the validation set, so accuracy on it is too optimistic.

    Args:
        strength: How much more a class counts when it fails more. None chooses on cross-fitted validation scores: the largest
            gain of the hard third with overall not significantly worse.
        ridge: Pull of the offsets towards nothing. None chooses likewise.
        refit: Train a second time from scratch, with the validation samples as training samples too, and give that network
            the offsets found. Twice the time, and nothing is held out any more; not for a balanced validation set beside
            long-tailed training data.
    """

    def __init__(self, *, strength: float | None = None, ridge: float | None = None, refit: bool = False) -> None:
        if not isinstance(refit, bool):
            raise InputError(f"stage.refit must be true or false, got {refit!r}")
        super().__init__(posthoc.GapDial(strength=strength, ridge=ridge), None, refit=refit)


def _take_correction(trainer: Trainer, before: Trainer) -> None:
    assert isinstance(trainer, RefitTrainer)
    trainer.use_correction_of(before)
