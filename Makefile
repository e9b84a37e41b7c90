# Every target does its own set-up: a virtual environment in .venv, filled once per change of the pins.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LIGHT  := $(VENV)/.light
READY  := $(VENV)/.ready
LINTED := $(VENV)/lint.log
# What the laboratory's tests passed with last: a digest of all that they depend on.
TRIED  := $(VENV)/.laboratory

# Byte code is written: the engines' processes, which tests start by the dozen, would each compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help kernel setup test test-all checked lint demo docs site package lock lock-check bench catalogue clean
help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

# pip would compile everything to byte code, on one core; what is imported is compiled when it is.
INSTALL = supply/timed.sh 'installing' $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	--constraint constraints.txt

# In two steps, because the demo needs little: a tenth of what the tests do.
$(LIGHT): pyproject.toml packages/lab/pyproject.toml constraints.txt
	@echo "The core, matplotlib and the laboratory: about 90 MB to download, 300 MB in $(VENV)."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable . --editable packages/lab
	@touch $@

# All is compiled now: what a compiler warns of in other people's sources would fail the first test that imports them. Some
# packages hold templates that are no Python: what they say is not heard.
$(READY): $(LIGHT)
	@echo "Two engines, PyTorch and the tools: 2.7 GB in $(VENV) with PyTorch for CPUs, 6 GB with PyTorch for GPUs."
	@$(INSTALL) --editable '.[dev]' --editable 'packages/lab[torch]'
	@supply/timed.sh 'compiling to byte code' $(BIN)/python -m compileall -qq -j 0 -x '[/](tests?|_inductor)[/]' $(VENV)/lib || true
	@touch $@

# The library is named by a digest of its sources, so this builds it after a change and does nothing otherwise.
KERNEL = @$(BIN)/python -m quietbit.kernel.c >/dev/null

kernel: $(READY) ## build the C kernel, if its sources changed
	$(KERNEL)

setup: kernel    ## make the virtual environment

test:            ## lint, types and the tests; the laboratory's where it or the library has changed
	@digest=$$($(PYTHON) supply/laboratory.py); \
	if test "$$digest" = "$$(cat $(TRIED) 2>/dev/null)"; then \
		echo 'tests/lab passed with these sources already, and is left out; make test-all runs it.'; \
		left_out=--ignore=tests/lab; \
	fi; \
	$(MAKE) --no-print-directory checked MARKED='not long' LEFT_OUT="$$left_out"

test-all:        ## the same with the long ones: deployments that fail, power studies, packages, the browser
	@$(MAKE) --no-print-directory checked MARKED=''

# Lint and types beside the tests; what they say comes last.
checked: kernel
	@$(MAKE) --no-print-directory lint >$(LINTED) 2>&1 & lint=$$!; \
	export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1; \
	digest=$$($(PYTHON) supply/laboratory.py); \
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m '$(MARKED)' $(LEFT_OUT); \
	tests=$$?; test $$tests -ne 0 || echo $$digest >$(TRIED); wait $$lint; linted=$$?; cat $(LINTED); \
	test $$tests -eq 0 && test $$linted -eq 0

lint: $(READY)   ## ruff and mypy --strict, over the package, its examples and benchmarks, and the pages' examples
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python docs/hooks/page_examples.py $(VENV)/page-examples
	$(BIN)/mypy $(VENV)/page-examples

demo: $(LIGHT)   ## train privately on digits under three trust models, and write a report
	$(KERNEL)
	@$(BIN)/quietbit demo --out demo-output

docs: site       ## build the documentation and serve it at http://127.0.0.1:8000 until Ctrl-C
	@echo "reading at http://127.0.0.1:8000, Ctrl-C to stop"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000 2>/dev/null || true

site: $(READY)   ## build the documentation into site/; warnings are errors
	$(BIN)/python docs/hooks/command_line.py
	$(BIN)/python docs/hooks/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(READY)  ## build wheel and sdist into dist/, and try them in an empty environment
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist packages/lab
	$(BIN)/python -m pytest -q tests/packaging

lock: $(READY)   ## pin and hash what each role installs, into supply/locks
	UV=$(BIN)/uv supply/lock.sh

PYTHONS ?= python3.11 python3.12 python3.13
lock-check:      ## resolve all pins for every Python of PYTHONS that is found; installs nothing
	@supply/lock_check.sh $(PYTHONS)

bench: kernel    ## run every benchmark and print its table
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

catalogue: $(READY)  ## solve the shipped designs and profiles anew
	PYTHONPATH=tests $(BIN)/python -m core.design.catalogue_maker

clean:           ## remove the virtual environment and what was made
	rm -rf $(VENV) demo-output dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
