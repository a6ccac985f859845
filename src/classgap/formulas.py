r"""Formulas of docstrings, written in LaTeX, as a line of plain text for the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SYMBOLS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "varepsilon": "ε",
    "zeta": "ζ",
    "eta": "η",
    "theta": "θ",
    "lambda": "λ",
    "mu": "μ",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "phi": "φ",
    "chi": "χ",
    "psi": "ψ",
    "omega": "ω",
    "Delta": "Δ",
    "Lambda": "Λ",
    "Omega": "Ω",
    "ell": "ℓ",
    "infty": "∞",
    "times": "×",
    "cdot": "·",
    "sum": "Σ",
    "le": "≤",
    "ge": "≥",
    "ne": "≠",
    "pm": "±",
    "in": "∈",
    "leftarrow": "←",
    "to": "→",
    "propto": "∝",
    "sim": "∼",
    "nabla": "∇",
    "top": "ᵀ",
    "|": "‖",
    **dict.fromkeys([",", ";", " ", "quad", "qquad"], " "),
    **dict.fromkeys(["!", "big", "Big", "left", "right", "textstyle"], ""),
}
_ACCENTS = {"hat": "\N{COMBINING CIRCUMFLEX ACCENT}", "tilde": "\N{COMBINING TILDE}", "bar": "\N{COMBINING MACRON}"}
_STYLES = ("mathrm", "operatorname", "text", "mathop")
_RELATIONS = "=≤≥≠∝∼←→∈"
_WORD = re.compile(r"[^\W_]*[\u0302-\u0304]?")  # an index or a power that needs no brackets
_FACTOR = re.compile(r"[0-9]+|[^\W_](_\w+)?(\^\w)?|‖[^‖]*‖|\|[^|]*\|")  # above or below the line of a fraction


def linear(formula: str) -> str:
    r"""A LaTeX formula on one line, with ``/`` for fractions and brackets where an index, a power or a fraction needs them.

    Example:
        >>> linear(r"\tfrac1N\sum_i \frac{n_{y_i} e^{z_y}}{\lambda + 1} + \tfrac\lambda2\|\bar c\|^2")
        '1/N Σ_i (n_(y_i) e^(z_y))/(λ + 1) + λ/2 ‖c̄‖^2'
    """
    tokens = iter(re.findall(r"\\[A-Za-z]+|\\.|\s+|.", formula))
    text = re.sub(rf" *([{_RELATIONS}]) *", r" \1 ", _sequence(tokens)) if "\\" in formula else _sequence(tokens)
    return re.sub(r" ([,)\]])", r"\1", " ".join(text.split()))


def _sequence(tokens: Iterator[str]) -> str:
    """What stands before the next closing brace."""
    done = ""
    for token in tokens:
        if token == "}":
            break
        part = _part(token, tokens)
        # The name of a function, such as ln, does not touch a letter.
        done += " " + part if done[-1:].isalpha() and part[:1].isalpha() and "\\" in token and len(part) > 1 else part
    return done


def _part(token: str, tokens: Iterator[str]) -> str:
    name = token.removeprefix("\\") if len(token) > 1 else token
    if token == "{":
        return _sequence(tokens)
    if token in "^_":
        script = _argument(tokens)
        return script if script == "ᵀ" else token + (script if _WORD.fullmatch(script) else f"({script})")
    if not token.startswith("\\"):
        return token
    if name in ("frac", "tfrac"):
        over, under = (
            part if _FACTOR.fullmatch(part) else f"({part})" for part in (_argument(tokens), _argument(tokens))
        )
        return f"{over}/{under} "
    if name == "sqrt":
        inside = _argument(tokens)
        return f"√{inside}" if _FACTOR.fullmatch(inside) else f"√({inside})"
    if name in _ACCENTS:
        return _argument(tokens) + _ACCENTS[name]
    if name in _STYLES:
        return _argument(tokens, keep=True)
    return _SYMBOLS.get(name, name + " " if name in ("ln", "log", "sin", "cos", "arg") else name)


def _argument(tokens: Iterator[str], *, keep: bool = False) -> str:
    """The next part; ``keep`` for one whose spaces mean something."""
    found = next((_part(token, tokens) for token in tokens if not token.isspace()), "")
    return found if keep else found.strip()
