"""What a test gets instead of the environment and the directories of the person who runs it.

The environment is built, not cleaned: a short list of variables is passed on, and what a program
would look for in a home, a runtime directory and a temporary directory leads to empty directories
of the session. Signals, descriptors, limits and the locale stay as they are, because `sfad`
inherits them too.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SESSION = "TESTS_OF_SFAD"
"""Variable in the environment of each process that a session starts, because another session may
run on this machine."""

PASSED_ON = re.compile(
    r"PATH|LANG|LANGUAGE|LC_\w+|TZ|LD_LIBRARY_PATH"
    r"|LD_PRELOAD|FAKETIME\w*"  # faketime(1) tries another day
    r"|PYTHONPATH"  # the package may be found by it
    rf"|PYTEST_(XDIST_\w+|VERSION|CURRENT_TEST)|SFAD_TEST_\w+|{SESSION}"
)

person = dict(os.environ)
"""The environment of the person, for what fetches programs from a network: a cache, a proxy,
certificates."""

OWN = {"HOME": "home", "XDG_RUNTIME_DIR": "runtime"}
"""Variables that lead to directories of a process of the session. Without the second, a client
looks into /run/user."""


def enter(directory: Path, original: Mapping[str, str] | None = None) -> None:
    """Give this process, and those that it starts, an environment with empty directories below
    `directory`. `original`: the person's, if this process was started with a built one."""
    if original is not None:
        person.clear()
        person.update(original)
    kept = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    os.environ.clear()
    kept[_AGENTS] = str(fetched()[0])
    os.environ.update(kept, GIT_CONFIG_NOSYSTEM="1")
    directory.mkdir(exist_ok=True)
    for variable, name in OWN.items():
        (directory / name).mkdir(mode=0o700, exist_ok=True)
        os.environ[variable] = str(directory / name)
    if shlex.quote(sys.executable) != sys.executable:
        sys.executable = _one_word(directory)
    tempfile.tempdir = None
    if place := _of_session("/tmp"):
        os.environ["TMPDIR"] = str(place)


interpreter = sys.executable
"""The interpreter itself, whose path may have a space."""


def _one_word(directory: Path) -> str:
    """Return the path of a program that becomes this interpreter. Tests write `sys.executable` into
    scripts as one of several words, and the path of a checkout may have a space. The interpreter
    finds out its own path, so what is tested has the space. A shell passes on no variable whose
    name it would not take: see `interpreter`."""
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o755)
    return str(program)


def fetched() -> tuple[Path, Path]:
    """Return where what was fetched from a network is kept for the next session: the agent
    programs, and a kernel."""
    cache = Path(person.get("XDG_CACHE_HOME") or Path(person.get("HOME", "/"), ".cache"))
    agents = person.get("SFAD_AGENTS_DIR") or cache / "sfad-tests" / "agents"
    # the daemons of a template know the person's environment by this variable alone
    return Path(os.environ.get(_AGENTS, agents)).absolute(), Path(sys.prefix, "vm")


_AGENTS = "SFAD_TEST_AGENTS_DIR"


# ---- Directories of a session that all users can write to, with short paths: pytest's own are its
# user's alone


def in_memory() -> str:
    """Return a directory for directories on a file system in memory. Where there is none, it does
    not exist."""
    return str(_of_session("/dev/shm") or "/dev/shm")


def places() -> list[Path]:
    """Return what the process that begins the session makes and removes."""
    return [
        place
        for parent in ("/tmp", "/dev/shm")
        if (place := _of_session(parent)) and os.access(parent, os.W_OK)
    ]


def _of_session(parent: str) -> Path | None:
    process, _, _ = os.environ.get(SESSION, "").partition("-")
    return Path(parent, f"sfad-tests-{process}") if process else None
