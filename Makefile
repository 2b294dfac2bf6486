# The newcomer's and the maintainer's interface. Every target makes .venv and installs what it needs by itself;
# nothing but Python 3.11 or newer with its venv module has to be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# what is installed in it: the product, what `make test` needs, and what the longer targets need
PRODUCT := $(VENV)/.product
TESTS := $(VENV)/.tests
ALL := $(VENV)/.all
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

.PHONY: help demo fleet-demo test test-all everything agents vm matrix crash soak flat mutants lint bench docs frozen lowest trampoline libraries wheel release clean

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

$(PRODUCT): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sfad needs Python 3.11 or newer; %s is %s: make PYTHON=..." % (sys.executable, sys.version.split()[0]) or 0)'
	@echo "making $(VENV) and installing sfad and the libraries that it uses into it ..."
	@$(PYTHON) -m venv $(VENV)
	@# beside it: the first start of sfad would compile its modules
	@$(BIN)/python -m compileall -q sfad sfactl & $(INSTALL) .; code=$$?; wait; exit $$code
	@touch $@

$(TESTS): $(PRODUCT)
	@echo "installing what the tests need into $(VENV) ..."
	@$(INSTALL) '.[test]'
	@touch $@

$(ALL): $(TESTS)
	@echo "installing Ray, OpenTelemetry and a driver of browsers into $(VENV) ..."
	@$(INSTALL) '.[test-all]'
	@touch $@

demo: $(PRODUCT) ## see a tree of agents refused, limited and stopped, in under 15 seconds
	$(BIN)/sfactl demo

# mypy runs beside the tests, because it needs half a minute in a fresh clone; its output comes after theirs
test: $(TESTS) ## lint, types, and tests that need only Python and this kernel (five minutes on two cores)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy >$(VENV)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m tests.suite --tier fast; tests=$$?; \
	wait $$types; code=$$?; cat $(VENV)/types.log; exit $$((tests | code))

test-all: $(ALL) ## what `make test` leaves out: Ray, browsers, systemd, a virtual machine, real agents (some 40 minutes; root installs packages)
	$(BIN)/python -m tests.everything

everything: $(ALL) ## that, and what takes hours: fresh machines, every kill of the daemon, the tests beside a load
	$(BIN)/python -m tests.everything --longer

agents: $(ALL) ## tests with the real agents (ten minutes on two cores; 550 MB from npm the first time)
	SFAD_TEST_AGENTS=1 $(BIN)/python -m tests.suite tests/real_agents

vm: $(ALL) ## tests on a kernel with all controllers, in a virtual machine (three minutes; 70 MB from Debian the first time)
	SFAD_TEST_VM=1 $(BIN)/python -m tests.suite tests/vm

matrix: $(ALL) ## each real agent on each road that a run can take (some five minutes)
	SFAD_TEST_AGENTS=all $(BIN)/python -m tests.suite tests/real_agents/test_matrix.py

crash: $(TESTS) ## kill the daemon at each of its effects in turn (half an hour; tests.crash --help)
	$(BIN)/python -m tests.crash

soak: $(TESTS) ## ten minutes of everything at random
	$(BIN)/python -m tests.soak --minutes 10

flat: $(TESTS) ## an hour's load in ten minutes: memory, descriptors and cgroups stay flat
	$(BIN)/python -m tests.soak.flat --minutes 10

fleet-demo: $(ALL) ## three nodes of Ray on this machine, and a tree over all three (a minute; Ray needs 1.5 GB)
	$(BIN)/python -m tests.fleet.demo

mutants: $(ALL) ## plant 300 defects one at a time: which does no test notice? (half an hour, as root; tests.mutants --help)
	@$(INSTALL) '.[mutants]'
	$(BIN)/python -m tests.mutants

lint: $(TESTS) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(ALL) ## measure beside the floor of bare system calls and other supervisors (a quarter of an hour; tests.bench --help)
	$(BIN)/python -m tests.bench

docs: $(ALL) ## write the parts of docs/ that are generated, man pages among them
	$(BIN)/python -m tests.docs

frozen: $(TESTS) ## write what later releases must load: bytes of this version, into tests/frozen/
	$(BIN)/python -m tests.frozen

lowest: $(TESTS) ## try the lowest versions of libraries that pyproject.toml allows
	@$(INSTALL) '.[lowest]'
	$(BIN)/python -m tests.lowest

trampoline: $(TESTS) ## compile trampoline.c and holder.c into modules that the daemon executes them from (needs gcc and libc6-dev)
	$(BIN)/python -m tests.processes.trampoline_image
	$(BIN)/python -m tests.features.terminals.holder_image

libraries: $(TESTS) ## fetch the JavaScript of others that the console brings, and check it (needs npm)
	$(BIN)/python -m tests.web.libraries

wheel: $(PRODUCT) ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

release: $(ALL) ## build source distribution and wheel twice, compare them, and list the dependencies with their licences
	@$(INSTALL) '.[release]'
	$(BIN)/python -m tests.release

clean: ## remove what the targets above made
	rm -rf $(VENV) $(VENV)-lowest dist build .mypy_cache .ruff_cache .hypothesis
