# Two verbs do everything on a machine with Python >= 3.11, git and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
# pytest already runs one process per core.
PYTEST := OMP_NUM_THREADS=1 $(RUN)/pytest

.PHONY: demo test test-all docs package matrix bench fuzz chaos figures check format clean

demo: $(VENV)/.base
	@echo "now two small networks are trained and audited: one to three minutes"
	$(RUN)/deconfound demo

test: check
	$(PYTEST)
	$(MAKE) -C next test

test-all: check
	$(PYTEST) -m ""
	$(MAKE) -C next test-all

# The site in build/site; a warning (a broken link, an anchor that is not there) is an error. Then the tutorials as
# notebooks, run from top to bottom.
docs: $(VENV)/.docs
	$(RUN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --builder html docs build/site
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.notebooks build/site/notebooks
	@echo "open build/site/index.html"

# Wheel and sdist, tried in a fresh environment without the repository.
package: $(VENV)/.docs
	$(RUN)/python -m tests.package

# The versions that are promised, as far as they can be installed here.
matrix: $(VENV)/.docs
	$(RUN)/python -m tests.matrix --out docs/results/matrix.json

bench: $(VENV)/.test
	$(RUN)/deconfound bench

# Ten minutes of hostile input, and runs that are killed and disturbed; both write what they saw.
fuzz: $(VENV)/.test
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.fuzz --seconds 600 --out docs/results/fuzz.json

chaos: $(VENV)/.test
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.chaos --out docs/results/chaos.json

# Drawn from the code: docs/figures/rooms.svg and balance.svg
figures: $(VENV)/.test
	$(RUN)/python -m tests.rooms_figure
	$(RUN)/python -m tests.balance_figure

check: $(VENV)/.test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

format: $(VENV)/.test
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

clean:
	rm -rf $(VENV)

# torch stands in the same command as whatever needs it, so that the pinned build is the one installed.
$(VENV)/.base: pyproject.toml constraints.txt
	@echo "1 of 2: a Python environment in $(VENV); nothing is installed outside it, and make clean deletes it"
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	@echo "2 of 2: deconfound with torch, numpy, typer and rich: some 200 MB to download, a minute or two"
	$(RUN)/pip install --constraint constraints.txt torch -e .
	touch $@

$(VENV)/.test: $(VENV)/.base
	@echo "installing what the tests need: two to four minutes"
	$(RUN)/pip install --quiet --constraint constraints.txt torch -e '.[test]'
	touch $@

$(VENV)/.docs: $(VENV)/.test
	@echo "installing what the site and the notebooks need (Sphinx, Jupyter): a minute or two"
	$(RUN)/pip install --quiet --constraint constraints.txt torch -e '.[test,docs]'
	touch $@
