# `make` lists the targets. A fresh machine needs Python 3.10 or newer, gcc and make; a Go that is new enough is used
# when there is one, else it comes with the build requirements. PYTHON=... names the interpreter.
PYTHON := $(shell tools/find_python.sh)
VENV := .venv
SEEDS ?= 100000
FUZZTIME ?= 20s
PREFIX ?= /usr/local
SOURCES := $(shell find gocore transports pybind -name '*.go' ! -name '*_test.go' 2>/dev/null)

.PHONY: help demo demo-failover demo-qos test test-all test-arm64 test-clients test-rdma check lint sim mutants bench bench-peers bench-security bench-handshakes bench-failover bench-qos bench-scale bench-staging bench-file bench-rdma bench-clients bench-restore bench-all check-rdma check-gpu capi ascend-shim install fuzz docs docs-reference wheel sdist develop clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: develop ## two processes move a KV cache; every byte is verified (makes .venv)
	@$(VENV)/bin/python -m tent.demos.kvcache

demo-failover: develop ## rails are cut under a transfer and brought back; every byte is verified, a picture is drawn
	@mkdir -p build
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "rich>=13" "matplotlib>=3.7" || echo "without rich and matplotlib: text only"
	@$(VENV)/bin/python -m tent.demos.failover --picture build/failover.svg $(ARGS)

demo-qos: develop ## small urgent requests beside floods, with classes and without; every byte is verified, a picture is drawn
	@mkdir -p build
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "rich>=13" "matplotlib>=3.7" || echo "without rich and matplotlib: text only"
	@$(VENV)/bin/python -m tent.demos.qos --picture build/qos.svg $(ARGS)

test: ## everything that a landing must pass, with the time and the budget of each stage: some ten minutes, warm
	@$(PYTHON) tools/check.py

test-all: ## make test and what takes longer: before an issue closes
	@$(PYTHON) tools/check.py --all

test-arm64: ## an aarch64 wheel, cross-built and imported, and the Go suite, both under qemu-user
	@$(PYTHON) tools/arm64.py

test-clients: ## vLLM and LMCache over tent, and over NIXL and Mooncake themselves (installs 7 GB)
	@$(PYTHON) tools/check.py --only clients

test-rdma: ## RDMA on queue pairs of Soft-RoCE in a test guest, whose kernel is built once: four to seven minutes
	@REQUIRE=rdma $(PYTHON) tools/check.py --only rdma

check: ## what is quick, or stages by name: make check ONLY="lint unit"
	@$(PYTHON) tools/check.py --only $(or $(ONLY),lint unit conformance crossing)

lint: ## what linters find, in Go and in Python: make lint ONLY="ruff gofmt"
	@$(PYTHON) tools/lint.py $(ONLY)

sim: ## simulate from seeds: make sim SEEDS=100000
	@$(PYTHON) tools/check.py --only simulation --seeds $(SEEDS)

mutants: develop ## apply each kept change that is dangerous, and run the tests that must notice: make mutants ONLY="tcp FENCED"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "pytest>=8" "pytest-timeout>=2.3" "hypothesis>=6.100"
	@$(PYTHON) tools/mutants.py $(if $(ONLY),--only $(ONLY)) $(ARGS)

fuzz: ## fuzz every decoder: make fuzz FUZZTIME=20s
	@$(PYTHON) tools/fuzz.py --time $(FUZZTIME)

bench: develop ## the speed table, beside plain C and Python programs: make bench ARGS="--json FILE"
	@$(VENV)/bin/python tests/bench/run.py $(ARGS)

bench-peers: develop ## tent beside NIXL and Mooncake, from their wheels: make bench-peers ARGS="--json FILE"
	@$(VENV)/bin/python tests/bench/peers.py $(ARGS)

bench-security: develop ## what lanes cost that are proved, signed and encrypted, beside plain ones: make bench-security ARGS="--rounds 5"
	@$(VENV)/bin/python tests/bench/security.py $(ARGS)

bench-handshakes: ## the harm of strangers that begin handshakes on one processor to opens and transfers: make bench-handshakes ARGS="-seconds 60"
	@$(PYTHON) tests/bench/gorun.py handshakes $(ARGS)

bench-failover: ## what a broken rail costs, in network namespaces (root): make bench-failover ARGS="-runs 20 -json FILE"
	@$(PYTHON) tests/bench/gorun.py failover $(ARGS)

