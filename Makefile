# Every target does all of its own set-up: a fresh machine needs only Python >= 3.11 (with venv), make and a package index.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# What hearth itself needs; what its tests need too; what looks at its code too.
RUNTIME := $(VENV)/.runtime
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools
# The official judges of the MCP bridge, and the Node that they need: npm packages, of exact versions.
JUDGES := .node/.installed
# pipx and uv: tests install the wheel with them.
INSTALLERS := .venv-installers/.installed
# One more than there are processors: many tests wait, for a browser, a child, a clock.
WORKERS ?= $(shell expr $$(nproc) + 1)
# The order is that of tests/conftest.py: the longest modules first.
SIDE_BY_SIDE := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
# Tests are compiled once, not again by every worker and every child.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo demo-hcp demo-web demo-fleet test proof test-hardware test-mcp judges installers tpm check fast style lint bench bench-ask bench-fleet bench-hil simulate crash fuzz soak npm dist test-dist deb test-deb test-debian test-arm64 sbom site links docs picture clean

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# Every file that is installed is one whose hash is in packaging/requirements.lock, the build backend among them.
LOCK   := packaging/requirements.lock
RUN    := build run hcp
SETS   := $(RUN) amqp ask can mcp plot tui test fuzz
PIP     = $(BIN)/python -I -m pip install --quiet --disable-pip-version-check

$(RUNTIME): pyproject.toml $(LOCK)
	@echo '1 of 3: a virtual environment in $(VENV)'
	@$(PYTHON) -I -m venv $(VENV)
	@$(PYTHON) packaging/lock.py $(RUN) > $(VENV)/requirements.txt
	@echo "2 of 3: the $$(grep -c == $(VENV)/requirements.txt) packages that hearth needs, each checked by its hash"
	@$(PIP) --require-hashes -r $(VENV)/requirements.txt
	@echo '3 of 3: hearth itself'
	@$(PIP) --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

$(STAMP): $(RUNTIME)
	$(PYTHON) packaging/lock.py $(SETS) > $(VENV)/requirements.txt
	$(PIP) --require-hashes -r $(VENV)/requirements.txt
	@if $(BUILDS_TPM); then $(MAKE) --no-print-directory tpm; fi
	touch $@

BUILDS_TPM = pkg-config --exists tss2-esys 2>/dev/null && command -v gcc >/dev/null && \
    test -e "$$($(PYTHON) -Ic 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"

# The one package without wheels: it is built here from its source, whose hash is locked too, in this environment. The
# tests of a TPM are skipped where it is not installed.
tpm: $(RUNTIME) ## The library for a TPM; it is built with libtss2-dev, pkg-config and a C compiler
	@{ $(BUILDS_TPM); } || { echo 'tpm2-pytss is built here: apt-get install libtss2-dev pkg-config gcc python3-dev, then make tpm'; exit 1; }
	$(PYTHON) packaging/lock.py build tpm-build > $(VENV)/requirements.txt
	$(PIP) --require-hashes -r $(VENV)/requirements.txt
	$(PYTHON) packaging/lock.py tpm > $(VENV)/requirements.txt
	$(PIP) --require-hashes --no-build-isolation --no-binary tpm2-pytss -r $(VENV)/requirements.txt

$(TOOLS): $(STAMP)
	$(PYTHON) packaging/lock.py $(SETS) dev > $(VENV)/requirements.txt
	$(PIP) --require-hashes -r $(VENV)/requirements.txt
	touch $@

$(JUDGES): tests/mcp/package.json
	@command -v npm >/dev/null || { echo 'The judges of the MCP bridge are npm packages: install npm (Debian: apt-get install npm), then make test-mcp.'; exit 1; }
	rm -rf .node && mkdir .node && cp tests/mcp/package.json .node
	npm install --prefix .node --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@

$(INSTALLERS): $(LOCK)
	$(PYTHON) -I -m venv .venv-installers
	$(PYTHON) packaging/lock.py installers > .venv-installers/requirements.txt
	.venv-installers/bin/python -I -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv-installers/requirements.txt
	touch $@

