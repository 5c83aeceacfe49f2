# Everything happens in .venv, made from pyproject.toml and constraints.txt when it is missing or older than they are.
# `make run` installs what mixwise needs to run; the other commands add what they need ('.[dev]', '.[docs]', '.[bench]').
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# --no-compile: Python compiles the few modules that are used when they are first imported, not the thousands that are not;
# it must be allowed to keep them, or every start would compile torch again.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
# One thread per worker; tests of processes wait a lot, so that two cores have room for three workers.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

.PHONY: help setup run test test-soak test-trainers test-numerics test-benchmarks lint build tables docs bench clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/'

setup: $(READY)-dev  ## make .venv with everything that tests and checks need

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mixwise needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing mixwise into $(VENV). PyTorch is the largest part; this takes a few minutes, once."
	@$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(READY)-%: $(READY)
	@echo "Adding the packages of 'mixwise[$*]' to $(VENV)."
	$(PIP) -e '.[$*]'
	@touch $@

run: $(READY)  ## the paper's quadratic experiment: table, figures, folder
	$(BIN)/mixwise run quadratics

test: $(READY)-dev  ## all tests but the longest ones
	$(PYTEST) -m 'not soak and not trainers'

test-soak: $(READY)-dev  ## the tests that make test leaves out
	$(PYTEST) -m soak

test-trainers: $(READY)-dev $(READY)-trainers  ## the tests with accelerate, Lightning, PEFT and the Trainer of Hugging Face
	$(PYTEST) -m trainers

test-numerics: $(READY)-dev  ## the tests of bits and rounding, under the code paths of several processors
	$(BIN)/python tests/processors.py -n 2 --dist loadgroup -q -m numerics

test-benchmarks: $(READY)-dev  ## every benchmark in a small size, to see that it runs
	$(PYTEST) tests/test_benchmarks.py

lint: $(READY)-dev  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

build: $(READY)-dev  ## the wheel and the source archive, in dist/
	$(BIN)/python -m build --outdir dist .

tables: $(READY)-dev  ## what follows from the declarations of parts: the index, and tables in the documentation
	$(BIN)/python docs/tables.py

docs: $(READY)-docs  ## the documentation site, in docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

SUITES ?=
bench: $(READY)-bench  ## ratios against the alternatives, and runs/bench.json; all suites: make bench SUITES=all
	$(BIN)/mixwise bench $(SUITES)

clean:  ## remove what the commands above made
	rm -rf $(VENV) dist build docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
