"""``classgap new-method``: write the file of a loss of your own, ready to train."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from classgap.checks import InputError
from classgap.cli.output import echo

_TEMPLATE = Template('''"""The loss $name. Replace the formula, the parameter and the texts by those of your method.

$commands
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from classgap.checks import number
from classgap.losses import ClassLoss, LossBatch, LossOptions
from classgap.registry import Float, method


@method(
    "$name",
    kind="loss",
    family="own",
    paper="—",
    space={"beta": Float(0.01, 1.0, default=0.1, log=True)},  # the search range of classgap tune
    reduces_to=("cross_entropy", {"beta": 0.0}),  # checked: the same value and gradient; leave it out if there is none
)
class $title(ClassLoss):
    r"""Cross-entropy minus a multiple of the entropy of the prediction.

    When to use: …
    Expect: …
    Pitfalls: …

    Args:
        beta: Weight of the entropy; 0 gives cross-entropy.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        beta: float = 0.1,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.beta = number("beta", beta, low=0.0)

    def per_sample(self, batch: LossBatch) -> Tensor:
        """(N,) losses for hard labels; also available: batch.features, batch.index, batch.epoch, if declared in needs."""
        log_p = batch.logits.log_softmax(dim=1)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        return -log_p.gather(1, batch.target[:, None])[:, 0] - self.beta * entropy
''')


def new_method(
    name: Annotated[str, typer.Argument(help="Name of the method, e.g. my_loss.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; by default NAME.py in this folder.")
    ] = None,
) -> None:
    """Write the file of a loss of your own: one class with one declaration.

    The file works as it is: replace its formula by yours. No package is needed;
    --plugin FILE makes the loss known to train, tune, bench and methods.

    \b
    classgap new-method my_loss
    classgap train --plugin my_loss.py --set method=my_loss --quick
    python -m pytest -p my_loss --pyargs classgap.testing -k my_loss

    The last command runs the checks that every loss of classgap passes.
    """
    from classgap.registry import methods
    from classgap.writing import write

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InputError(f"NAME must be lower-case letters, digits and underscores, e.g. my_loss, got {name!r}")
    if name in {method.name for method in methods("loss")}:
        raise InputError(f"there is a loss {name} already; choose another name")
    file = Path(f"{name}.py") if out is None else out
    if file.suffix != ".py":
        raise InputError(f"--out must be a Python file ending in .py, got {file}")
    if file.exists():
        raise InputError(f"{file} exists already; choose another name, or another file with --out")
    commands = (
        f"classgap methods {name} --plugin {file}",
        f"classgap train --plugin {file} --set method={name} --quick",
        f"{_pytest(file)} --pyargs classgap.testing -k {name}",
    )
    title = "".join(part.capitalize() for part in name.removesuffix("_loss").split("_")) + "Loss"
    block = "\n".join(f"    {command}" for command in commands)
    write(file, _TEMPLATE.substitute(name=name, title=title, commands=block))
    echo(f"wrote {file}; next:\n{block}")


def _pytest(file: Path) -> str:
    """The command that makes the file known to pytest: ``-p`` imports modules of the current folder."""
    return f"python -m pytest -p {file.stem}" if file.parent == Path() else f"CLASSGAP_PLUGINS={file} python -m pytest"
