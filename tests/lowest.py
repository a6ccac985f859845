"""Print the oldest versions that ``pyproject.toml`` allows, as requirements for pip.

    pip install -r lowest.txt .        # where lowest.txt is what this prints

``make lowest`` tests the half without torch with them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path


def lowest(requirement: str) -> str:
    """The requirement with ``>=`` replaced by ``==``.

    Example:
        >>> lowest("numpy>=1.26")
        'numpy==1.26'
    """
    name, _, version = requirement.partition(">=")
    return f"{name}=={version}"


def main() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    print("\n".join(lowest(requirement) for requirement in project["dependencies"]))


if __name__ == "__main__":
    main()
