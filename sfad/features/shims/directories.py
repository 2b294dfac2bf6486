"""Directories of shims: one that a person has installed, and those that the daemon makes for runs
that use the gateway.

A shim of a program that is not there would deceive `command -v`. So an automatic directory has
shims of just the agent programs that a tree finds in its PATH, and there is one for each set of
them.
"""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from ...host.probe import is_noexec
from ...protocol.paths import is_systems
from . import files
from .files import SYSTEM_SHIMS, shim_dir

NOEXEC = (
    "its filesystem is mounted noexec, so runs do not find the shims: what they start by a "
    "program's name is no child run. Mount it without noexec, or set SFAD_STATE_DIR to a "
    "directory elsewhere"
)


SYSTEM_AUTOMATIC = Path("/var/cache/sfad/shims")
"""Those that the system's daemon makes: its runs could not enter its state."""


class ShimDirectory:
    """What there is in the directory, as of the last look. No launch looks."""

    def __init__(self, state: Path) -> None:
        self.path = shim_dir(state)
        self.programs: Sequence[str] = ()
        self.in_path: bytes | None = None
        """What the PATH of a run begins with; `None` if there is no shim."""

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
        self._is_systems = is_systems(state)
        self._path = SYSTEM_AUTOMATIC if self._is_systems else state / "automatic"
        self._fits = ":" not in str(self._path)  # into PATH
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

    def _make(self, programs: tuple[str, ...]) -> bytes | None:
        # `naming.agent_of` takes a file in a directory called `shims` for no program
        directory = self._path / ",".join(programs) / "shims"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for each in (self._path, directory.parent, directory):
                each.chmod(0o755)
            for program in programs:
                _write(directory / program, files.text(program, automatic=True), 0o755)
            _write(directory / files.BASH_ENV, files.FIND_AGAIN, 0o644)
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
