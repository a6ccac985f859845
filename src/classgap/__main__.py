"""``python -m classgap``: the command line where its script is not on the path."""

from classgap.cli import main

main()
