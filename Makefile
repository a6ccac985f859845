# Each target does all its own set-up on a fresh machine; a second call installs nothing.
VENV ?= .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
# The folder is part of the stamp: an environment that outlives its checkout must be pointed at the new one.
STAMP := $(VENV)/.installed-$(shell { cat pyproject.toml Makefile; pwd; } | cksum | cut -d' ' -f1)
# Two test processes, one thread each: faster on two cores than one process with two threads.
JOBS ?= 2

.PHONY: help install demo test lint types unit test-slow bench browser clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## virtual environment with the package and its development tools

$(STAMP):
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet -e '.[dev]'
	rm -f $(VENV)/.installed-* && touch $@

demo: install  ## train cross-entropy, MR² and compact logits on digits, compare them, write report pages
	$(VENV)/bin/classgap demo

test: lint types unit  ## everything CI runs

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: install
	$(VENV)/bin/mypy

unit: install browser
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist worksteal

test-slow: install browser  ## the longer checks
	$(PY) -m pytest -m slow

# The report is tested in a real browser. Debian's package is installed where that is possible; elsewhere those tests skip.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium found and none could be installed: browser tests will be skipped"

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
