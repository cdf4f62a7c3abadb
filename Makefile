# Every target sets up .venv by itself, once: the demos what a user installs, all others the rest too.
#   make demo       every step on a small synthetic log
#   make demo-retail  the same on real grocery purchases: about three minutes
#   make test       all tests
#   make test-fast  tests not marked slow: about a minute on two cores, once the kernels are compiled
#   make test-gpu   tests of kernels and of training on a GPU, in several processes
#   make test-pythons  the fast tests under each of Python 3.11 to 3.13 that is installed
#   make test-oldest  the fast tests with the oldest supported packages (constraints-oldest.txt)
#   make check      linter, formatter, type checker
#   make format     fixes what the linter and the formatter can fix
#   make bench      benchmarks of every stage on this machine
#   make mutants    how many of the faults in benchmarks/mutants.toml the tests notice
#   make docs       documentation site in site/; make docs-serve shows it at http://127.0.0.1:8001
#   make dist       wheel and source archive in dist/, checked
#   make clean      removes .venv and the demos
PYTHON ?= python3
PYTHONS := python3.11 python3.12 python3.13
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
SETUP := $(VENV)/.ready
USER_EXTRAS := datasets,plots,serve,tune
EXTRAS := $(USER_EXTRAS),dev,docs,http-tests,mlflow,tensorboard
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c $(CONSTRAINTS) -e

.PHONY: demo demo-retail test test-fast test-gpu test-pythons test-oldest check format bench mutants docs docs-serve dist clean

demo: $(PACKAGE)
	$(BIN)/dynedge demo --out demo --force

demo-retail: $(PACKAGE)
	$(BIN)/dynedge demo --retail --out demo-retail --force

test: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-fast: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-gpu: $(SETUP)
	$(BIN)/python tests/gpu/in_parallel.py

test-pythons:
	@for python in $(PYTHONS); do \
		$$python -c "" 2>/dev/null || { echo "$$python is not installed: skipped"; continue; }; \
		echo "$$python:"; $(MAKE) --no-print-directory test-fast PYTHON=$$python VENV=.venv-$$python || exit 1; \
	done

test-oldest:
	$(MAKE) --no-print-directory test-fast PYTHON=python3.11 VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt \
		USER_EXTRAS=plots,serve,tune EXTRAS=dev,oldest,plots,tensorboard,tune

check: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(SETUP)
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/synthetic_logs.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/dnodes.py --gap
	$(BIN)/python benchmarks/level_gru.py
	$(BIN)/python benchmarks/train_cpu.py
	$(BIN)/python benchmarks/solvers.py
	$(BIN)/python benchmarks/evaluate.py

mutants: $(SETUP)
	$(BIN)/python benchmarks/mutants.py

docs: $(SETUP)
	$(BIN)/mkdocs build --strict

docs-serve: $(SETUP)
	$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8001

dist: $(SETUP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf .venv .venv-* demo demo-retail site dist
	find . -name __pycache__ -prune -exec rm -rf {} +

$(PACKAGE): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dynedge needs Python 3.11 or later; try: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[$(USER_EXTRAS)]'
	@touch $@

$(SETUP): $(PACKAGE)
	$(INSTALL) '.[$(EXTRAS)]'
	@touch $@
