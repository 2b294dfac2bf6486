"""Shims: programs that come first in the PATH of runs, and have what a run starts by an agent
program's name be a child run (docs/agents.md). There is a directory that a person has installed,
and there are those that the daemon makes for runs that use the gateway.

A shim of a program that is not there would deceive `command -v`. So an automatic directory has
shims of just the agent programs that a tree finds in its PATH, and there is one for each set of
them.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...core.state.naming import executes, program_name
from ...host.probe import is_noexec
from ...processes import kernel
from ...protocol import shim_files
from ...protocol.messages import Spawn
from ...protocol.paths import SYSTEM_AUTOMATIC_SHIMS, SYSTEM_SHIMS, automatic_shim_dir, shim_dir
from ...protocol.types import RunId
from ...runs.live import Live

THEIR_BASH_ENV, SHIMS = "SFA_BASH_ENV", "SFA_SHIMS"
"""Variables of a run: what BASH_ENV was before, which bash expands; and what its PATH begins
with."""


NOEXEC = (
    "its filesystem is mounted noexec, so runs do not find the shims: what they start by a "
    "program's name is no child run. Mount it without noexec, or set SFAD_STATE_DIR to a "
    "directory elsewhere"
)


class ShimDirectory:
    """What there is in the directory, as of the last look: at the start, at a reload, and at each
    `status`. No launch looks."""

    def __init__(self, state: Path) -> None:
        self.path = shim_dir(state)
        self.programs: Sequence[str] = ()
        self.in_path: bytes | None = None
        """What the PATH of a run begins with; `None` if there is no shim."""
        self.look()

    def look(self) -> None:
        # PATH could not hold it, or the kernel would execute nothing there
        useless = ":" in str(self.path) or is_noexec(self.path)
        self.programs = () if useless else sorted(_executables(self.path))
        self.in_path = os.fsencode(self.path) if self.programs else None

    def open_to(self, uid: int) -> bool:
        """Return whether a user can enter the directory: a state directory is open to the daemon's
        own user only."""
        return self.path == SYSTEM_SHIMS or uid == os.geteuid()


class AutomaticShims:
    """Makes the directories of automatic shims. `trouble` is told of one that cannot be made."""

    def __init__(self, state: Path, trouble: Callable[[str], object]) -> None:
        self._path = automatic_shim_dir(state)
        self._fits = ":" not in str(self._path)  # into PATH
        self._is_systems = self._path == SYSTEM_AUTOMATIC_SHIMS
        self._trouble = trouble
        self._made: dict[tuple[str, ...], bytes | None] = {}

    def in_path(self, programs: Sequence[str], uid: int) -> bytes | None:
        """Return the directory with shims of these programs, for a user's runs; `None` if there are
        none, or the user cannot enter it. What an earlier daemon has made is made again: it may be
        of another installation."""
        key = tuple(sorted(programs))
        if not key or not self._fits or not (self._is_systems or uid == os.geteuid()):
            return None
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def is_own(self, path: bytes) -> bool:
        return path.startswith(os.fsencode(self._path) + b"/")

    def _make(self, programs: tuple[str, ...]) -> bytes | None:
        # `naming.agent_of` takes a file in a directory called `shims` for no program
        directory = self._path / ",".join(programs) / "shims"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for each in (self._path, directory.parent, directory):
                each.chmod(0o755)
            for program in programs:
                _write(directory / program, shim_files.text(program, automatic=True), 0o755)
            _write(directory / shim_files.BASH_ENV, shim_files.FIND_AGAIN, 0o644)
            if is_noexec(directory):
                self._trouble(f"{directory}: {NOEXEC}")
        except OSError as error:
            self._trouble(
                f"{directory}: no automatic shims: {error.strerror}; "
                "what runs start by a program's name is no child run"
            )
            return None
        return os.fsencode(directory)


def _write(path: Path, text: bytes, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
    ) as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    new.replace(path)


def _executables(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_file() and stat.S_IMODE(entry.stat().st_mode) & 0o111
            ]
    except OSError:
        return []


# ---- What a run finds of them


class Shims:
    def __init__(
        self, state: Path, live: Mapping[RunId, Live], trouble: Callable[[str], object]
    ) -> None:
        self.installed = ShimDirectory(state)
        self.automatic = AutomaticShims(state, trouble)
        self._live = live

    def of(self, live: Live) -> list[bytes]:
        """Return the directories that come first in a run's PATH: the installed shims, then the
        automatic ones."""
        run, installed = live.run, self.installed
        enters = installed.in_path is not None and installed.open_to(run.birth.uid)
        found = [installed.in_path if enters else None]
        if live.parts.gateway:
            programs = self._live[run.root.id].setups.programs
            found.append(self.automatic.in_path(programs, run.birth.uid))
        return [each for each in found if each is not None]


def environment(env: list[bytes], shims: Sequence[bytes]) -> list[bytes]:
    """Return an environment whose PATH begins with directories of shims, also after a login shell
    has set it."""
    if not shims:
        return env
    kept, own = [], b"/" + shim_files.BASH_ENV.encode()
    for item in env:
        if item.startswith(b"PATH="):
            others = [directory for directory in item[5:].split(b":") if directory not in shims]
            kept.append(b"PATH=" + b":".join([*shims, *others]))
        elif not item.startswith(b"BASH_ENV="):
            kept.append(item)
        elif not item.endswith(own):
            # else it is that of a run above, and SFA_BASH_ENV holds the person's
            kept.append(f"{THEIR_BASH_ENV}=".encode() + item[9:])
    return [
        *kept,
        b"BASH_ENV=" + shims[-1] + own,
        SHIMS.encode() + b"=" + b":".join(shims),
    ]


def is_own_program(shim: int, run: Live, request: Spawn) -> bool:
    """Return whether it is the run's own command that has led to a shim, as `timeout 60 claude`
    does in the run's PATH: no process between the two is the program."""
    program = program_name([os.fsdecode(word) for word in request.argv[:1]])
    if run.main is None or request.name is not None:
        return False
    if program_name(run.run.asked.shown.argv) != program:
        return False
    for process in kernel.ancestors(shim):
        if process.pid != shim and executes(kernel.command(process.pid), program):
            return False
        if process.pid == run.main.pid:
            return True
    return False
