"""Tells what a session has read or written outside of its own directories.

Three things are looked at: each path that a process with this module opens for writing; names that
are new where programs put what they keep; and a home that is a trap, in which nothing may be
opened.
"""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sfad.host.linux import displacement
from tests import surroundings

ROOT = Path(__file__).parents[1]

TRAP = "SFAD_TEST_TRAP"
"""Names a directory in which no program may open, make or change anything."""
BESIDE = "SFAD_TEST_BESIDE"
"""Is set where the tests of another session run at the same time: what is new in places of all
users may be theirs."""


# ---- What processes with this module open: those of the tests, and the daemons that are forked
# from the template


_report = ""
_writable: tuple[str, ...] = ()
_readable: tuple[str, ...] = ()
_homes: tuple[str, ...] = ()
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_MAKING = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
"""Events of audit hooks, and which of their arguments is the path."""


def report() -> str:
    """Return the file that `watch` was told."""
    return _report


def watch(report: str) -> None:
    """Write into `report` which files outside of the session's directories this process and its
    forks open."""
    global _report, _writable, _readable, _homes
    base = os.path.dirname(os.path.dirname(report))
    places = [f"{place}/" for place in surroundings.places()]
    _writable = (
        f"{base}/",
        "/proc/",
        "/sys/fs/cgroup/",
        "/dev/",
        *places,
        *map(str, surroundings.fetched()),
    )
    libraries = [f"{place}/" for place in sys.path if os.path.isabs(place)]
    _readable = (*_writable, *libraries, f"{ROOT}/", f"{sys.prefix}/", f"{sys.base_prefix}/")
    _homes = tuple(
        f"{home}/"
        for home in {surroundings.person.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir}
        - {"", "/"}
    )
    _report = report


def audit(event: str, arguments: tuple[object, ...]) -> None:
    """Look at an event of `sys.addaudithook`."""
    if _report and (path := _strays(event, arguments)):
        with suppress(OSError), open(_report, "a") as file:
            file.write(f"{event} {path}\n")


def _strays(event: str, arguments: tuple[object, ...]) -> str:
    """Return the path where that is outside. A relative one is left to the look at the checkout in
    the end."""
    writes = event in _MAKING or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
    )
    path = arguments[_MAKING.get(event, 0)] if writes or event == "open" else None
    if not isinstance(path, (str, bytes)) or not (name := os.fsdecode(path)).startswith("/"):
        return ""
    if writes:
        return (
            ""
            if f"{name}/".startswith(_writable) or "/__pycache__" in name or "/.hypothesis" in name
            else name
        )
    return name if name.startswith(_homes) and not name.startswith(_readable) else ""


def strays() -> list[str]:
    """Return what was opened outside, and what is in the session's home and runtime directory, and
    remove it."""
    found = []
    with suppress(FileNotFoundError):
        found = Path(_report).read_text().splitlines()
        os.unlink(_report)
    for path in [
        path for name in ("HOME", "XDG_RUNTIME_DIR") for path in Path(os.environ[name]).iterdir()
    ]:
        found.append(f"left {path}")
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return found


# ---- What is new


class Outside:
    """What lies outside of the session's directories, such as in the person's home, and its places
    for all users."""

    def __init__(self, base: Path) -> None:
        """Make these places. `base`: pytest's directory of the session."""
        self._base = base
        self.close()  # a process that was killed had the same number
        for place in surroundings.places():
            place.mkdir()
            place.chmod(0o1777)
        self._before = _names()
        self._trap = Trap(Path(trap)) if (trap := surroundings.person.get(TRAP)) else None

    def left(self) -> list[str]:
        """Return what is new, and what was touched in the trap."""
        new = _names() - self._before
        for own in (self._base, *self._base.glob("popen-*")):
            new |= {
                str(path)
                for name in surroundings.OWN.values()
                for path in own.glob(f"surroundings/{name}/*")
            }
        for place in surroundings.places():
            new |= {str(path) for path in place.glob("*")}
        return [f"file {path}" for path in new] + (self._trap.touched() if self._trap else [])

    def close(self) -> None:
        """Remove the places for all users."""
        for place in surroundings.places():
            shutil.rmtree(place, ignore_errors=True)


_CACHES = {".git", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache"}


def _names() -> set[str]:
    """Return the files of the checkout, and what is named like one of the product's where programs
    put such files."""
    found: set[str] = set()
    for directory, below, files in os.walk(ROOT):
        below[:] = [
            name
            for name in below
            if name not in _CACHES and not os.path.exists(f"{directory}/{name}/pyvenv.cfg")
        ]
        found.update(f"{directory}/{name}" for name in files)
    for place in _shared(surroundings.person):
        with suppress(OSError):
            names = (
                name
                for name in os.listdir(place)
                if name.lstrip(".").startswith(("sfad", "sfactl"))
            )
            # of other sessions
            found.update(f"{place}/{name}" for name in names if not name.startswith("sfad-tests-"))
    return {path for path in found if _may_be_ours(path)}


def _may_be_ours(path: str) -> bool:
    """Whether this session may have made a file: one of an ordinary user makes no other user's."""
    with suppress(OSError):
        return os.geteuid() in (0, os.lstat(path).st_uid)
    return True


def _shared(person: Mapping[str, str]) -> Iterator[str]:
    if not person.get(BESIDE):
        yield from ("/tmp", "/var/tmp", "/dev/shm", "/run", f"/run/user/{os.getuid()}", "/var/lib")
    for name in (
        "HOME",
        "TMPDIR",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "XDG_DATA_HOME",
        "XDG_CACHE_HOME",
    ):
        if value := person.get(name):
            yield value
    if home := person.get("HOME"):
        yield from (
            f"{home}/{name}" for name in (".config", ".local/state", ".local/share", ".cache")
        )


class Trap:
    """A directory in which each file is watched."""

    _OPEN, _ISDIR = 0x20, 0x40000000

    def __init__(self, directory: Path) -> None:
        self._instance = displacement.new_instance()
        self._watched: dict[int, str] = {}
        self._touched: set[str] = set()
        mask = (
            self._OPEN
            | displacement.MODIFY
            | displacement.CREATE
            | displacement.DELETE
            | displacement.MOVED_TO
        )
        for path, below, _ in os.walk(directory):
            # pytest's own directory is there
            below[:] = [
                name for name in below if f"{path}/{name}" != surroundings.person.get("TMPDIR")
            ]
            self._watched[
                displacement.libc.inotify_add_watch(self._instance, os.fsencode(path), mask)
            ] = path

    def touched(self) -> list[str]:
        """Return what was opened, made, changed or removed since the beginning. To list a directory
        is nothing."""
        with suppress(BlockingIOError):
            while content := os.read(self._instance, 1 << 16):
                self._touched.update(self._named(content))
        return [f"touched {path}" for path in self._touched]

    def _named(self, events: bytes) -> Iterator[str]:
        while events:
            watch, mask, _, length = struct.unpack_from("=iIII", events)
            name, events = events[16 : 16 + length].rstrip(b"\0"), events[16 + length :]
            if not (mask & self._OPEN and mask & self._ISDIR):
                yield f"{self._watched.get(watch, '?')}/{os.fsdecode(name)}"
