"""The command that starts a run in a sandbox, and whether this machine can have one."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from ...host.probe import FIX, bubblewrap, namespaces_forbidden
from ...processes.helper import bare, completed
from ...protocol.known import KNOWN_PROGRAMS
from .kernel import compiled

_PATIENCE = 10.0
"""Seconds that a sandbox may take on a busy machine."""
_PACKAGES = str(Path(__file__).parents[3])
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from sfad.features.isolation.outside import main; main(sys.argv[2:])"
)
_LEAVE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from sfad.features.isolation.kernel import leave_abstract_sockets; "
    "sys.exit(not leave_abstract_sockets())"
)


class Sandbox(Struct, frozen=True):
    """What an isolated run is given."""

    socket: str
    hidden: Sequence[str]
    """What belongs to the daemon: its state, its config, keys."""
    directory: bytes
    """The working directory of the run that was isolated first: writable for it and all below."""
    writable: Sequence[bytes]
    readable: Sequence[bytes]
    home: bytes
    program: bytes
    """The first word of that run's command; if it is a path, absolute."""
    agent: str
    """The agent program of that run, whose own files are writable; empty if it is none."""
    variables: Sequence[bytes]
    """Those of that run which say where programs are, and where agents keep their files, as
    `KEY=VALUE`."""
    network: bool
    """Whether it keeps the machine's network."""
    gateway: int | None = None
    """The port of the gateway, if it has its own network and may reach that."""
    terminal: bool = False
    stand_ins: Sequence[bytes] = ()
    repository: bytes = b""
    """The repository, if `directory` is a worktree of it: what git writes is the run's own."""
    branches: bytes = b""
    """The directory of its branch below refs/heads."""

    def words(self) -> list[bytes]:
        """Return the command that `helper.completed` completes."""
        kept = [_PACKAGES, *map(os.path.realpath, (_PACKAGES, sys.prefix, sys.base_prefix))]
        given = [
            *(("keep", os.fsencode(path)) for path in dict.fromkeys(kept)),
            *(("keep", directory) for directory in self.stand_ins),
            *(("code", os.fsencode(path)) for path in _code()),
            ("door", os.fsencode(self.socket)),
            *(("hide", os.fsencode(path)) for path in self.hidden),
            ("directory", self.directory),
            *(("write", path) for path in self.writable),
            *(("variable", item) for item in self.variables),
            *(("read", path) for path in self.readable),
            ("repository", self.repository),
            ("worktree", self.directory),
            ("branches", self.branches),
            ("home", self.home),
            ("program", self.program),
            *self._agent_files(),
            ("port", b"" if self.gateway is None else b"%d" % self.gateway),
        ]
        found = {"net": not self.network, "terminal": self.terminal}
        flags = [name.encode() for name, wanted in found.items() if wanted]
        return [
            *map(os.fsencode, (*bare(_START), f"bwrap={bubblewrap() or ''}")),
            *flags,
            *(name.encode() + b"=" + value for name, value in given),
        ]

    def _agent_files(self) -> Iterator[tuple[str, bytes]]:
        """Yield where agent programs keep login, settings and sessions: those of this run's
        program, and those that it must not see."""
        for name, program in KNOWN_PROGRAMS.items():
            whose = "own" if name == self.agent else "other"
            yield from ((whose, file.encode()) for file in program.files)
            if program.files_variable is not None:
                yield f"{whose}-variable", program.files_variable.encode()


@cache
def _code() -> list[str]:
    """Return the directories from which the daemon takes its interpreter and its modules."""
    interpreters = {
        os.path.dirname(file) for file in (sys.executable, os.path.realpath(sys.executable))
    }
    files = (
        Path(file)
        for name, module in sys.modules.items()
        if "." not in name and (file := getattr(module, "__file__", None))
    )
    modules = {str(file.parents[file.stem == "__init__"]) for file in files}
    return sorted({os.path.realpath(path) for path in (*interpreters, *modules)})


def impossible(uid: int) -> str | None:
    """Return why a user's runs cannot be isolated here, and what to do; `None` if nothing is known
    against it. It is known for certain by `tried` only."""
    if bubblewrap() is None:
        return f"bubblewrap is not installed: {FIX}"
    try:
        compiled(platform.machine())
    except ValueError as error:
        return str(error)
    return namespaces_forbidden(uid)


def tried(*, network: bool) -> str | None:
    """Start a program of this user's in a whole sandbox, as that of a run. Return why that failed;
    `None` if it did not. `network`: whether it keeps the machine's network."""
    from tempfile import TemporaryDirectory  # `doctor` needs it, and not the daemon

    home, path = (os.fsencode(os.environ.get(name, "")) for name in ("HOME", "PATH"))
    try:
        with TemporaryDirectory() as directory:
            sandbox = Sandbox(
                socket="", hidden=(), directory=os.fsencode(directory), writable=(), readable=(),
                home=home, program=b"true", agent="", variables=[b"PATH=" + path], network=network,
            )  # fmt: skip
            words = completed(sandbox.words(), [b"/bin/true", b"/usr/bin/true"], [b"true"])
            done = subprocess.run(
                words,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        None
        if done.returncode == 0
        else done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    )


def closes_abstract_sockets() -> bool:
    """Return whether a sandbox that keeps the network is closed off from the abstract Unix sockets
    of the machine."""
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LEAVE, _PACKAGES],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PATIENCE,
        check=False,
    )
    return found.returncode == 0
