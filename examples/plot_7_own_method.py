"""
Add your own method in one file
===============================

A method is one class with one declaration. It does not have to live in classgap: this example declares a loss in a file of
its own, and trains with it by name. The command line, the search ranges and the comparison with other methods come with the
declaration.
"""

# %%
# The loss
# --------
# ``per_sample`` returns the loss of each sample for hard labels. It gets the arguments of the call as one value:
# ``batch.logits``, ``batch.target`` and, where given, ``batch.features``, ``batch.index`` and ``batch.epoch``. Soft targets,
# checks of the arguments, half precision and the mean come from the base class.

from classgap.losses import ClassLoss
from classgap.registry import Float, method


@method(
    "entropy_bonus",
    kind="loss",
    family="robust",
    paper="arXiv:1701.06548",
    space={"beta": Float(0.01, 1.0, default=0.1, log=True)},
    reduces_to=("cross_entropy", {"beta": 0.0}),
)
class EntropyBonusLoss(ClassLoss):
    """Cross-entropy minus a multiple of the entropy of the prediction (the confidence penalty of Pereyra et al.)."""

    def __init__(self, num_classes, *, beta=0.1):
        super().__init__(num_classes)
        self.beta = beta

    def per_sample(self, batch):
        log_p = batch.logits.log_softmax(dim=1)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        return -log_p.gather(1, batch.target[:, None])[:, 0] - self.beta * entropy


# %%
# Train with it
# -------------
# The method is known by its name from now on. The settings are those of ``classgap train --set …``.

import tempfile

import classgap

settings = ["data=digits", "data.per_class=40", "model=mlp-64", "batch=50", "epochs=15"]
reports = {}
with tempfile.TemporaryDirectory() as folder:
    for name, chosen in {"cross-entropy": "cross_entropy", "own": "entropy_bonus"}.items():
        run = [*settings, f"method={chosen}"]
        result = classgap.train(folder=f"{folder}/{name}", settings=run, accelerator="cpu")
        reports[name] = classgap.audit(result.test.y_true, scores=result.test.scores)
classgap.compare(reports["cross-entropy"], reports["own"])

# %%
# The search range and the default are part of the declaration:

print(EntropyBonusLoss.method.space)

# %%
# Use it on the command line
# --------------------------
# ``classgap new-method my_loss`` writes such a file. With ``--plugin my_loss.py`` the verbs ``train``, ``tune``, ``bench`` and
# ``methods`` know its methods. ``python -m pytest -p my_loss --pyargs classgap.testing -k my_loss`` runs the checks that every
# loss of classgap passes: gradients, half precision, ``torch.compile``, ignored samples, resuming and others.
#
# Make it installable
# -------------------
# So that ``classgap train --set method=confidence_penalty`` finds a method, a package names it as an entry point. The folder
# ``examples/own_method`` of the repository is such a package: one Python file and this ``pyproject.toml``.
#
# .. literalinclude:: ../../examples/own_method/pyproject.toml
#    :language: toml
#
# After ``pip install ./examples/own_method``, ``classgap methods confidence_penalty`` shows its card.
