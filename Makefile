# Everything below runs in the checkout's own environment, which the first target that needs it makes.
# On a machine without make: `./up` starts the pool, `scripts/install` makes the environment.

PYTHON := .venv/bin/python -P
ARGS :=

# Tests wait about as often as they compute, so three at a time fill two cores. A file stays with one worker: its tests
# share processes. `ARGS="-n 0"` runs one test after the other.
WORKERS := 3
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# One folder of compiled numba code for a whole run; absolute, since programs start elsewhere.
kernels test test-full bench: export NUMBA_CACHE_DIR := $(CURDIR)/.numba-cache
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help

.PHONY: help install up test test-full test-validator kernels compiled lint format bench soak lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## make .venv with every command and everything that tests need
	@scripts/install

up: ## start the whole pool on this machine (ARGS=--once stops after the demo)
	@./up $(ARGS)

test: lint kernels ## lint, then every test that belongs into 15 minutes on 2 cores
	$(PYTHON) -m pytest $(PARALLEL) -m "not slow" $(ARGS)

test-full: lint kernels ## everything, the slow tests too
	$(PYTHON) -m pytest $(PARALLEL) $(ARGS)

test-validator: install ## the validator suite against the real validator's code (CHUTES_API=/path/to/chutes-api)
	@test -d "$(CHUTES_API)/api" || { echo "Give CHUTES_API=PATH, a checkout of chutesai/chutes-api of 2025-10." >&2; exit 2; }
	CHUTES_API_SOURCE="$(abspath $(CHUTES_API))" CHUTES_API_PYTHON="$$(scripts/peer_env.sh validator)/bin/python" \
		$(PYTHON) -m pytest -n 0 tests/contract/test_validator_contract.py $(ARGS)

# Compiled once here, so that no test waits for the compiler nor two processes compile the same.
kernels: install compiled
	@$(PYTHON) -c 'from gpupool.recompute.server.numba_engine import checked_engine; checked_engine()'

# The proxy's hot modules, for the tests that start it; what runs without a C compiler is the same, and slower.
compiled: install
	@$(PYTHON) scripts/compile_proxy.py

lint: install ## style, types, layers, dependencies, shell scripts
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/deptry src
	.venv/bin/shellcheck -x up scripts/install scripts/*.sh .ci/run

format: install ## rewrite the code in the project's style
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

bench: install compiled ## measure the budgets of docs/design
	@for script in benchmarks/*.py; do echo "== $$script"; $(PYTHON) "$$script" || exit 1; done

soak: install compiled ## ten minutes of the recompute proxy with flapping servers (ARGS="--minutes 60")
	$(PYTHON) benchmarks/proxy_parts/soak.py $(ARGS)

lock: ## resolve the dependencies anew (ARGS=--upgrade takes newer releases)
	@scripts/lock.sh $(ARGS)

clean: ## remove what was made here; the pool's state in .gpupool stays
	rm -rf .venv .venv.lock .venv-chia .venv-chia.lock .venv-chutes .venv-chutes.lock .venv-validator .venv-validator.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .numba-cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
