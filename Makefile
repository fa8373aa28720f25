PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.installed-demo
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup chromium lint demo paper real-data test coverage docs bench costs fuzz kills crash hashes sbom clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment and install the package into it

demo: $(DEMO) ## learn a prior, compare agents that use it with others, and write a report
	$(BIN)/python -m experiments.synthetic --quick --problem corners --out results/demo --agent TS \
		--agent TunedTS --agent MixTS --agent 'MixTS(K)' --agent DiffTS \
		--agent EvidenceDPS --agent Exact

DATA ?=

paper: $(STAMP) ## run the paper's experiments, hours; DATA=FOLDER adds MovieLens and MNIST
	for name in synthetic ablation posterior; do $(BIN)/python -m experiments.$$name || exit 1; done
	$(if $(DATA),for name in movielens mnist items; do $(BIN)/python -m experiments.$$name --data $(DATA) || exit 1; done)

real-data: $(STAMP) ## score learned priors on real tasks held out; DATA=FOLDER of public files
	$(BIN)/python -m experiments.real_data --data $(DATA)

lint: $(STAMP) ## check format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

test: lint chromium ## check format, lint and types, then test in double and single precision
	JAX_ENABLE_X64=1 $(PYTEST)
	JAX_ENABLE_X64=0 $(BIN)/python -m pytest -m float32

coverage: $(STAMP) chromium ## measure which lines the tests reach; the page is build/coverage/index.html
	JAX_ENABLE_X64=1 $(PYTEST) --cov --cov-report=term --cov-report=html:build/coverage

# Tests of the dashboard run in a browser, which pip does not install.
chromium:
	@for name in chromium chromium-browser google-chrome; do \
		if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; \
	else \
		echo "make test: expected Chromium for tests/browser, found none; install it as root:" \
			"apt-get install -y chromium" >&2; exit 1; \
	fi

docs: $(STAMP) ## build the documentation site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo build/site/index.html

# About twenty tests; each tries so many examples that together they are the budget.
BUDGET ?= 100000

fuzz: $(STAMP) ## try BUDGET random calls of every public function, a tenth over HTTP; minutes to an hour
	FUZZ_EXAMPLES=$$(( ($(BUDGET) + 18) / 19 )) $(BIN)/python -m pytest tests/fuzz --numprocesses 2
	FUZZ_REQUESTS=$$(( ($(BUDGET) + 9) / 10 )) $(BIN)/python -m pytest tests/service/test_openapi.py

bench: $(STAMP) ## measure what decisions cost, side by side with peers
	$(BIN)/python -m benchmarks.speed --json results/bench/speed.json
	$(BIN)/python -m benchmarks.growth --json results/bench/growth.json

costs: bench ## measure again what docs/explanation/performance.md shows, and draw its figure
	cp results/bench/growth.png docs/figures/growth.png
	@echo "update the tables of docs/explanation/performance.md from results/bench/speed.json"

kills: $(STAMP) ## kill a thousand processes while they save, and look at what they left
	folder=$$(mktemp -d) && $(BIN)/python tests/files/kills.py $$folder 1000; rm -r $$folder

crash: $(STAMP) ## kill the decision service two hundred times on SQLite and PostgreSQL
	PYTHONPATH=tests $(BIN)/python tests/service/crash.py --kills 200 --seconds 30

hashes: ## write the packages of the service with hashes, deploy/*.txt, from constraints.txt
	$(PYTHON) deploy/hashes.py

sbom: ## write the software bill of materials of the service, build/sbom.json
	$(PYTHON) -m venv build/service
	PIP_CONSTRAINT=constraints.txt build/service/bin/pip install --quiet '.[serve]'
	build/service/bin/python deploy/sbom.py build/sbom.json

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples experiments benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# As variables rather than options, the constraints hold for the build backend too.
$(DEMO) $(STAMP): export PIP_CONSTRAINT = constraints.txt
$(DEMO) $(STAMP): export PIP_BUILD_CONSTRAINT = constraints.txt
$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[plot,distances]'
	@touch $@

$(STAMP): $(DEMO)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev \
		--editable '.[plot,logs,distances,cluster,client,integrations,serve]'
	@touch $@
