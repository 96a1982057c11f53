# make demo   sets everything up and runs the main job on bundled data
# make test   sets everything up and runs the tests
# make lint   ruff and mypy          make test-gpu   the tests marked gpu, on a machine with CUDA
#                                    make test-scale the tests marked scale: several processes, Ray, kernels in an interpreter

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-gpu test-scale lint format clean

demo: $(READY)
	$(BIN)/scns demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu and not scale" -n 2 --dist loadfile

test-gpu:
	PYTHONPATH=src python3 -m pytest -m gpu

test-scale: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,ann,cluster,kernels]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "scale and not gpu"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "scns needs Python 3.10 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,ann]"
	@touch $@
