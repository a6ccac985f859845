"""All methods of several stages; importing this module declares them."""

from classgap.training.stages import corrections, retraining

__all__ = ["corrections", "retraining"]