demo: $(RUNTIME) ## See what hearth is, in a minute: a real daemon, a real client, a simulated board
	@$(BIN)/hearth demo

demo-hcp: $(RUNTIME) ## Another agent hands over a whole job, and gets outputs, a file and an account of it
	@$(BIN)/hearth demo --hcp

demo-web: $(STAMP) ## The dashboard over a real daemon on the simulated board with the tank (ARGS=--open opens the browser)
	@$(BIN)/hearth demo --web $(ARGS)

demo-fleet: $(STAMP) ## A RabbitMQ, 20 simulated devices and a caller; the broker is killed on stage, and nothing is lost
	@$(BIN)/python -m hearth.cli.demo.fleet $(ARGS)

test: $(STAMP) ## The tests, the hardware's too, with branch coverage; what takes long is in `make proof`
	$(BIN)/python -m coverage erase
	@set -x; $(BIN)/python tests/hardware/suite.py --coverage & hardware=$$!; trap 'kill $$hardware' INT TERM; \
	    $(BIN)/python -m coverage run -m pytest $(SIDE_BY_SIDE) -m 'not proof'; host=$$?; wait $$hardware && exit $$host
	$(BIN)/python -m coverage combine --quiet
	@if [ -e .guest/ran ]; then $(BIN)/python -m coverage report; else \
	    echo 'Without the hardware tests nothing ran the drivers over the kernel: they are left out of this report, and of its judgement.'; \
	    $(BIN)/python -m coverage report --omit='drivers/*/linux*.py,drivers/linux/*,drivers/serial_port/tty.py,drivers/iio/kernel.py,drivers/iio/capture.py,drivers/sysfs.py'; fi

proof: $(STAMP) ## The tests that take long: 10,000 worlds, a kill at every write, browsers, the MCP judges, bench and soak
	@set -x; $(BIN)/python tests/hardware/suite.py --proof & hardware=$$!; trap 'kill $$hardware' INT TERM; \
	    $(BIN)/python -m pytest $(SIDE_BY_SIDE) -m proof; host=$$?; wait $$hardware && exit $$host

test-hardware: $(STAMP) ## The drivers against a Linux kernel with simulated hardware (user-mode Linux)
	$(BIN)/python tests/hardware/suite.py

judges: $(JUDGES)

test-mcp: $(STAMP) $(JUDGES) ## The MCP bridge before the official conformance suite, inspector and client
	HEARTH_JUDGES=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/mcp/test_conformance.py \
	    tests/mcp/test_inspector.py tests/mcp/test_official_client.py

# How many worlds, and from which seed on: make simulate SEEDS=100000 FROM=10000
SEEDS ?= 10000
FROM  ?= 0
simulate: $(STAMP) ## Whole worlds by their seeds, in virtual time, with faults (SEEDS=, FROM=)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM)

# How many daemons are killed, and from which world on: make crash KILLS=5000 FROM=300
KILLS ?= 500
crash: $(STAMP) ## kill -9 at every write of the audit log and at random, and power cuts at each (KILLS=, FROM=)
	$(BIN)/python -m tests.crash --kills $(KILLS) --from $(FROM)

# How long each target runs, and which: make fuzz SECONDS=600 TARGETS='wire audit'
SECONDS ?= 60
fuzz: $(STAMP) ## Hostile bytes into every reader, by libFuzzer: 60 s for each target (SECONDS=, TARGETS=)
	$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $(SECONDS)

# How long, and where the figures go: make soak MINUTES=120; DOCS=1 puts table and plot into docs/.
MINUTES ?= 10
soak: $(STAMP) ## Fifty clients on a real daemon for 10 minutes (MINUTES=); what it takes must stay flat (DOCS=1 for the docs)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(DOCS),--docs)

check: $(TOOLS) ## The inner loop: lint, types and the fast tests, side by side
	@$(MAKE) --no-print-directory --jobs --output-sync style fast

