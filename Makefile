# One word per job. `make help` lists them; everything is installed into .venv, nothing into the system's Python.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The CPU build is enough for tests and demo-live. Another one: make test TORCH='torch==2.8.0 --index-url …'
TORCH     ?= torch==2.13.0
DEEPSPEED ?= deepspeed==0.19.8
TRL       ?= trl==1.16.0
# Where `make test-versions` keeps its environments, a gigabyte each, and what it saw.
VENVS     ?= .venvs
# Labelled logs beside the checkout, where there are any; see bench/scoreboard.py for their form.
CORPUS    ?= $(wildcard ../shared/corpus)
# What `make bench-probe` compares with, in an environment of their own.
LOGGERS   ?= tensorboardX==2.6.5 wandb==0.31.0 trackio==0.43.0 mlflow-skinny==3.17.2
# What `make bench-live` runs notebooks and actors with.
NOTEBOOKS ?= nbconvert==7.17.2 ipykernel==7.4.0 ray==2.60.0
DEBIAN_PACKAGES := prometheus prometheus-alertmanager chromium fonts-noto-cjk openssl postgresql libfaketime slurm-wlm munge iproute2 openssh-server pdsh
DIRS := stallwatch exporter logs lint rules alerts dashboard tests bench tools

# pip compiles with one processor, which takes longer than all else that it does here.
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(abspath $(VENV))/lib || true

# Without bytecode, each of the many processes that the tests start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo demo-live record docs lint format test test-quick test-pythons test-versions system-packages screenshots scoreboard benchmark bench-scan bench-stall bench-live faults bench-cluster bench-cluster-lab gpu-check bench-probe bench-dashboard bench-alerts fuzz clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# The stamps follow pyproject.toml, so an up-to-date environment costs nothing.
$(VENV)/.base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "The dashboard needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@echo "Installing Stallwatch with its dashboard into $(VENV) (a minute or two) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PIP) --editable '.[all]'
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "Installing the development tools into $(VENV) …"
	@$(PIP) --editable '.[dev]'
	@$(COMPILE)
	@touch $@

$(VENV)/.repro: $(VENV)/.base
	@echo "Installing $(TORCH), $(DEEPSPEED) and $(TRL) into $(VENV) (some minutes) …"
	@$(PIP) $(TORCH)
	@$(PIP) $(DEEPSPEED) accelerate transformers lightning $(TRL) peft datasets
	@$(COMPILE)
	@touch $@

$(VENVS)/loggers/.made: pyproject.toml
	@echo "Installing Stallwatch, $(LOGGERS) into $(VENVS)/loggers (a minute or two) …"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable . $(LOGGERS)
	@touch $@

install: $(VENV)/.base ## install Stallwatch with the dashboard and chat into .venv

demo: $(VENV)/.base ## replay a recorded real stall: terminal, chat endpoint and dashboard (Control+C ends it)
	$(BIN)/stallwatch demo

demo-live: $(VENV)/.base $(VENV)/.repro ## the same with the training itself (installs torch and deepspeed)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/stallwatch demo --live

record: $(VENV)/.base $(VENV)/.repro ## make the demo's recording again, with real DeepSpeed
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/repro/record.py

