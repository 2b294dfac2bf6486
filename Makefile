# The newcomer's and the maintainer's interface. Every target makes .venv and installs what it needs by itself;
# nothing but Python 3.11 or newer with its venv module has to be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: help demo fleet-demo test agents vm matrix crash soak flat mutants lint bench docs trampoline wheel clean

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sfad needs Python 3.11 or newer; %s is %s: make PYTHON=..." % (sys.executable, sys.version.split()[0]) or 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## see a tree of agents refused, limited and stopped, in under 15 seconds
	$(BIN)/sfactl demo

# Six processes keep two cores busy, because tests wait for programs most of the time. The tests of a file share its daemons.
# mypy runs beside them, because it needs half a minute in a fresh clone; its output comes after theirs.
test: $(READY) ## lint, types, and the whole test suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy >$(VENV)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m tests.suite --numprocesses 6 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types; code=$$?; cat $(VENV)/types.log; exit $$((tests | code))

agents: $(READY) ## tests with the real agents (ten minutes on two cores; 550 MB from npm the first time)
	SFAD_TEST_AGENTS=1 $(BIN)/python -m tests.suite tests/real_agents --numprocesses 4 --dist worksteal

vm: $(READY) ## tests on a kernel with all controllers, in a virtual machine (three minutes; 70 MB from Debian the first time)
	SFAD_TEST_VM=1 $(BIN)/python -m tests.suite tests/vm

matrix: $(READY) ## each real agent on each road that a run can take (some five minutes)
	SFAD_TEST_AGENTS=all $(BIN)/python -m pytest tests/real_agents/test_matrix.py --numprocesses 4 --dist worksteal

crash: $(READY) ## kill the daemon at each of its effects in turn (half an hour; tests.crash --help)
	$(BIN)/python -m tests.crash

soak: $(READY) ## ten minutes of everything at random
	$(BIN)/python -m tests.soak --minutes 10

flat: $(READY) ## an hour's load in ten minutes: memory, descriptors and cgroups stay flat
	$(BIN)/python -m tests.soak.flat --minutes 10

fleet-demo: $(READY) ## three nodes of Ray on this machine, and a tree over all three (a minute; Ray needs 1.5 GB)
	$(BIN)/python -m tests.fleet.demo

mutants: $(READY) ## plant 300 defects one at a time: which does no test notice? (half an hour, as root; tests.mutants --help)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	$(BIN)/python -m tests.mutants

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## measure beside the floor of bare system calls and other supervisors (a quarter of an hour; tests.bench --help)
	$(BIN)/python -m tests.bench

docs: $(READY) ## write the parts of docs/ that are generated, man pages among them
	$(BIN)/python -m tests.docs

trampoline: $(READY) ## compile trampoline.c into the module that the daemon executes it from (needs gcc and libc6-dev)
	$(BIN)/python -m tests.processes.trampoline_image

wheel: $(READY) ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean: ## remove what the targets above made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .hypothesis
