# Each target does all its set-up: a virtual environment in .venv, installed under constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo docs test test-fast lint peers clean

help: ## what there is
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/'

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing weft and its demo data (about a minute) ..."
	$(BIN)/python -m pip install $(PIP_FLAGS) -e '.[data,report]'
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing weft with everything its tests need (about two minutes) ..."
	$(BIN)/python -m pip install $(PIP_FLAGS) -e '.[dev]'
	@touch $@ .venv/.demo

# Seconds since 1970: every demo has a run of its own.
DEMO := runs/demo-$(shell date +%s)

demo: .venv/.demo ## plan, train on real data, and write a page about it: under 5 minutes
	$(BIN)/weft data get qm9
	@mkdir -p runs
	$(BIN)/weft compile
	$(BIN)/weft plan molecules --limit 20000 --epochs 6 --budget 90 --out $(DEMO)-plan.json
	$(BIN)/weft train molecules --limit 20000 --epochs 6 --plan $(DEMO)-plan.json --out $(DEMO)
	$(BIN)/weft report $(DEMO)
	@echo "Open $(DEMO)/report.html in a browser. To use weft in this shell: . .venv/bin/activate"

# In one process: tutorials run while it builds, and each may use a core.
docs: .venv/.dev ## the site in build/site, tutorials run, without a network: under 3 minutes
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going -b html docs build/site

lint: .venv/.dev ## style, types, import rules
	$(BIN)/ruff check src tests docs/conf.py docs/pictures
	$(BIN)/ruff format --check src tests docs/conf.py docs/pictures
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# A worker a core, each with one thread. Tests of a file share what they have made, so they run in
# one worker; the files in the order that tests/conftest.py gives them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: lint ## everything that CI runs: about 15 minutes on 2 cores
	$(PYTEST)

test-fast: .venv/.dev ## what a contributor runs at every change: a minute
	$(PYTEST) -m "not slow"

peers: .venv-peers/.done ## an environment of their own for the libraries in the benchmarks
.venv-peers/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install $(PIP_FLAGS) '.[peers]'
	.venv-peers/bin/python -m pip install $(PIP_FLAGS) --no-deps schnetpack ptgnn rigl-torch
	@echo "Compiling torch-scatter for ptgnn (about seven minutes) ..."
	.venv-peers/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation --no-deps torch-scatter
	@echo "Compiling sparseprop (about a minute) ..."
	.venv-peers/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation --no-deps sparseprop
	@touch $@

clean: ## remove the environments and caches
	rm -rf .venv .venv-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis
