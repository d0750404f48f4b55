# exactspec: `make demo` and `make test` set up all they need in .venv; a second run starts at once.
#   PYTHON=python3.12 make demo   another interpreter (3.11 to 3.14)
#   HF=0 make test                without torch: the tests that need it skip
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
HF ?= 1
MODEL ?= smollm2-135m
PYTEST_ARGS ?=
BENCH_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install --constraint constraints.txt
DEPS := pyproject.toml constraints.txt

.PHONY: help setup demo test fuzz lint bench check-gpu clean

help:
	@echo "make demo    install the core, get a small model, answer one request plain and with copying, compare"
	@echo "make test    install the core, the test tools and CPU torch, run all tests"
	@echo "make fuzz    10,000 malformed requests of each kind against the server (FUZZ=n: another number)"
	@echo "make lint    ruff and mypy"
	@echo "make bench   install the peers (llama.cpp from source: minutes) and measure the bars"
	@echo "make check-gpu  on a machine with a GPU: the bit-identity tests there, and times of a forward"
	@echo "make setup   only install, as for the tests"
	@echo "make clean   remove $(VENV) and build leftovers"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing), exactspec needs Python 3.11 to 3.14:" \
	    "say for example PYTHON=python3.12 make demo" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }

$(VENV)/.core: $(BIN)/python $(DEPS)
	@echo "installing the core into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing the test tools"
	@$(PIP) --editable '.[dev]'
	@touch $@

# torch, for the tests that compare with transformers. Optional: no wheel may fit this machine, and on Linux the
# ordinary wheels are the large CUDA builds unless pip is set up to find CPU ones.
ifeq ($(HF),0)
HF_STAMP := $(VENV)/.dev
else
HF_STAMP := $(VENV)/.hf
endif
$(VENV)/.hf: $(VENV)/.dev
	@echo "installing torch and transformers (HF=0 leaves them out)"
	@$(PIP) --only-binary torch --editable '.[hf]' || \
	  echo "torch could not be installed: going on, the tests that need it skip (to try again: rm $@)" >&2
	@$(PIP) --only-binary :all: triton 2>/dev/null || \
	  echo "triton could not be installed: going on, the tests of the GPU kernels skip (to try again: rm $@)" >&2
	@touch $@

$(VENV)/.bench: $(VENV)/.core
	@echo "installing the benchmark peers; llama.cpp is built from source, about 10 minutes on 2 cores"
	@$(PIP) --editable '.[bench,peers,hf,server]'
	@touch $@

$(VENV)/.gpu: $(VENV)/.dev
	@echo "installing torch and triton for the GPU (gigabytes)"
	@$(PIP) --only-binary torch,triton --editable '.[gpu]'
	@touch $@

setup: $(HF_STAMP)

demo: $(VENV)/.core
	@$(BIN)/exactspec pull $(MODEL)
	@$(BIN)/exactspec generate -m $(MODEL) --prompt-file examples/copy-heavy.txt --max-tokens 400 --compare

test: $(HF_STAMP)
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

# The same tests as in `make test`, with more requests; minutes.
FUZZ ?= 10000
fuzz: $(VENV)/.dev
	@EXACTSPEC_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/server/test_fuzz.py $(PYTEST_ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.bench
	@$(BIN)/exactspec bench bars --out results/bars.jsonl $(BENCH_ARGS)

# Asked before anything large is installed: the driver's library answers without torch.
check-gpu: $(VENV)/.dev
	@$(BIN)/python -m exactspec.target.cuda.present
	@$(MAKE) --no-print-directory $(VENV)/.gpu
	@EXACTSPEC_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/target/cuda $(PYTEST_ARGS)
	@$(BIN)/exactspec bench kernels --device cuda -m $(MODEL) $(BENCH_ARGS)

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
