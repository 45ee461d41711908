# `make run` and `make test` are all a newcomer needs: each makes its own environment first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := .venv-bench

# See holdout/__main__.py: without this, two busy processes on shared cores crawl.
export OMP_WAIT_POLICY ?= PASSIVE
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: run run-decentralized test check format bench peers readme docs results dist site soak fuzz clean

run: $(READY)  ## The demo: HoldOut SGD against Krum and others, under attack, offline.
	$(BIN)/holdout run

run-decentralized: $(READY)  ## The same without a server: 40 workers agree on every model; 12 of them lie.
	$(BIN)/holdout run src/holdout/experiments/decentralized.toml

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

bench: $(BENCH)/.ready  ## Speed, as ratios within one run; writes bench/results.json, growth.png.
	$(BENCH)/bin/python -m bench.run

peers: $(BENCH)/.ready  ## Our rules beside ByzFL's, where both are installed.
	$(BENCH)/bin/python -m pytest -q tests/rules/test_byzfl.py

# ByzFL comes without what it depends on: torchvision would pull gigabytes and does not load beside
# a torch for CPUs. The rest is ours, and bench/stand_ins.
$(BENCH)/.ready: $(READY)
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps byzfl==0.0.11
	$(BIN)/python -m bench.environment $(BENCH)
	touch $@

docs: $(READY)  ## docs/api.md, config.md, rules.md and attacks.md, from the docstrings.
	$(BIN)/python tools/api_page.py
	$(BIN)/python tools/reference_pages.py

readme: $(READY)  ## The README's table: the demo with ten seeds (about ten minutes).
	rm -rf runs/readme
	$(BIN)/holdout run --set experiment.seeds='[0,1,2,3,4,5,6,7,8,9]' --out runs/readme
	$(BIN)/python tools/readme_table.py runs/readme

results: $(READY)  ## Everything in docs/results; long, but can be stopped and continued at any time.
	$(BIN)/python tools/paper_queue.py --data $(or $(DATA),$(error DATA=folder with mnist and cifar10)) --runs runs/paper
	$(BIN)/python tools/paper_results.py runs/paper
	$(BIN)/python tools/paper_tables.py
	$(BIN)/python tools/paper_figures.py

dist: $(READY)  ## Wheel and sdist, in dist/.
	rm -rf dist
	$(BIN)/python -m build

site: $(READY)  ## The documentation as a site with search, in build/site/; no broken link.
	$(BIN)/python tools/build_site.py

soak: $(READY)  ## 120,500 seeds of the simulator (goes on where it stopped), then the long tests.
	$(BIN)/python tools/soak.py
	$(BIN)/python -m pytest -q -n auto --soak

fuzz: $(READY)  ## A minute of coverage-guided fuzzing of what peers send.
	mkdir -p build/fuzz
	$(BIN)/python -m tests.fuzz.fuzz_decode build/fuzz -max_total_time=60 -rss_limit_mb=1500 -artifact_prefix=build/

# The constraints pin every version; torch above all, whose newest build pulls gigabytes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
