"""Write docs/methods.md: every method from its declaration and docstring, with its measured cost and effect.

python benchmarks/methods_page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

from classgap import registry
from classgap.cards import Card, card

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "methods.md"
KINDS: dict[registry.Kind, tuple[str, str, str]] = {
    "loss": ("Losses", "method", "what a network is trained with"),
    "stage": ("Stages", "stage", "runs before or after the main training, with any loss"),
    "sampler": ("Samplers", "sampler", "which samples an epoch visits"),
    "augmentation": (
        "Augmentation",
        "data.augment",
        "applied to each image; several are applied in the given order: `data.augment=crop,flip,autoaugment`",
    ),
    "mix": ("Mixing", "mix", "combines the samples of a batch"),
    "optimizer": ("Around the optimiser", "wrapper", "two passes per step, with any loss"),
    "posthoc": ("After training", "", "on scores in a file: `classgap fix`, `classgap.posthoc`"),
}
HEAD = """\
# Methods

Generated from the code by `python benchmarks/methods_page.py`; `classgap methods NAME` shows the same on the command line.
Every loss runs with `classgap train --set method=NAME`, and everything else can be combined with it:

```
classgap train --set data=cifar100 --set model=resnet32 --set method=mr2 --set method.c_bar=2
classgap train --set method=drw --set method.base=ldam                 # LDAM with deferred re-weighting
classgap train --set sampler=class_balanced --set sampler.start_epoch=160   # deferred re-sampling
classgap train --set method=logit_adjusted --set wrapper=sam --set mix=mixup
classgap train --set method=compact_logits --set stage=crt             # a second stage, in the same command
classgap train --set stage=ensemble --set stage.members=3              # three runs with other seeds, their mean probability
classgap train --set method=distillation --set stage=ensemble_teacher  # one network that learns from such an ensemble
classgap train --set mix=confused_mixup                                # mixup with classes that are confused with each other
classgap train --set data.per_class=40 --set data.spare=20 --set stage=add_samples   # more samples for the hard classes
classgap train --set method=mr2 --set data.augment=crop,flip,autoaugment
classgap train --set model.head=causal --set model.head.alpha=1.5      # causal norm: removes the common direction at test time
```

The training loop supplies what a method *needs*: it chooses a cosine head, passes class counts, epochs and sample indices, draws
several views, builds several networks, trains a teacher first (or takes it from `teacher=FOLDER`), and gives the last layer
(*head*) to a loss that works with its weights, through `bind_head`. In your own training loop, a loss names the argument that is
missing. Each paper has a suite with its tables, with the published settings and for a GPU:
`classgap bench mr2`, `elm`, `dbm` and `marc`, and `mr2_large` to `marc_large` beyond CIFAR; `--tables-only` prints the
published numbers, what was measured beside them, and which rows were not run.

`python examples/two_moons.py` shows such a loop on a toy problem, the two moons of ELM's Fig. 1 with 5 % of the points in one
class. Logit adjustment moves the boundary in favour of the rare class; ELM also draws the embeddings of each class together. The
seed of this picture, 3, was chosen after looking at several. Of the seeds 0 to 9, four give at least one network an
embedding that is zero everywhere; for the other six, ELM has a smaller spread of the head class than logit adjustment each
time, and a smaller spread of the tail class three times:

![Decision regions and two-dimensional embeddings of cross-entropy, logit adjustment and ELM](images/two_moons.png)

With `--devices N` losses, samplers, stages and teachers give the results of one process: pairs form across processes, and
class statistics are those of the whole batch. BatchNorm computes its statistics in each process, and dropout draws other
numbers (see [Many devices](many_devices.md)).

**Cost** is the CPU time of a training step as a multiple of cross-entropy's, on a ResNet-20 with {batch} images of 32 × 32 and
{classes} classes (`benchmarks/methods_cost.py`, {cpu}, one thread); differences of 0.1 are noise. On larger networks, methods
that only add arithmetic on logits or features come closer to 1. For stages and samplers it is the cost of a whole run of
{run_epochs} epochs on digits with an imbalance of 10: a second stage of a fixed length counts less in a longer run.

**Measured** is the difference to cross-entropy in points, with its 95 % interval over test samples and seeds, marked ↑ or ↓ where
the interval excludes 0. Each method has its default settings; the network has one hidden layer on frozen features of CIFAR-100
(`benchmarks/evidence/field.py`, {seeds} seeds, last epoch, cross-fitted hard third).
{tasks}. Augmentation is measured on images, by the suites *cifar10* and *fashion*. A method without this line was not measured.
Among so many methods a few differ by chance, and nothing was tuned: a gain that needs augmentation, a large network or another
learning rate does not show here. Pictures, results on images and verdicts are in [evidence](evidence.md).
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
    """``task overall …, hard …`` for each task, with the number of runs where some are missing or diverged."""
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
