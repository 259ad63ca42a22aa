# Two commands for a fresh clone: `make demo` and `make test`. Both set up .venv first and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
# With uv on the machine, the files that uv.lock names by their hashes; else pip, held to the same versions by constraints.txt.
ifdef UV
PIP := $(UV) pip install --python $(BIN)/python --constraint constraints.txt
install = UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --frozen --inexact --no-default-groups --extra $(1) $(2:%=--group %)
else
PIP := $(BIN)/python -m pip install --constraint constraints.txt
install = $(PIP) $(2:%=--group %) --editable '.[$(1)]'
endif
# Tests run on this many processes.
JOBS ?= auto

.PHONY: help demo play wheel test check format lint types docs tests order bench floors release-check clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.runtime ## Make the gallery of pictures (gallery/index.html)
	$(BIN)/algonet demo --force

play: $(VENV)/.play ## Open the playground in the browser
	$(BIN)/algonet play

wheel: $(VENV)/.wheel ## Build dist/algonet_torch-VERSION-py3-none-any.whl, which pip installs anywhere
	$(BIN)/python -m hatchling build -t wheel
	@ls dist/*.whl

test: check ## Every check: format, lint, types, docs, tests, doctests

# What does not run the package, side by side; then its tests, which take all cores themselves.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs 2 lint types docs
	@$(MAKE) --no-print-directory tests
	@echo "all checks passed"

lint: $(VENV)/.dev ## Formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.dev ## Reformat, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.dev ## Static types
	$(BIN)/pyright

docs: $(VENV)/.dev ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

tests: $(VENV)/.dev ## Tests and doctests
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

order: $(VENV)/.dev ## Tests in random order, then each file alone
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --shuffle
	$(BIN)/python tests/alone.py

bench: $(VENV)/.dev ## Benchmarks this machine can run, beside the peers
	$(BIN)/python -m benchmarks

floors: $(VENV)/.dev ## Tests with the oldest and newest releases of what we stand on, each in an environment of its own
	$(BIN)/python tests/floors.py

release-check: $(VENV)/.torch ## Build, check and install both distributions in empty environments; uploads nothing
	$(PIP) --group release
	$(BIN)/python tests/release.py

# torch is asked for first, alone and pinned: a range would take the newest build there is.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.runtime: $(VENV)/.torch pyproject.toml
	$(call install,cli)
	@touch $@

$(VENV)/.play: $(VENV)/.torch pyproject.toml
	$(call install,play)
	@touch $@ $(VENV)/.runtime

$(VENV)/.wheel: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) hatchling
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(call install,all,dev)
	@touch $@ $(VENV)/.runtime $(VENV)/.play $(VENV)/.wheel

clean: ## Remove everything that was made
	rm -rf $(VENV) site gallery dist build .pytest_cache .ruff_cache .hypothesis
