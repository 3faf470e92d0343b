# Needs python3 (3.11 to 3.13), pip and make. Everything is installed into .venv, and only when what it depends on changed.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench clean

demo: .venv/run.stamp
	$(BIN)/capax gridworld --out runs/gridworld --force

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy capax

bench: .venv/dev.stamp
	$(BIN)/python benchmarks/tabular.py
	$(BIN)/python benchmarks/continuous.py

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache

# where venv comes without pip (Debian without python3-venv), python3's own pip fills it
.venv/bin/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; $(PYTHON) -m venv --without-pip .venv \
	  && $(PYTHON) -m pip --python .venv/bin/python install --quiet pip; } || { rm -rf .venv; exit 1; }

.venv/run.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev]'
	touch $@ .venv/run.stamp
