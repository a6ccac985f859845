# Each target does all its own set-up on a fresh machine; a second call installs nothing.
VENV ?= .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
# The folder is part of the stamp: an environment that outlives its checkout must be pointed at the new one.
KEY := $(shell { cat pyproject.toml Makefile; pwd; } | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.installed-$(KEY)
DOCS_STAMP := $(VENV)/.docs-$(KEY)
# Two test processes, one thread each: faster on two cores than one process with two threads.
JOBS ?= 2

# How `make wheel` gets torch: "link" borrows the one of $(VENV), "install" downloads it, "none" tests only the half without it.
TORCH ?= link
# Old typer with new click, and the checks of old scikit-learn with new pytest: pip installs them side by side.
LOWEST_WARNINGS = -W "ignore:'click:DeprecationWarning" -W "ignore:Passing a non-Collection iterable"
SPHINX = $(PY) -m sphinx -W --keep-going -n -q -d docs/_build/doctrees -b html docs

.PHONY: help install demo test lint types unit test-slow test-new docs check-docs wheel lowest browser clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## virtual environment with the package and its development tools

$(STAMP):
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -m pip install --quiet -e '.[vision]' --group dev
	rm -f $(VENV)/.installed-* && touch $@

$(DOCS_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --group docs
	rm -f $(VENV)/.docs-* && touch $@

demo: install  ## train cross-entropy, MR² and compact logits on digits, compare them, write report pages
	$(VENV)/bin/classgap demo

test: lint types unit check-docs  ## everything CI runs

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: install
	$(VENV)/bin/mypy

unit: install browser
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist worksteal

# Tests that kill processes or start several end only their own, and each has its own folder and port: two at a time are safe.
test-slow: install browser  ## the longer checks
	OMP_NUM_THREADS=1 $(PY) -m pytest -m slow -n $(JOBS) --dist worksteal

test-new: install  ## generated calls and arguments with new examples each time; a failure prints how to repeat it
	OMP_NUM_THREADS=1 $(PY) -m pytest -m slow -n $(JOBS) --dist worksteal --hypothesis-profile=new tests/test_arguments.py tests/test_loss_arguments.py tests/test_every_verb.py

docs: $(DOCS_STAMP)  ## documentation site in docs/_build/html; warnings are errors, nothing is downloaded
	OMP_NUM_THREADS=1 $(SPHINX) docs/_build/html
	@echo "open docs/_build/html/index.html"

check-docs: $(DOCS_STAMP)  ## the same pages without running the examples, which the tests do
	OMP_NUM_THREADS=1 $(SPHINX) docs/_build/check -D plot_gallery=0

wheel: install  ## source archive and wheel in dist/, installed and tried in a clean environment, without and with torch
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(PY) tests/check_wheel.py dist --torch $(TORCH)

# The environment is made by $(PYTHON), which should be the oldest Python that is allowed.
lowest:  ## tests of the half without torch, with the oldest dependencies that pyproject.toml allows
	rm -rf $(VENV)-lowest && $(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) tests/lowest.py > $(VENV)-lowest/lowest.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-lowest/bin/python -m pip install --quiet -r $(VENV)-lowest/lowest.txt -e . --group test
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -n $(JOBS) --dist worksteal $(LOWEST_WARNINGS)

# The report is tested in a real browser. Debian's package is installed where that is possible; elsewhere those tests skip.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium found and none could be installed: browser tests will be skipped"

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist docs/_build docs/examples
