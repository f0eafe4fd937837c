# Each target prepares what it needs: `make demo` and `make test` work on a bare clone.
PYTHON ?= python3
VENV ?= .venv
# The torch that we develop and test with. `make demo CONSTRAINTS=` takes the newest instead, with your own torch build.
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIN := $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.PHONY: help setup demo test lint format docs clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/.ready-dev  ## prepare the virtual environment

# What a target needs is an extra of the package: demo little, dev everything that the tests run against. Compiled at once:
# where Python may not write bytecode, each of the many processes that the tests start would compile torch anew.
$(VENV)/.ready-%: pyproject.toml $(CONSTRAINTS)
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv || echo "uv is not to be had here: pip installs instead"
	if [ -x $(BIN)/uv ]; then \
	  UV_FIND_LINKS="$$PIP_FIND_LINKS" VIRTUAL_ENV="$(abspath $(VENV))" \
	  $(BIN)/uv pip install --quiet --compile-bytecode $(PIN) -e ".[$*]"; \
	else \
	  $(BIN)/python -m pip install --quiet $(PIN) -e ".[$*]"; \
	fi
	touch $@

demo: $(VENV)/.ready-demo  ## train through wrong labels and targets on this machine, two to four minutes
	$(BIN)/gradsieve demo --out runs/demo
	$(BIN)/gradsieve report runs/demo --audit --out runs/demo/report.html

test: setup  ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup  ## ruff and pyright
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/pyright

format: setup  ## let ruff arrange the code
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

docs: setup  ## render the pages that come from the code
	$(BIN)/python -m gradsieve.report.methods_page docs/methods.md
	$(BIN)/python -m gradsieve.experiments.results_page results docs/results.md

clean:  ## remove the environment and everything made by runs
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis
