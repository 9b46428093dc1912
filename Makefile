# Needs make, a POSIX shell and one Python from 3.11 to 3.14 with its venv module; installs the rest itself.

VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
# More arguments for pytest or a benchmark, as in `make test ARGS="-k cli -x"`.
ARGS ?=
WHEEL_CHECK := build/wheel-check
PEERS := build/peers

# A step in one line: title and command come after it.
LOG := build/install.log
QUIETLY := @sh tools/quietly.sh $(LOG)
PIP_INSTALL := python -m pip install --progress-bar off --no-input --constraint constraints.txt

PYTHONS := python3.14 python3.13 python3.12 python3.11 python3 python
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
VERSION := import platform; print(" (found: " + platform.python_version() + ")")
PYTHON ?= $(shell for p in $(PYTHONS); do if $$p -c '$(FITS)' >/dev/null 2>&1; then echo $$p; break; fi; done)
GET_PYTHON_Darwin := `brew install python@3.13`
GET_PYTHON_Linux := `apt-get install python3 python3-venv` on Debian and Ubuntu

.DEFAULT_GOAL := help
.PHONY: help env demo demo-pair bench-peers test test-slow lint types wheel-check constraints clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

env: $(STAMP) ## make .venv with everything at the tested versions

$(RUNTIME): pyproject.toml constraints.txt
	@if ! $(or $(PYTHON),false) -c '$(FITS)' >/dev/null 2>&1; then \
		found=$$($(or $(PYTHON),python3) -c '$(VERSION)' 2>/dev/null); \
		echo "error: this needs a Python from 3.11 to 3.14 with its venv module$$found" >&2; \
		echo 'hint: $(GET_PYTHON_$(shell uname -s)) brings one; or name it: make PYTHON=/path/to/python3.13' >&2; \
		exit 1; fi
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		sh tools/quietly.sh $(LOG) "making $(VENV) with $(PYTHON)" $(PYTHON) -m venv --clear $(VENV); fi
	$(QUIETLY) "installing pip" $(BIN)/$(PIP_INSTALL) --upgrade pip
	$(QUIETLY) "installing dflash-mlx and the packages that it needs" $(BIN)/$(PIP_INSTALL) --editable .
	@touch $@

$(STAMP): $(RUNTIME)
	$(QUIETLY) "installing the tools for tests" $(BIN)/$(PIP_INSTALL) --group dev
	@touch $@

demo: $(RUNTIME) ## install it and let the demo pair answer, plain and with its drafter
	@$(BIN)/python benchmarks/demo.py

# Without what the port depends on: it is for its own benchmarks, and on a Mac for older versions of mlx.
$(PEERS)/.installed: $(RUNTIME)
	$(QUIETLY) "making an environment for the port" $(BIN)/python -m venv --clear $(PEERS)
	$(QUIETLY) "installing pip" $(PEERS)/bin/$(PIP_INSTALL) --upgrade pip
	$(QUIETLY) "installing dflash-mlx" $(PEERS)/bin/$(PIP_INSTALL) --editable .
	$(QUIETLY) "installing the authors' dflash 0.1.0" $(PEERS)/bin/$(PIP_INSTALL) --no-deps dflash==0.1.0
	@touch $@

bench-peers: $(PEERS)/.installed ## time the authors' MLX port and this engine side by side: two minutes
	@$(PEERS)/bin/python benchmarks/peers.py $(ARGS)

# A process for each core: more threads would wait for one another.
test: $(STAMP) ## run the tests, the slow ones left out
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(ARGS)

test-slow: $(STAMP) ## run the slow tests
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(STAMP) ## ruff: rules and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

# The wheel is made from the source archive, and tried in an environment and a folder of its own: at the root
# of the repository the local dflash_mlx/ would hide the installed one.
wheel-check: $(STAMP) ## build the wheel and run it from an empty environment
	rm -rf dist $(WHEEL_CHECK)
	$(QUIETLY) "building source archive and wheel" $(BIN)/python -m build --outdir dist .
	$(QUIETLY) "making an empty environment" $(BIN)/python -m venv $(WHEEL_CHECK)/venv
	@mkdir $(WHEEL_CHECK)/elsewhere
	$(QUIETLY) "installing pip" $(WHEEL_CHECK)/venv/bin/$(PIP_INSTALL) --upgrade pip
	$(QUIETLY) "installing the wheel" $(WHEEL_CHECK)/venv/bin/$(PIP_INSTALL) dist/*.whl
	cd $(WHEEL_CHECK)/elsewhere && ../venv/bin/dflash-mlx --help
	cd $(WHEEL_CHECK)/elsewhere && ../venv/bin/python -c "import dflash_mlx, sys; \
		print(found := dflash_mlx.blas.preload()); sys.exit(not found.active)"
	cd $(WHEEL_CHECK)/elsewhere && ../venv/bin/dflash-mlx generate --target demo --prompt "What is 49 + 36?"
	cd $(WHEEL_CHECK)/elsewhere && ../venv/bin/python -I -c "import pkgutil, dflash_mlx; \
		[__import__(m.name) for m in pkgutil.walk_packages(dflash_mlx.__path__, 'dflash_mlx.') \
		if not m.name.endswith('__main__')]"
	cd $(WHEEL_CHECK)/elsewhere && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml \
		--python-executable ../venv/bin/python -p dflash_mlx

demo-pair: $(STAMP) ## make the demo pair again: PyTorch, three hours; goes on where it was interrupted
	$(QUIETLY) "installing PyTorch" $(BIN)/$(PIP_INSTALL) --group torch
	cd tools && $(abspath $(BIN))/python -m demo_pair.make $(CURDIR)/build/demo-pair

# With the oldest Python, whose packages are a superset of the others'. Not on setuptools: pip brings its own.
constraints: ## renew constraints.txt with the newest versions that pyproject.toml admits
	python3.11 -m venv --clear build/constraints
	build/constraints/bin/python -m pip install --quiet --upgrade pip
	build/constraints/bin/python -m pip install --quiet --editable . --group dev
	{ echo "# The versions that are tested. Made by \`make constraints\` on Linux; do not edit."; \
	build/constraints/bin/python -m pip freeze --all --exclude-editable | grep -v '^setuptools=='; } > constraints.txt

clean: ## remove all that was made here, .venv too
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