fast: $(STAMP) ## The fast tests
	$(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow and not proof'

style: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/mypy

lint: style ## ruff, codespell, import-linter, mypy --strict, and pyright for a second opinion
	$(BIN)/pyright

bench: $(STAMP) ## Measure against floors in the same run; prints a table, writes JSON
	$(BIN)/python -m benchmarks

bench-ask: $(STAMP) ## hearthbench: 60 requests in words, scored by what the simulated board did, with scripted models
	$(BIN)/python -m benchmarks.ask $(ARGS)

bench-fleet: $(STAMP) ## Measure the fleet before a real RabbitMQ: orders, events, 1,000 uplinks, replays (ARGS=)
	$(BIN)/python -m benchmarks.fleet $(ARGS)

bench-hil: $(STAMP) ## Measure on the simulated hardware of the guest's kernel, against bare programs
	$(BIN)/python -m benchmarks.hil

npm: $(JUDGES) ## The JavaScript client: its type declarations, and the package for npm, into dist
	.node/node_modules/.bin/tsc -p packaging/npm --outDir packaging/npm
	mkdir -p dist && cd packaging/npm && npm pack --pack-destination ../../dist

dist: $(RUNTIME) ## The wheel and the source distribution, into dist: the same commit gives the same bytes
	$(BIN)/python packaging/dist.py

installers: $(INSTALLERS)

test-dist: $(STAMP) $(INSTALLERS) ## Build both twice, compare, and install the wheel with pip, pipx and uv
	$(BIN)/python -m pytest -m proof tests/packaging/test_packaging.py

deb: $(RUNTIME) ## The Debian package for this machine's Python and architecture, into dist
	$(BIN)/python packaging/build_deb.py

test-deb: $(STAMP) ## Build the package, try it in a fresh Debian (as root, with debootstrap), write the bill of materials
	HEARTH_DEB=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/packaging/test_deb.py tests/packaging/test_sbom.py

# Which: make test-debian SUITES=trixie
SUITES ?= bookworm trixie
test-debian: $(STAMP) ## Debian 12 and 13 in fresh roots: package, demo, fast tests; the service under a systemd that boots (as root)
	HEARTH_DEBIAN="$(SUITES)" $(BIN)/python -m pytest -n 2 --dist loadgroup --durations=12 --durations-min=2 \
	    tests/packaging/test_debian.py tests/packaging/test_systemd.py

test-arm64: $(STAMP) ## Debian for arm64, emulated: package, demo, and the tests of what depends on the processor (as root)
	HEARTH_ARM64=1 $(BIN)/python -m pytest --durations=12 --durations-min=2 tests/packaging/test_arm64.py

sbom: $(STAMP) ## The bill of materials (CycloneDX) and the licences of what is needed at run time, into dist
	$(BIN)/python packaging/sbom.py

# Sphinx has an environment of its own: what it brings along is not what hearth runs with.
SITE := .venv-site/.installed
$(SITE): pyproject.toml $(LOCK)
	$(PYTHON) -I -m venv .venv-site
	$(PYTHON) packaging/lock.py build run hcp mcp plot site > .venv-site/requirements.txt
	.venv-site/bin/python -I -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv-site/requirements.txt
	.venv-site/bin/python -I -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	touch $@

site: $(SITE) ## The documentation as a searchable site, with the Python API, into site/; a link that leads nowhere is an error
	.venv-site/bin/python -m sphinx -q -W --keep-going -c docs -b html . site

links: $(SITE) ## Whether every link of the documentation to another site still leads somewhere (takes the internet)
	.venv-site/bin/python -m sphinx -q -c docs -b linkcheck . test-artefacts/links

docs: $(STAMP) ## Generate what is generated in docs/ and check that it is up to date
	$(BIN)/python docs/generate.py

picture: $(STAMP) ## The picture of the demo in README.md, from a demo that is played for it
	$(BIN)/python docs/picture.py

clean: ## Remove everything that was made here
	rm -rf $(VENV) .venv-sbom .venv-installers .venv-site site build dist *.egg-info .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .guest .node test-artefacts
