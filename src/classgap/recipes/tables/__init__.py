"""The tables of the four papers as suites: published number, own number, difference, or "not run"."""
