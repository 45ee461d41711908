# `make run` and `make test` are all a newcomer needs: each makes its own environment first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# See holdout/__main__.py: without this, two busy processes on shared cores crawl.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: run test check format bench readme soak clean

run: $(READY)  ## The demo: HoldOut SGD against Krum and others, under attack, offline.
	$(BIN)/holdout run

test: $(READY)  ## Everything CI runs: lint, types, import contracts, all tests.
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -n auto

check: $(READY)  ## The developer's loop: the same without the slow tests.
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -n auto -m "not slow"

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY)  ## Speed, as ratios within one run; writes bench/results.json.
	$(BIN)/python -m bench.run

readme: $(READY)  ## The README's table: the demo with ten seeds (about ten minutes).
	rm -rf runs/readme
	$(BIN)/holdout run --set experiment.seeds='[0,1,2,3,4,5,6,7,8,9]' --out runs/readme
	$(BIN)/python tools/readme_table.py runs/readme

soak: $(READY)  ## Long end-to-end tests, many seeds.
	$(BIN)/python -m pytest -q -n auto --soak

# The constraints pin every version; torch above all, whose newest build pulls gigabytes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
