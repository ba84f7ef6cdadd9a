# What people and CI call. `make` alone lists it; options go into ARGS: make up ARGS="--for 15"
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
BENCH ?= compare
# Tests wait most of the time. The longest tests begin first (tests/conftest.py), so that none runs alone at the end.
PARALLEL ?= -n 6 --dist loadfile --no-loadscope-reorder

# Tests start hundreds of processes: what one has compiled is not compiled again by the next.
export PYTHONDONTWRITEBYTECODE =

# The first of these that is Python 3.11 or newer; a PYTHON that was given is the only candidate.
ifeq ($(origin PYTHON),undefined)
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11 python
else
PYTHONS := $(PYTHON)
endif

.DEFAULT_GOAL := help
.PHONY: help up test matrix check lint types imports proto bench chaos screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

up: $(VENV)/.up ## watch sample jobs fire, on servers of its own; Ctrl-C ends it
	@$(BIN)/scheduler up $(ARGS)

test: $(VENV)/.dev ## run the test suite on temporary servers
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

matrix: ## run the fast tests on Python 3.11 to 3.14; ARGS="3.14" for one of them
	@.ci/matrix $(ARGS)

check: lint imports ## lint, types, imports and tests: what has to hold before a commit
	@$(MAKE) --no-print-directory --jobs=2 types test

lint: $(VENV)/.dev ## look for bad style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.dev ## check the types
	@$(BIN)/mypy

imports: $(VENV)/.dev ## check who imports whom
	@$(BIN)/lint-imports

proto: $(VENV)/.dev ## make the bytes of Conveyor's jobs out of job.proto
	@$(BIN)/python -m tests.conveyor.proto

bench: $(VENV)/.dev ## measure everything beside others; BENCH=growth: how cost grows; or recurring, submit, redis, ring, fleet, acknowledge, observe, web
	@$(BIN)/python bench/$(BENCH).py $(ARGS)

chaos: $(VENV)/.dev ## attack the whole system: ARGS="--minutes 30 --seed 7"
	@$(BIN)/python -m tests.chaos $(ARGS)

screenshots: $(VENV)/.dev ## look at the dashboard with Chromium, into docs/screenshots
	@$(BIN)/python -m tests.browser.screenshots

clean: ## remove the environment, caches and builds; not .matrix
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache dist build
	find scheduler tests bench -name __pycache__ -prune -exec rm -rf {} +

# The environment, made once, and installed into again when pyproject.toml has changed.
$(VENV)/.up: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV): this takes a minute, once"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip # its making was interrupted
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

# Not `pip install --group dev`: a fresh environment often has a pip older than that.
$(VENV)/.dev: pyproject.toml $(VENV)/.up
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/dev.txt
	@touch $@

$(BIN)/python:
	@for python in $(PYTHONS); do \
	  if $$python -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then \
	    if ! $$python -c "import ensurepip, venv" 2>/dev/null; then \
	      echo "$$python cannot make environments: install its venv (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; \
	    fi; \
	    $$python -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	    exit 0; \
	  fi; \
	done; \
	echo "this needs Python 3.11 or newer; tried $(PYTHONS). Name one: make PYTHON=/path/to/python" >&2; exit 1
