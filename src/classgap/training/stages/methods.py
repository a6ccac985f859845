"""Methods of several stages, ``stage=NAME``: they can be used with any loss, and each stage is a separate run."""

from __future__ import annotations

import dataclasses
from functools import partial

from classgap import posthoc
from classgap.checks import InputError, number, one_of, whole
from classgap.posthoc import PostHocMethod
from classgap.registry import Choice, Float, Int, method
from classgap.samplers import RepeatSampler, error_repeats
from classgap.training.build import declared_needs
from classgap.training.config import MethodConfig, PartConfig, ScheduleConfig, TrainConfig
from classgap.training.loop import Trainer
from classgap.training.stages.base import MultiStage, Stage, plain_run
from classgap.training.stages.estimators import EstimatorTrainer, RefitTrainer


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
        first = with_epochs(plain_run(config), _length(self.first, config))
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
        _require_one_network(config, "linear_probe")
        probe = _second(plain_run(config), self.epochs, self.lr, self.sampler)
        return Stage("stage1", config), Stage("", probe, trains="head", begin=partial(_take_weights, head=False))


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
        _require_one_network(config, "three_stage")
        _require_linear_layer(config, "three_stage")
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
        features = _second(config, _length(self.features, config), self.features_lr, self.sampler)
        head = _second(first, _length(self.head, config), self.head_lr, self.sampler)
        return (
            Stage("stage1", first),
            Stage("stage2", features, trains="body", begin=_take_weights),
            Stage("", head, trains="head", begin=_take_weights),
        )


class EstimatorStages(MultiStage):
    """Base of second stages in which an estimator is fitted to the outputs of the frozen network for its training set.

    With ``passes=None`` to the outputs for the validation set; ``refit`` then trains again, with those samples too.
    """

    def __init__(self, estimator: PostHocMethod, passes: int | None, *, refit: bool = False) -> None:
        self.estimator = estimator
        self.passes = None if passes is None else whole("stage.passes", passes, low=1)
        self.refit = refit

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        _require_one_network(config, self.method.name)
        _require_linear_layer(config, self.method.name)
        once = dataclasses.replace(config, epochs=1, schedule=ScheduleConfig("constant"))
        trainer = partial(EstimatorTrainer, estimator=self.estimator, passes=self.passes)
        fitted = Stage("stage2" if self.refit else "", once, begin=_take_weights, trainer=trainer, needs_teacher=False)
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


def with_epochs(config: TrainConfig, epochs: int) -> TrainConfig:
    """``config`` with another length, its schedule stretched to it."""
    share = epochs / config.epochs
    schedule = dataclasses.replace(
        config.schedule,
        warmup=config.schedule.warmup * share,
        warmup_steps=round(config.schedule.warmup_steps * share),
        milestones=tuple(max(1, round(epoch * share)) for epoch in config.schedule.milestones),
    )
    params = {**config.method.params, **({"epochs": epochs} if "epochs" in config.method.params else {})}
    method = MethodConfig(config.method.name, params)
    return dataclasses.replace(config, epochs=epochs, schedule=schedule, method=method)


def _length(wanted: float, config: TrainConfig) -> int:
    """Epochs: a share of the run if at most 1, otherwise their number."""
    return max(1, round(wanted * config.epochs if wanted <= 1 else wanted))


def _second(config: TrainConfig, epochs: int, lr: float, sampler: str) -> TrainConfig:
    """A later stage: its own length and learning rate, falling along a cosine."""
    return dataclasses.replace(
        with_epochs(config, epochs),
        model=dataclasses.replace(config.model, wise=1.0),  # the weights it starts from are already a mean
        optim=dataclasses.replace(config.optim, lr=lr),
        schedule=ScheduleConfig(),
        sampler=PartConfig(sampler),
    )


def _take_weights(trainer: Trainer, before: Trainer, *, head: bool = True) -> None:
    """Start from the network of the stage before, with or without its head."""
    if not trainer.fresh:
        return
    own = f"{before.model.layer}."
    weights = {name: tensor for name, tensor in before.model.state_dict().items() if head or not name.startswith(own)}
    trainer.model.load_state_dict({**trainer.model.state_dict(), **weights})


def _take_correction(trainer: Trainer, before: Trainer) -> None:
    assert isinstance(trainer, RefitTrainer)
    trainer.use_correction_of(before)


def _require_one_network(config: TrainConfig, stage: str) -> None:
    if "experts" in declared_needs(config):
        raise InputError(f"stage {stage} works on one network, but method {config.method.name} trains several")


def _require_linear_layer(config: TrainConfig, stage: str) -> None:
    if config.model.head == "causal":
        raise InputError(f"stage {stage} works on a linear layer, but model.head=causal is none; set model.head=auto")
