# Every target sets up what it needs and says what it does. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
ROUTER_VENV := .venv-router
ROUTER := vllm-router==0.1.17
DYNAMO_VENV := .venv-dynamo
DYNAMO := 1.6.1
BIN := $(VENV)/bin
# What the demo runs with, and with what the tests need besides.
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
SYSTEM := scripts/system-packages

# Compiled once: not anew by each of the hundreds of processes that tests start.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup system-packages vllm-environment router-environment dynamo-environment run run-vllm run-cluster test test-long test-vllm test-properties test-dynamo check lint types docs docs-check docs-serve proto top-picture dashboards pictures chart clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18
	@printf 'bench-NAME        Run the benchmark in bench/NAME beside its peers\n'

# --- environments ---------------------------------------------------------------------------

UV := $(shell command -v uv)
# Installs into one of the environments. What is installed is compiled when it is first imported, which most is never.
PIP = $(BIN)/python -m pip --disable-pip-version-check --python $(1)/bin/python install --no-compile

# It comes last: an environment without it was left half made.
$(BIN)/pip:
	$(info --> Python environment $(VENV))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: make PYTHON=python3.12 takes another" >&2; exit 1; }
	@$(if $(UV),$(UV) venv --quiet --seed --python $(PYTHON) $(VENV) ||) $(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment: on Debian and Ubuntu, apt-get install python3-venv" >&2; \
		rm -rf $(VENV); exit 1; }
	@# The pip of Python 3.11 would do, but takes half as long again for what follows.
	-@$(if $(UV),,$(call PIP,$(VENV)) --quiet --upgrade pip)

$(RUNS): pyproject.toml | $(BIN)/pip
	$(info --> what disagg-node runs with)
	@$(if $(UV),$(UV) pip install --python $(BIN)/python --editable . ||) $(call PIP,$(VENV)) --editable .
	@touch $@

$(READY): pyproject.toml | $(BIN)/pip
	$(info --> what tests and builders need besides (minutes the first time))
	$(call PIP,$(VENV)) --quiet --editable '.[dev]'
	@touch $(RUNS) $@

setup: $(READY) ## Make the Python environment of the tests

# Exit code 3: the CPU build of torch is not to be had here; its message says what to set. `make test` goes on.
# It needs nothing installed but pip, so that it is made beside our own environment.
vllm-environment: | $(BIN)/pip
	$(info --> vLLM environment $(VLLM_VENV) (some minutes the first time))
	@PYTHONPATH=exporter:cluster $(BIN)/python -m disagg_cluster.demo.real_vllm.environment $(VLLM_VENV) || \
		{ code=$$?; [ $$code -eq 3 ] && [ "$(WITHOUT_TORCH)" = goes-on ] || exit $$code; }

# The router brings a stack of its own and gets an environment of its own.
$(ROUTER_VENV)/.ready-$(ROUTER): | $(BIN)/pip
	$(info --> router environment $(ROUTER_VENV))
	$(PYTHON) -m venv --clear --without-pip $(ROUTER_VENV)
	$(call PIP,$(ROUTER_VENV)) --quiet $(ROUTER)
	@touch $@

router-environment: $(ROUTER_VENV)/.ready-$(ROUTER)

# Its mock workers need no GPU. Without its dependencies: some are to be had from NVIDIA only.
$(DYNAMO_VENV)/.ready-$(DYNAMO):
	@echo "--> Dynamo environment $(DYNAMO_VENV) (700 MB)"
	$(PYTHON) -m venv --clear $(DYNAMO_VENV)
	$(DYNAMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		ai-dynamo==$(DYNAMO) ai-dynamo-runtime==$(DYNAMO)
	$(DYNAMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check aiohttp certifi \
		'kubernetes<33' msgspec 'prometheus-client<1' pyzmq 'redis<9' tqdm transformers zstandard \
		'pydantic<=2.13.5' uvloop
	@touch $@

dynamo-environment: $(DYNAMO_VENV)/.ready-$(DYNAMO)

# --- the main job ---------------------------------------------------------------------------

PORT := 9847
DEMO = $(BIN)/disagg-node demo --listen 127.0.0.1:$(PORT)

run: $(RUNS) ## Run a simulated 8-GPU node until Ctrl-C, page on 127.0.0.1:9847 (PORT=… for another)
	$(DEMO)

run-vllm: $(RUNS) vllm-environment ## The same with a real vLLM prefill and decode worker
	$(DEMO) --vllm $(VLLM_VENV)/bin/python

run-cluster: $(RUNS) ## Run three simulated nodes with a network of their own, Prometheus and planner, until Ctrl-C
	@$(SYSTEM) prometheus ip unshare
	$(BIN)/python -m scripts.local_cluster --port $(PORT)

# What the tests with real engines and a real router run them with.
ENGINES = DISAGG_VLLM_PYTHON=$(VLLM_VENV)/bin/python DISAGG_ROUTER_PYTHON=$(ROUTER_VENV)/bin/python

# Prometheus and promtool need a fifth less CPU time if they collect garbage less often.
TESTS = GOGC=400 $(ENGINES) $(BIN)/pytest -ra --durations=25 --durations-min=2
HERE = not long and not vllm_long and not dynamo_long and not gpu

# --- tests ----------------------------------------------------------------------------------

# The parts of `make test`: what looks at one running demo, and what begins with the letters in a part's name. They are
# begun in this order, one as soon as another has ended; a part that still waits for its environment comes later. So the
# engines' environments are made first, beside our own and the system's packages, then what mostly waits, the longest
# first, and last what mostly computes. Integration tests mostly wait: more parts are run at once than there are cores.
PARTS = vllm-environment router-environment part-integration-s-uw-z part-integration-a-d part-cluster-p-z part-demo \
	part-integration-e-l part-integration-m-r part-integration-v part-exporter part-cluster-a-o types docs-check lint

test: ## Everything CI runs, real Prometheus and a real vLLM pair included
	@# A make by its variable would have `make -n` run all of this.
	@make --no-print-directory --keep-going --jobs=6 --output-sync=target WITHOUT_TORCH=goes-on $(PARTS)

system-packages:
	@$(SYSTEM) prometheus prometheus-alertmanager victoria-metrics gcc --optional chromium ip unshare

part-integration-%: $(READY) system-packages
	$(info --> $@)
	$(TESTS) -m "$(HERE)" tests/integration/test_[$*]*

part-demo: $(READY) system-packages
	$(info --> $@)
	$(TESTS) -m "$(HERE)" tests/integration/demo

part-integration-e-l part-integration-m-r part-integration-v: router-environment
part-integration-v: vllm-environment

part-cluster-%: $(READY) system-packages
	$(info --> $@)
	$(TESTS) -m "$(HERE)" tests/unit/cluster/[$*]*

part-exporter: $(READY) system-packages
	$(info --> $@)
	$(TESTS) -m "$(HERE)" --ignore tests/unit/cluster tests/unit

test-long: $(READY) router-environment ## The long tests that need no real engine
	@$(SYSTEM) prometheus --optional ip unshare
	$(ENGINES) $(BIN)/pytest -m long -ra

test-vllm: $(READY) vllm-environment router-environment ## The long tests with real vLLM engines
	@$(SYSTEM) prometheus gcc --optional ip unshare
	$(ENGINES) $(BIN)/pytest -m "vllm or vllm_long" -ra

test-properties: $(READY) ## What holds whatever comes, each tried with a thousand examples
	$(BIN)/pytest -m hypothesis --hypothesis-profile=many -q tests/unit

test-dynamo: $(READY) dynamo-environment ## The tests with real Dynamo workers
	DISAGG_DYNAMO_PYTHON=$(DYNAMO_VENV)/bin/python $(BIN)/pytest -m dynamo_long -ra

check: $(READY) lint types ## Unit tests, lint and types: some minutes
	$(BIN)/pytest -m "not vllm and not vllm_long and not gpu and not prometheus" -q tests/unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY) ## Write the generated page of docs/, and the rules that are computed
	$(BIN)/python -m disagg_exporter.metrics.reference > docs/metrics.md
	$(BIN)/python -m scripts.request_rules > alerts/rules/disagg-recording-requests.yaml
	$(BIN)/python -m scripts.history_rules > alerts/rules/disagg-recording-history.yaml

PROTO = cluster/disagg_cluster/control/remote/v1

proto: $(READY) ## Compile the proto of control over gRPC
	$(BIN)/python -m grpc_tools.protoc -I$(PROTO) --descriptor_set_out=$(PROTO)/control.binpb $(PROTO)/control.proto

# The theme's notice about its own future stands in docs/decisions/0002-dependencies.md.
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs-check: $(READY) ## Build the documentation site: every page placed, every link leads somewhere
	$(SITE) build --strict

docs-serve: $(READY) ## Show the documentation on 127.0.0.1:9850, renewed at each change
	$(SITE) serve --strict

top-picture: $(READY) ## Record docs/pictures/top.svg from the demo: two minutes
	@$(SYSTEM) --optional prometheus
	PYTHONPATH=tests $(BIN)/python -m scripts.record_top

dashboards: $(READY) ## Write grafana/dashboards/*.json as grafana/builders says
	$(BIN)/python -m grafana.builders

# DRAW=COMMAND says what draws a dashboard (grafana/pictures/__main__.py), ONLY="demo …" which situations.
pictures: $(READY) ## Draw docs/dashboards/*.png anew: simulated clusters and the demo, half an hour
	@$(SYSTEM) prometheus
	PYTHONPATH=tests $(BIN)/python -m grafana.pictures --draw "$(DRAW)" $(if $(ONLY),--only $(ONLY))

chart: $(READY) ## Write into helm/disagg-node what it repeats of rules, dashboards and node file
	$(BIN)/python -m helm.generator

bench-%: $(READY)
	@test -d bench/$(subst -,_,$*) || { echo "no benchmark bench/$(subst -,_,$*)"; exit 2; }
	@mkdir -p bench/out
	@# Some load real engines as the tests do.
	PYTHONPATH=tests $(BIN)/python -m bench.$(subst -,_,$*)

clean: ## Remove environments and caches
	rm -rf $(VENV) $(VLLM_VENV) $(ROUTER_VENV) $(DYNAMO_VENV) .venv-bench .venv-bench-forecast .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/out build
