"""Write docs/methods.md: every method from its declaration and docstring, with its measured cost and effect.

python benchmarks/methods_page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

from classgap import registry
from classgap._cards import Card, card

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "methods.md"
KINDS: dict[registry.Kind, tuple[str, str, str]] = {
    "loss": ("Losses", "method", "what a network is trained with"),
    "stage": ("Stages", "stage", "runs before or after the training proper, around any loss"),
    "sampler": ("Samplers", "sampler", "which samples an epoch visits"),
    "augmentation": (
        "Augmentation",
        "data.augment",
        "what is done to each image, several in their order: `data.augment=crop,flip,autoaugment`",
    ),
    "mix": ("Mixing", "mix", "what is done to the samples of a batch together"),
    "optimizer": ("Around the optimiser", "wrapper", "two passes a step, with any loss"),
    "posthoc": ("After training", "", "on scores in a file: `classgap fix`, `classgap.posthoc`"),
}
HEAD = """\
# Methods

Generated from the code by `python benchmarks/methods_page.py`; `classgap methods NAME` shows the same on the command line.
Every loss runs with `classgap train --set method=NAME`, and everything else goes around it:

```
classgap train --set data=cifar100 --set model=resnet32 --set method=mr2 --set method.lam=0.06
classgap train --set method=drw --set method.base=ldam                 # LDAM with deferred re-weighting
classgap train --set sampler=class_balanced --set sampler.start_epoch=160   # deferred re-sampling
classgap train --set method=logit_adjusted --set wrapper=sam --set mix=mixup
classgap train --set method=mr2 --set stage=crt                        # a second stage, in the same command
classgap train --set method=mr2 --set data.augment=crop,flip,autoaugment
classgap train --set model.head=causal --set model.head.alpha=1.5      # causal norm: removes the common direction at test time
```

What a method *needs* is supplied by the training loop: a cosine head is chosen, class counts, epochs and sample indices are
passed, several views are drawn, several networks built, a teacher is trained first (or taken from `teacher=FOLDER`), and a
loss that works with the weights of the last layer (*head*) gets it through `bind_head`.
In a loop of your own, a loss that misses something says so by name. The tables of the papers are suites of their own:
`classgap bench benchmarks/papers/mr2.py`, `elm.py`, `dbm.py` and `marc.py`, with the published settings and for a GPU.

With `--devices N` losses, samplers, stages and teachers give the results of one process, but for three things: BatchNorm has its
statistics of each process, `mr2` and `elm` form pairs within a process unless `method.gather=true`, and a last batch of fewer
than two samples a process is left out.

**Cost** is the CPU time of a training step as a multiple of cross-entropy's, on a ResNet-20 with {batch} images of 32 × 32 and
{classes} classes (`benchmarks/methods_cost.py`, {cpu}, one thread); differences of 0.1 are noise. On larger networks, methods
that only add arithmetic on logits or features come closer to 1. For stages and samplers it is that of a whole run of
{run_epochs} epochs on digits with a tail of 10: second stages of a fixed length weigh less in a longer one.

**Measured** is the difference to cross-entropy in points, with its 95 % interval over test samples and seeds, ↑ ↓ where that
leaves out 0: of each method with its defaults, a network of one hidden layer on frozen features of CIFAR-100
(`benchmarks/evidence/field.py`, {seeds} seeds, last epoch, cross-fitted hard third).
{tasks}. Augmentation is measured on images, by the suites *cifar10* and *fashion* beside it.
Among so many methods a few differ by chance, and nothing was tuned: what pays off with augmentation, a large network or another
learning rate does not show there. Pictures, images and verdicts are in [evidence](evidence.md).
"""


def page() -> str:
    """The whole page."""
    timed, measured = (json.loads((HERE / f"methods_{what}.json").read_text()) for what in ("cost", "measured"))
    assert set(KINDS) == set(get_args(registry.Kind))
    tasks = ", ".join(f"*{name}*: {note}" for name, note in measured["tasks"].items())
    parts = [HEAD.format(**timed["setting"], cpu=timed["machine"]["cpu"], seeds=measured["seeds"], tasks=tasks)]
    for kind, (title, section, about) in KINDS.items():
        cards = sorted((card(m) for m in registry.methods(kind)), key=lambda c: (c.family, c.name))
        costs, figures = timed["cost"].get(kind, {}), measured["figures"].get(kind, {})
        setter = f"`--set {section}=NAME`: " if section else ""
        parts += [f"## {title}\n\n{setter}{about}.\n", _table(cards, costs)]
        parts += [_card(c, costs.get(c.name), _effect(figures.get(c.name, {}), measured["seeds"])) for c in cards]
    return "\n".join(parts)


def _table(cards: list[Card], costs: dict[str, float]) -> str:
    heading = ["name", "family", "needs", "paper", "parameters = default (search range)", *(["cost"] if costs else [])]
    rows = []
    for c in cards:
        searched = "; ".join(f"{p.name} = {p.default} ({_cell(p.range)})" for p in c.parameters if p.search)
        cost = [f"{costs[c.name]:.1f}"] if costs else []
        rows.append([f"[{c.name}](#{_anchor(c)})", c.family, ", ".join(c.needs), _paper(c.paper), searched, *cost])
    return _rows(heading, rows)


def _effect(figures: dict[str, dict[str, Any]], seeds: int) -> str:
    """``task overall …, hard …`` for each task; what was not measured, and runs that are missing, are said."""
    parts = []
    for task, found in figures.items():
        runs = f"{found['runs']} of {seeds} runs" if found["runs"] + found["diverged"] < seeds else ""
        runs += f"{', ' if runs else ''}{found['diverged']} diverged" if found["diverged"] else ""
        deltas = ", ".join(f"{group} {found[group]}" for group in ("overall", "hard") if group in found)
        parts.append(f"{task} {deltas or '–'}{f' ({runs})' if runs else ''}")
    return "; ".join(parts)


def _card(c: Card, cost: float | None, effect: str) -> str:
    facts = [c.family, _paper(c.paper), f"needs {', '.join(c.needs)}" if c.needs else "needs nothing more"]
    plain = "a plain run" if c.kind in ("stage", "sampler") else "cross-entropy"
    facts += [] if cost is None else [f"cost {cost:.1f} × {plain}"]
    facts += [] if c.soft_targets else ["hard labels only"]
    facts += [f"the same as {c.reduces_to}"] if c.reduces_to else []
    lines = [f'<a id="{_anchor(c)}"></a>', f"### {c.name}", " · ".join(facts), markdown(c.summary), markdown(c.what)]
    texts = {"When": c.when_to_use, "Expect": c.expect, "Measured": effect, "Pitfalls": c.pitfalls}
    lines += [f"**{title}:** {markdown(text)}" for title, text in texts.items() if text]
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
