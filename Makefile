# make demo | make test | make check | make bench: each sets up .venv by itself, once.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
COMPILED := .venv/.compiled
EXTRAS := dev,plots,tune

.PHONY: demo test check format bench clean

demo: $(COMPILED)
	$(BIN)/dynedge demo --out demo --force

test: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(SETUP)
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/synth.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/dnodes.py --gap
	$(BIN)/python benchmarks/level_gru.py
	$(BIN)/python benchmarks/train_cpu.py
	$(BIN)/python benchmarks/solvers.py
	$(BIN)/python benchmarks/evaluate.py

clean:
	rm -rf .venv demo
	find . -name __pycache__ -prune -exec rm -rf {} +

$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dynedge needs Python 3.11 or later; try: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# Kernels are compiled when they are first used, and kept: here by a short demo, so that the real one need not wait.
$(COMPILED): $(SETUP)
	@echo "compiling the kernels, once: some minutes on two cores"
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT \
		&& $(BIN)/dynedge demo --out "$$folder/demo" --events 2000 >"$$folder/said" 2>&1 \
		|| { cat "$$folder/said"; exit 1; }
	@touch $@
