# Every target does its own set-up: a virtual environment in .venv, filled once per change of the pins.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help setup test lint demo docs site package bench catalogue clean
help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

setup: $(READY)  ## make the virtual environment

test: $(READY) lint  ## lint, types and the whole test suite
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(READY)   ## ruff and mypy --strict, over the package, its examples and its benchmarks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)   ## train privately on digits with four mechanisms, and write a report
	$(BIN)/quietbit demo --out demo-output

docs: site       ## build the documentation and serve it at http://127.0.0.1:8000 until Ctrl-C
	@echo "reading at http://127.0.0.1:8000, Ctrl-C to stop"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000 2>/dev/null || true

site: $(READY)   ## build the documentation into site/; warnings are errors
	$(BIN)/python docs/hooks/command_line.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(READY)  ## build wheel and sdist into dist/, and try them in an empty environment
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m pytest -q tests/packaging

bench: $(READY)  ## run every benchmark and print its table
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

catalogue: $(READY)  ## solve the shipped designs and profiles anew
	$(BIN)/python -m quietbit.design.catalogue
	$(BIN)/python -m quietbit.mechanism.solve_profile

clean:           ## remove the virtual environment and what was made
	rm -rf $(VENV) demo-output dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
