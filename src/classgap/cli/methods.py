"""``classgap methods``: list every method with its parameters and inputs, or show the card of one method."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from classgap.checks import InputError, did_you_mean
from classgap.cli.options import Plugins

if TYPE_CHECKING:
    from rich.console import Console

    from classgap.cards import Card


def methods(
    name: Annotated[str | None, typer.Argument(help="Name of a method; shows its card.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    plugin: Plugins = None,
) -> None:
    """List every method with its parameters, or explain one method."""
    from classgap.cli.output import console

    cards, missing = _all_cards()
    if name is not None:
        known = {card.name for card in cards}
        if name not in known:
            hint = f"; {missing[0]}" if missing else ""
            raise InputError(did_you_mean(name, known, what="method") + hint)
        cards = [card for card in cards if card.name == name]
    if as_json:
        typer.echo(json.dumps([card.to_dict() for card in cards], indent=2, ensure_ascii=False))
    elif name is None:
        _print_table(cards, console())
    else:
        for card in cards:
            _print_card(card, console())
    for note in missing:
        typer.echo(note, err=True)


def _all_cards() -> tuple[list[Card], list[str]]:
    """Cards of every kind of method that can be imported, and for each other kind why it cannot."""
    from classgap import registry
    from classgap.cards import card

    cards, missing = [], []
    for kind in get_args(registry.Kind):
        try:
            cards += [card(method) for method in registry.methods(kind)]
        except InputError as error:
            missing.append(str(error))
    return sorted(cards, key=lambda c: (c.kind, c.family, c.name)), missing


def _print_table(cards: list[Card], out: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for kind in dict.fromkeys(card.kind for card in cards):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=kind, title_justify="left", title_style="bold")
        for heading in ("name", "family"):
            table.add_column(heading, no_wrap=True)
        table.add_column("needs", max_width=24)
        table.add_column("paper", max_width=17)
        table.add_column("parameter = default (search range)", min_width=36)
        for card in (card for card in cards if card.kind == kind):
            searched = (f"{p.name} = {p.default} ({p.range})" for p in card.parameters if p.search)
            cells = (card.name, card.family, ", ".join(card.needs), card.paper, "\n".join(searched))
            table.add_row(*(Text(cell) for cell in cells))
        out.print(table)
    out.print("`classgap methods NAME` explains a method and lists all its parameters.", style="dim")


def _print_card(card: Card, out: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from classgap.cards import plain

    out.print(Text.assemble((card.name, "bold"), f"  {plain(card.summary)}"))
    facts = [
        card.kind,
        card.family,
        card.paper,
        f"needs {', '.join(card.needs)}" if card.needs else "no further inputs",
    ]
    out.print(Text(" · ".join(facts), style="dim"))
    if not card.soft_targets:
        out.print(Text("hard labels only: cannot be combined with mixup or label smoothing", style="dim"))
    if card.reduces_to:
        out.print(Text(f"equal to {card.reduces_to}", style="dim"))
    texts = {"": card.what, "When to use: ": card.when_to_use, "Expect: ": card.expect, "Pitfalls: ": card.pitfalls}
    for heading, text in texts.items():
        for i, paragraph in enumerate(filter(None, plain(text).split("\n\n"))):
            out.print()
            out.print(Text.assemble((heading if i == 0 else "", "bold"), " ".join(paragraph.split())))
    if card.parameters:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("parameter", "default", "search range", "meaning"):
            table.add_column(heading, overflow="fold")
        for p in card.parameters:
            table.add_row(*(Text(cell) for cell in (p.name, str(p.default), p.range, plain(p.meaning))))
        out.print(table)
