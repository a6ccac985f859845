"""The checks that every loss of classgap passes, for losses of your own: ``check_loss("my_loss")``.

Or one test per check: ``pytest --pyargs classgap.testing -k my_loss``. For a loss that is not in an installed package, the
environment variable ``CLASSGAP_PLUGINS`` names its file.
"""

from classgap.testing.losses import LOSS_CHECKS, check_loss

__all__ = ["LOSS_CHECKS", "check_loss"]
