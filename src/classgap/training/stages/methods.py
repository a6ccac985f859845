"""All methods of several stages; importing this module declares them."""

from classgap.training.stages import chosen_classes, corrections, ensembles, retraining

__all__ = ["chosen_classes", "corrections", "ensembles", "retraining"]
