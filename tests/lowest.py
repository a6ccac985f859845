"""Print the oldest versions that ``pyproject.toml`` allows, as requirements for pip.

    pip install -r lowest.txt .        # where lowest.txt is what this prints

``make lowest`` tests the half without torch with them. Libraries whose tables classgap reads are among them, though it does not
require them: new ones may refuse an old NumPy.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

TABLES = ("pandas", "pyarrow")


def lowest(requirement: str) -> str:
    """The requirement with ``>=`` replaced by ``==``.

    Example:
        >>> lowest("numpy>=1.26")
        'numpy==1.26'
    """
    name, _, version = requirement.partition(">=")
    return f"{name}=={version}"


def main() -> None:
    settings = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    tables = [text for text in settings["dependency-groups"]["test"] if str(text).startswith(TABLES)]
    print("\n".join(lowest(requirement) for requirement in [*settings["project"]["dependencies"], *tables]))


if __name__ == "__main__":
    main()
