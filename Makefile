# make train | test | setup | lint | docs | clean | help
CONFIG ?= tuned_examples/alfworld_pocket.yaml
ARGS ?=
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12,$(shell command -v $p)) python3)
BIN := .venv/bin
NO_TESTS_SELECTED = [ $$? -eq 5 ]  # pytest exits with 5 if ARGS select no test

.DEFAULT_GOAL := help
.PHONY: help setup train test lint docs clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# Does nothing if .venv/.installed-<hash of the lock file> exists.
setup:  ## create .venv with the locked environment (HGPO_BACKEND=cpu|gpu to choose)
	@$(PYTHON) requirements/install.py

train: setup  ## train an agent: make train [CONFIG=tuned_examples/X.yaml] [ARGS="key=value ..."]
	$(BIN)/hgpo train $(CONFIG) $(ARGS)

# Containers often set PYTHONDONTWRITEBYTECODE. Without this line, every test process would compile
# all sources again.
test: export PYTHONDONTWRITEBYTECODE =
test: setup  ## run the unit and integration tests: make test [ARGS="-k name"]
	$(BIN)/python -m pytest tests/unit --numprocesses auto --maxprocesses 8 --dist worksteal $(ARGS) || $(NO_TESTS_SELECTED)
	$(BIN)/python -m pytest tests/integration --numprocesses 2 $(ARGS) || $(NO_TESTS_SELECTED)

lint: setup  ## check style, spelling, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: setup  ## build the documentation site into site/, any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove .venv and caches; runs, models and data stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
