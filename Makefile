# Everything is installed into .venv from the pins in constraints.txt; Python 3.11+, pip and make are enough.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := all,otel,dev
STAMP := .venv/.installed
PINS := pyproject.toml constraints.txt requirements/without-dependencies.txt

.PHONY: help demo test check setup clean

help:
	@echo "make demo   start the server, tune a text detector over HTTP, print the comparison"
	@echo "make test   scripts/check, then every test"
	@echo "make check  ruff, mypy, import-linter and the quick tests"
	@echo "make setup  only install into .venv"
	@echo "make clean  remove what the others made"

setup: $(STAMP)

$(STAMP): $(PINS)
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq -c constraints.txt pip setuptools
	$(BIN)/python -m pip install -qq -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	$(BIN)/python -m pip install -qq --no-deps -r requirements/without-dependencies.txt
	touch $@

demo: $(STAMP)
	$(BIN)/python -m benchmarks.demo

check: $(STAMP)
	scripts/check

# scripts/check runs the quick tests, the second line all others: in two processes, since many wait for servers and children.
test: $(STAMP)
	scripts/check
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -p no:schemathesis --durations=20 \
		-m 'slow or browser or chaos'

clean:
	rm -rf .venv build dist demo-output tests/output *.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -rf .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
