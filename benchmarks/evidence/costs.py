"""What a run costs, in runs of the plain method, as its settings tell; measured times are from different machines."""

from __future__ import annotations

from classgap.training import TrainConfig

FORWARD = 1 / 3  # of a training step, whose backward pass takes about twice as long as its forward pass


def costs(config: TrainConfig, plain: TrainConfig) -> tuple[float, float]:
    """Cost of training and cost of prediction; those of ``plain`` are 1.

    Mixing, augmentation, offsets of classes and averages of weights count nothing, and so do a few more samples.
    """
    stage, params = config.stage.name, config.stage.params
    members = int(params.get("members", 1))
    trainings, predictions = 1.0, 1
    if stage == "ensemble":
        trainings, predictions = members, members
    elif stage == "ensemble_teacher":  # the teachers also predict every batch of their pupil
        trainings = members * (1 + FORWARD) + 1
    elif params.get("refit") or (stage in ("augment_classes", "add_samples") and params.get("to") in ("hard", "easy")):
        trainings = 2
    passes = 2 if config.wrapper.name == "sam" else 1
    views = 2 if config.predict.augment else 1  # no suite has other views than the mirror image
    return trainings * passes * config.epochs / plain.epochs, predictions * views
