"""All methods of several stages; importing this module declares them."""

from classgap.training.stages import corrections, ensembles, retraining

__all__ = ["corrections", "ensembles", "retraining"]
