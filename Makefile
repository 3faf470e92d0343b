# Needs python3 (3.11 to 3.13), pip and make. Everything is installed into .venv, and only when what it depends on changed.
PYTHON ?= python3
BIN := .venv/bin
# where venv comes without pip (Debian without python3-venv), python3's own pip fills it
PIP = $(shell $(BIN)/python -c 'import pip' 2>/dev/null && echo $(BIN)/python -m pip \
  || echo $(PYTHON) -m pip --python $(BIN)/python) --quiet --disable-pip-version-check
LOCK := uv pip compile pyproject.toml requirements/build.in --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --quiet --custom-compile-command 'make lock'

.PHONY: demo test lint bench figures lock clean

demo: .venv/run.stamp
	$(BIN)/capax gridworld --out runs/gridworld --force

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy capax

bench: .venv/dev.stamp
	$(BIN)/python benchmarks/tabular.py
	$(BIN)/python benchmarks/continuous.py

# every figure of README and docs, from the committed results
figures: .venv/dev.stamp
	$(BIN)/python -m benchmarks.figures

# needs uv; versions stay as they are, if they fit (delete a file to get new ones)
lock:
	$(LOCK) -o requirements/run.txt
	$(LOCK) --extra dev -c requirements/run.txt -o requirements/dev.txt

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; $(PYTHON) -m venv --without-pip .venv; } || { rm -rf .venv; exit 1; }

# what is installed is named in requirements/, with the hash of every file that may be installed for it
.venv/run.stamp: pyproject.toml requirements/run.txt | .venv/bin/python
	$(PIP) install --no-deps --require-hashes -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

.venv/dev.stamp: pyproject.toml requirements/dev.txt | .venv/bin/python
	$(PIP) install --no-deps --require-hashes -r requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@ .venv/run.stamp
