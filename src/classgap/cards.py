"""What a reader wants to know of a method, read from its declaration and docstring: for the command line and the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from classgap.formulas import linear
from classgap.registry import Choice, Method, Space

_SECTIONS = ("When to use", "Expect", "Pitfalls", "Args", "Attributes", "Shape", "Example", "Reference")


@dataclass(frozen=True)
class Parameter:
    """One constructor argument."""

    name: str
    default: Any
    search: Space | None
    meaning: str

    @property
    def range(self) -> str:
        """The search range in words, empty if it is not searched."""
        if self.search is None:
            return ""
        if isinstance(self.search, Choice):
            return " | ".join(str(option) for option in self.search.options)
        return f"{self.search.low:g} … {self.search.high:g}{' log' if self.search.log else ''}"


@dataclass(frozen=True)
class Card:
    """A method in a few paragraphs. Texts are reStructuredText as written in the docstring; see :func:`plain`."""

    name: str
    kind: str
    family: str
    paper: str
    needs: tuple[str, ...]
    soft_targets: bool
    reduces_to: str | None
    summary: str
    what: str
    when_to_use: str
    expect: str
    pitfalls: str
    parameters: tuple[Parameter, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "needs": list(self.needs), "parameters": [asdict(p) for p in self.parameters]}


def card(method: Method) -> Card:
    """The card of a method."""
    sections = _sections(inspect.getdoc(method.cls) or "")
    meanings = _meanings(method.cls)
    defaults = {**{name: space.default for name, space in method.space.items()}, **method.defaults}
    return Card(
        name=method.name,
        kind=method.kind,
        family=method.family,
        paper=method.paper,
        needs=tuple(sorted(method.needs)),
        soft_targets=method.soft_targets,
        reduces_to=_identity(method),
        summary=method.summary,
        what=sections[""],
        when_to_use=sections.get("When to use", ""),
        expect=sections.get("Expect", ""),
        pitfalls=sections.get("Pitfalls", ""),
        parameters=tuple(
            Parameter(name, default, method.space.get(name), meanings.get(name, ""))
            for name, default in defaults.items()
        ),
    )


def plain(text: str) -> str:
    r"""reStructuredText and LaTeX as plain text; a displayed formula is a paragraph of its own.

    Example:
        >>> plain(r"with ``tau=1`` and :math:`\pi_k = n_k/n_{\max}`, see :func:`x`")
        'with tau=1 and π_k = n_k/n_max, see x'
    """
    text = re.sub(r"(?m)^\.\. math::(.*\n(?:[ \t]+.*\n|\n(?=[ \t]))*)", lambda m: f"\n{linear(m[1])}\n\n", text + "\n")
    text = re.sub(r":math:`([^`]*)`", lambda m: linear(m[1]), text)
    text = re.sub(r"(?m)::$", ":", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
    text = re.sub(r"(?<!\*)\*(?!\*)([^*\n]+)\*", r"\1", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _identity(method: Method) -> str | None:
    if method.reduces_to is None:
        return None
    other, params = method.reduces_to
    with_params = ", ".join(f"{key}={value}" for key, value in params.items())
    return f"{other} with {with_params}" if with_params else other


def _sections(doc: str) -> dict[str, str]:
    """Text under each heading; what stands before the first, without the summary line, is under the empty one."""
    pattern = re.compile(rf"^({'|'.join(_SECTIONS)}):[ \t]*", re.MULTILINE)
    parts = pattern.split(doc)
    found = {"": parts[0].partition("\n")[2].strip()}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = text.rstrip()
    return found


def _meanings(cls: Callable[..., Any]) -> dict[str, str]:
    """What the arguments of a class mean; what a base class says counts unless the class says otherwise."""
    meanings: dict[str, str] = {}
    for ancestor in reversed(getattr(cls, "__mro__", (cls,))):
        if ancestor.__module__.partition(".")[0] == cls.__module__.partition(".")[0]:
            meanings |= _entries(_sections(inspect.cleandoc(ancestor.__doc__ or "")).get("Args", ""))
    return meanings


def _entries(args: str) -> dict[str, str]:
    """``name: meaning`` entries of an Args section; ``a, b: …`` describes both."""
    entries: dict[str, str] = {}
    text = inspect.cleandoc("\n" + args)
    for block in re.split(r"\n(?=\S)", text):
        names, colon, meaning = block.partition(":")
        if colon:
            for name in names.split(","):
                entries[name.strip()] = " ".join(meaning.split())
    return entries