lint: $(VENV)/.dev ## ruff, mypy, the direction of imports, and words to avoid
	$(BIN)/ruff check $(DIRS)
	$(BIN)/ruff format --check $(DIRS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/plain_words.py

format: $(VENV)/.dev ## mend what ruff can mend
	$(BIN)/ruff check --fix $(DIRS)
	$(BIN)/ruff format $(DIRS)

docs: $(VENV)/.dev ## the documentation site, in build/site; needs no network
	NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict

system-packages:
	@sh tests/system_packages.sh $(DEBIAN_PACKAGES)

test: $(VENV)/.dev $(VENV)/.repro system-packages ## every test: rules, exporter, chat, dashboard in Chromium, real DeepSpeed on the CPU
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 3 $(PYTEST_ARGS)

# The folders need torch, a browser or servers; what else is slow has its marker (tests/conftest.py).
test-quick: $(VENV)/.dev ## between commits: what needs no torch, browser or server, in two minutes (TESTS=…)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile -q -m 'not slow and not repro and not browser and not server' $(addprefix --ignore=tests/,acceptance bench browser compose repro) $(TESTS)

test-pythons: ## the training side's tests on every Python from 3.10 to 3.13 that is installed
	sh tests/pythons.sh

test-versions: $(VENV)/.base ## the failures on eight older stacks, each in an environment of its own, and docs/versions.md (an hour)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	cd tests/repro && PATH="$(abspath $(BIN)):$$PATH" $(abspath $(BIN))/python -m versions --folder '$(abspath $(VENVS))' --torch '$(TORCH)' $(VERSIONS_ARGS)

screenshots: $(VENV)/.dev system-packages ## take the pictures in docs/images again
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=tests/machine $(BIN)/python tests/browser/screenshots.py

scoreboard: $(VENV)/.dev ## how often the diagnosis is right, on every labelled corpus at hand (CORPUS=…)
	$(BIN)/python bench/scoreboard.py $(CORPUS:%=--corpus %) --wrong --write docs/scoreboard.md

benchmark: $(VENV)/.dev ## how often tools name the cause, on the open cases of bench/cases (BENCHMARK_ARGS=…)
	$(BIN)/python bench/benchmark.py $(BENCHMARK_ARGS)

bench-scan: $(VENV)/.dev ## reading one generated log: the diagnosis against ripgrep, mtail, Drain3 and others
	$(BIN)/python bench/scan.py

bench-stall: $(VENV)/.dev ## 10,000 simulated run-hours: false stalls and time to a hang, against fixed timeouts; false slow-downs
	$(BIN)/python bench/stall.py
	$(BIN)/python bench/slowdown.py

$(VENV)/.notebooks: $(VENV)/.base
	@$(PIP) $(NOTEBOOKS)
	@touch $@

gpu-check: $(VENV)/.dev $(VENV)/.repro ## ten minutes on a machine with a GPU: NCCL hang, long kernel, waits for the device
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/gpu_check.py

bench-live: $(VENV)/.dev $(VENV)/.repro $(VENV)/.notebooks ## programs that train or fail under the real stallwatch, in real time: false alarms, detection
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/live.py $(LIVE_ARGS)

faults: $(VENV)/.dev system-packages ## 1,000 trials of a training under stallwatch while something breaks: what is lost, sent twice, changed (FAULTS_ARGS=…)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/faults.py $(FAULTS_ARGS)

bench-cluster: $(VENV)/.dev ## 500 simulated hangs of 1,024 ranks on 128 hosts, through real coordinators (CLUSTER_ARGS=…)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/cluster.py $(CLUSTER_ARGS)

bench-cluster-lab: $(VENV)/.dev $(VENV)/.repro system-packages ## 200 real hangs of trainings over namespaces, torchrun and Slurm; as root, some hours (LAB_ARGS=…)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/cluster_lab.py $(LAB_ARGS)

bench-probe: $(VENVS)/loggers/.made ## what a step costs a rank: the probe against gauges and loggers
	$(VENVS)/loggers/bin/python bench/probe.py

bench-alerts: $(VENV)/.dev ## from a line in a log to a chat, embedded and through Prometheus; 10,000 incidents in a minute
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/alerts.py

fuzz: $(VENV)/.dev ## ten million odd inputs for every parser of foreign bytes, some hours; goes on where it was (FUZZ_ARGS=…)
	$(BIN)/python bench/fuzz.py --state $(VENV)/fuzz.json $(FUZZ_ARGS)

bench-dashboard: $(VENV)/.dev ## what the pages cost their server: 200 runs of 64 ranks over a day
	$(BIN)/python bench/dashboard.py

clean: ## remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .stallwatch-demo
