"""Write docs/methods.md: every method from its declaration and docstring, with its measured cost.

python benchmarks/methods_page.py
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

import torch
from torch.nn import functional as F

from classgap import registry
from classgap._cards import Card, card

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "methods.md"
KINDS: dict[registry.Kind, tuple[str, str, str]] = {
    "loss": ("Losses", "method", "what a network is trained with"),
    "stage": ("Stages", "stage", "runs before or after the training proper, around any loss"),
    "sampler": ("Samplers", "sampler", "which samples an epoch visits"),
    "optimizer": ("Around the optimiser", "wrapper", "two passes a step, with any loss"),
    "posthoc": ("After training", "", "on scores in a file: `classgap fix`, `classgap.posthoc`"),
}
HEAD = """\
# Methods

Generated from the code by `python benchmarks/methods_page.py`; `classgap methods NAME` shows the same on the command line.
Every loss runs with `classgap train --set method=NAME`, and everything else goes around it:

```
classgap train --set data=cifar100 --set model=resnet32 --set method=mr2 --set method.lam=0.1
classgap train --set method=drw --set method.base=ldam                 # LDAM with deferred re-weighting
classgap train --set sampler=class_balanced --set sampler.start_epoch=160   # deferred re-sampling
classgap train --set method=logit_adjusted --set wrapper=sam --set mix=mixup
classgap train --set method=mr2 --set stage=crt                        # a second stage, in the same command
```

What a method *needs* is supplied by the training loop: a cosine head is chosen, class counts, epochs and sample indices are
passed, several views are drawn, several networks built, a teacher is trained first (or taken from `teacher=FOLDER`).
In a loop of your own, a loss that misses something says so by name.

**Cost** is the CPU time of a training step as a multiple of cross-entropy's, on a ResNet-20 with {batch} images of 32 × 32 and
{classes} classes (`benchmarks/methods_cost.py`, {cpu}, one thread); differences of 0.1 are noise. On larger networks, methods
that only add arithmetic on logits or features come closer to 1. What methods reach on balanced and on long-tailed data, with
seeds and verdicts, is in [evidence](evidence.md).
"""


def page() -> str:
    """The whole page."""
    measured = json.loads((HERE / "methods_cost.json").read_text())
    setting = measured["setting"]
    assert set(KINDS) == set(get_args(registry.Kind))
    parts = [HEAD.format(batch=setting["batch"], classes=setting["classes"], cpu=measured["machine"]["cpu"])]
    for kind, (title, section, about) in KINDS.items():
        cards = sorted((card(m) for m in registry.methods(kind)), key=lambda c: (c.family, c.name))
        costs = measured["cost"].get(kind, {})
        setter = f"`--set {section}=NAME`: " if section else ""
        parts += [f"## {title}\n\n{setter}{about}.\n", _table(cards, costs)]
        parts += [
            _card(c, costs.get(c.name), balanced=kind == "loss" and is_plain_when_balanced(c.name)) for c in cards
        ]
    return "\n".join(parts)


def _table(cards: list[Card], costs: dict[str, float]) -> str:
    heading = ["name", "family", "needs", "paper", "parameters = default (search range)", *(["cost"] if costs else [])]
    rows = []
    for c in cards:
        searched = "; ".join(f"{p.name} = {p.default} ({_cell(p.range)})" for p in c.parameters if p.search)
        cost = [f"{costs[c.name]:.1f}"] if costs else []
        rows.append([f"[{c.name}](#{_anchor(c)})", c.family, ", ".join(c.needs), _paper(c.paper), searched, *cost])
    return _rows(heading, rows)


def is_plain_when_balanced(name: str, classes: int = 4) -> bool:
    """Whether a loss, built for equal class counts, is cross-entropy in value and gradient."""
    spec = registry.get("loss", name)
    if not {"class_counts"} <= spec.needs <= {"class_counts", "epoch"}:
        return False
    length = {"epochs": 2} if "epochs" in inspect.signature(spec.cls).parameters else {}
    criterion = spec.build(num_classes=classes, class_counts=[25] * classes, **length).eval()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, classes, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.arange(32) % classes
    # The last epoch, so that schedules are past their switch.
    losses = (
        criterion(logits, target, epoch=1),
        F.cross_entropy(logits, target),
    )
    mine, plain = (torch.autograd.grad(loss, logits)[0] for loss in losses)
    return torch.allclose(losses[0], losses[1], rtol=1e-5) and torch.allclose(mine, plain, rtol=1e-4, atol=1e-7)


def _card(c: Card, cost: float | None, *, balanced: bool = False) -> str:
    facts = [c.family, _paper(c.paper), f"needs {', '.join(c.needs)}" if c.needs else "needs nothing more"]
    facts += [] if cost is None else [f"cost {cost:.1f} × cross-entropy"]
    facts += [] if c.soft_targets else ["hard labels only"]
    facts += [f"the same as {c.reduces_to}"] if c.reduces_to else []
    lines = [f'<a id="{_anchor(c)}"></a>', f"### {c.name}", " · ".join(facts), markdown(c.summary), markdown(c.what)]
    lines += [f"**{title}:** {markdown(t)}" for title, t in (("When", c.when_to_use), ("Pitfalls", c.pitfalls)) if t]
    if balanced:
        lines.append("**Expect:** on balanced data it is cross-entropy; what differs there is chance.")
    if c.parameters:
        rows = [[f"`{p.name}`", f"`{p.default}`", _cell(p.range), _cell(markdown(p.meaning))] for p in c.parameters]
        lines.append(_rows(["parameter", "default", "search range", "meaning"], rows).rstrip())
    return "\n\n".join(line for line in lines if line) + "\n"


def markdown(text: str) -> str:
    r"""reStructuredText of a docstring as Markdown with TeX.

    Example:
        >>> markdown("see :class:`~a.B` with ``x=1`` and :math:`y^2`")
        'see `B` with `x=1` and $y^2$'
    """
    block = re.compile(r"^\.\. math::[ \t]*((?:.*\n?)(?:[ \t]+.*\n?)*)", re.MULTILINE)
    text = block.sub(lambda m: f"$$ {' '.join(m.group(1).split())} $$\n", text)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`").strip()


def _anchor(c: Card) -> str:
    return f"{c.kind}-{c.name}"


def _paper(paper: str) -> str:
    number = re.fullmatch(r"arXiv:(\S+)", paper)
    return f"[{paper}](https://arxiv.org/abs/{number[1]})" if number else paper


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _rows(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
