# Python 3.11 or later and make are all this needs; the rest is installed into $(VENV).

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

BUILD_SITE = $(RUN) -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/site

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test slow docs notebooks figures paper format clean
.NOTPARALLEL:

help:
	@echo 'make demo    emulate a step function: prints scores, writes step_function.png'
	@echo 'make test    formatting, lint, types and tests; make slow runs the few that it leaves out'
	@echo 'make docs    the site, in build/site; every warning is an error'
	@echo 'make notebooks, make figures  run the examples again, draw the pictures of the site again'
	@echo 'make paper   rerun the experiments of the paper (hours; ARGS=--quick: a tenth), draw its figures'
	@echo 'make format  rewrite the sources in the project style'
	@echo 'make clean   remove the environment and everything generated'

demo: $(VENV)/.installed-plot
	$(RUN) examples/step_function.py

test: $(VENV)/.installed-dev
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(BUILD_SITE)
	$(RUN) -m pytest -m "not slow" --numprocesses auto --maxprocesses 4 --dist worksteal

# What takes a program of a minute to compile.
slow: $(VENV)/.installed-dev
	$(RUN) -m pytest -m slow

docs: $(VENV)/.installed-docs
	$(BUILD_SITE)
	@echo 'open build/site/index.html'

notebooks: $(VENV)/.installed-docs
	$(RUN) docs/run_notebooks.py

# make paper ARGS=--quick runs a tenth of the trials; what is there is not run again.
RESULTS ?= build/paper
paper: $(VENV)/.installed-bench
	$(RUN) benchmarks/paper.py --folder $(RESULTS) $(ARGS)
	$(RUN) benchmarks/paper_acceptances.py --folder $(RESULTS)
	$(RUN) benchmarks/paper_figures.py --results $(RESULTS) --folder $(RESULTS)/figures
	$(RUN) benchmarks/paper_claims.py --results $(RESULTS)

figures: $(VENV)/.installed-docs
	$(RUN) docs/figures.py

format: $(VENV)/.installed-dev
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache step_function.png
	find benchmarks examples src tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp for each extra. An environment that runs is kept and brought up to date.
$(VENV)/.installed-%: pyproject.toml
	@$(PYTHON) $(RECENT) || { \
	  echo 'deepemu needs Python 3.11 or later, and "$(PYTHON)" is not:' \
	    'name another with "make PYTHON=python3.12 ..."' >&2; exit 1; }
	@$(RUN) $(RECENT) 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --editable '.[$*]'
	@touch $@