bench-qos: ## what classes are worth beside floods, in network namespaces (root) and on loopback: make bench-qos ARGS="-only loopback"
	@$(PYTHON) tests/bench/gorun.py qos $(ARGS)

bench-scale: ## how costs grow with idle peers, regions and requests: make bench-scale ARGS="-only regions"
	@$(PYTHON) tests/bench/gorun.py scale $(ARGS)

bench-staging: ## how much of a wire staging reaches, by size and number of slots, in virtual time: make bench-staging ARGS="-plot FILE"
	@$(PYTHON) tests/bench/gorun.py staging $(ARGS)

bench-file: develop ## tent on files beside fio: make bench-file ARGS="--folder /mnt/nvme"
	@$(VENV)/bin/python tests/bench/files.py $(ARGS)

bench-rdma: ## tent over RDMA beside a plain C program, in the test guest: make bench-rdma ARGS="-rounds 5"
	@$(PYTHON) tools/bench_rdma.py $(ARGS)

check-rdma: ## the suite and the comparison on the RDMA devices of this machine: make check-rdma ARGS="--pairs mlx5_0:mlx5_1"
	@$(PYTHON) tools/bench_rdma.py --check $(ARGS)

check-gpu: develop ## the suite, every way of GPU memory, and rates beside the driver, torch and NIXL, on the GPUs of this machine: a page of results
	@$(VENV)/bin/python tests/bench/checkgpu.py --page build/check-gpu.md $(ARGS)

bench-clients: ## KV caches between vLLM's servers over tent, NIXL and Mooncake in turn (installs 7 GB): make bench-clients ARGS="--rounds 3"
	@$(PYTHON) tools/bench_clients.py clients $(ARGS)

bench-restore: ## a KV cache that comes back from a disk, by tent, NIXL and LMCache in turn (installs 7 GB): make bench-restore ARGS="--rounds 5"
	@$(PYTHON) tools/bench_clients.py restore $(ARGS)

bench-all: develop ## every table of docs/performance, one after the other, and the rows that became worse: make bench-all ARGS="--only tcp host"
	@$(VENV)/bin/python tools/bench_all.py $(ARGS)

capi: ## build/capi: libtent.so, its header, its pkg-config file; make capi ARGS=--check runs the examples
	@$(PYTHON) tools/build_capi.py $(ARGS)

ascend-shim: ## build/ascend/libtent_ascend.so, between tent and HIXL: make ascend-shim CANN=1 takes the headers below ASCEND_HOME_PATH
	@command -v $(CXX) > /dev/null || { echo "ascend-shim: no $(CXX): the shim is C++"; exit 1; }
	@mkdir -p build/ascend
	$(CXX) -std=c++17 -O2 -fPIC -shared -Wall -Wextra -fvisibility=hidden \
		$(if $(CANN),-DTENT_USE_CANN_HEADERS -I"$(ASCEND_HOME_PATH)/include") \
		transports/ascend/shim/tent_ascend.cc -o build/ascend/libtent_ascend.so

install: ## libtent.so, its header and tent.pc under PREFIX: make install PREFIX=/usr/local DESTDIR=
	@$(PYTHON) tools/build_capi.py --install "$(PREFIX)"

develop: $(VENV)/.built ## an editable install in .venv, rebuilt when a Go source changed

$(VENV)/.built: $(SOURCES) go.mod go.sum setup.py pyproject.toml tools/build_gotent.py tools/develop.py
	@test -n "$(PYTHON)"
	@test -x $(VENV)/bin/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing tent in $(VENV) (a first build takes a minute or two)"
	@$(VENV)/bin/python tools/develop.py
	@touch $@

wheel: ## build/wheel/tent_engine-*.whl, one for Python 3.10 and newer; its tag is audited, every interpreter here must use it
	@$(PYTHON) tools/wheels.py

docs: develop ## build/site: the documentation, with every page's code and every notebook run
	@$(VENV)/bin/python tools/docs.py

docs-reference: develop ## write the pages of docs/ that come from tables in the code and from measured rows
	@$(VENV)/bin/python tools/docs.py --reference

sdist: develop ## dist/tent_engine-*.tar.gz
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check build
	@$(VENV)/bin/python -m build --sdist --quiet . && ls dist

clean: ## remove what was built and the virtual environments
	rm -rf build dist tent_engine.egg-info .venv .venv-* .mypy_cache .pytest_cache .hypothesis tent/_gotent*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
