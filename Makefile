# Two commands set everything up: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# Set to https://download.pytorch.org/whl/cpu for the build without CUDA (several GB smaller).
TORCH_INDEX ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: quickstart install check format lint types layers unit test docs clean

quickstart: $(INSTALLED)
	$(BIN)/posttrain quickstart

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Format, lint, types, layers, sizes, unit and property tests.
check: $(INSTALLED) lint types layers unit

format: $(INSTALLED)
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

lint: $(INSTALLED)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks

types: $(INSTALLED)
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(INSTALLED)
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(BIN)/pytest -q -n 2 tests/unit tests/property tests/prototypes

# Everything that needs no GPU.
test: check
	$(BIN)/pytest -q -n 2 tests/parity tests/learning
	$(BIN)/python -m posttrain.testing.cases tests/cases/cases.jsonl

docs: $(INSTALLED)
	$(BIN)/python -m posttrain.methods.cards docs/methods

clean:
	rm -rf $(VENV) build dist
