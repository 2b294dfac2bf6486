"""The controllers of cgroup v2: `pids`, `memory` and `cpu`, as far as they were delegated to this daemon.

A cgroup has the files of a controller where its parent has it in `cgroup.subtree_control`, and that takes the same of
every cgroup above. `pids` is enabled for every run, for every tree has such a limit; the others down the path to a run
that asks, for they cost every page and every switch of what is below.

A cgroup that enables controllers cannot hold processes (EBUSY). With `pids` and `cpu` alone it is *not*
refused: it becomes a thread root, and nothing can be attached below it any more (EOPNOTSUPP). So what sits in PARENT,
the daemon first of all, moves into the leaf PARENT/supervisor before anything is enabled. systemd calls that leaf the
`DelegateSubgroup=` of a unit (254), and has then done it.

systemd before 254 cannot restart a unit whose cgroup still distributes (219/CGROUP): `undo` is for the end of the
daemon, and for the sweep after one that was killed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from ... import procfs
from . import cgroupfs

KINDS = ("pids", "memory", "cpu")
LEAF = cgroupfs.SUPERVISOR
_VACATED = "user.sfad.vacated"
"""An extended attribute of the leaf: the daemon has made it and moved there, not systemd."""
_CONTROL = ".control"
"""Where systemd puts what `ExecStopPost=` starts in a delegated unit: beside what the unit has made itself."""
_PERIOD = 100_000
"""Microseconds in which `cpu.max` is accounted: the kernel's default."""
_LEAST_QUOTA = 1000
"""Microseconds; the kernel refuses less."""
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_TRIES = 10
"""Looks at a cgroup that is being emptied: what forks meanwhile is in the next."""


class Controllers:
    """What may be limited below one instance's base. `complain` is told why something that is there cannot be used."""

    def __init__(self, base: cgroupfs.Base, complain: Callable[[str], object] = lambda _text: None) -> None:
        self._base = base.directory
        self._parent = os.path.dirname(base.directory)
        self._complain = complain
        self._enabled: dict[str, set[str]] = {}
        """By directory: what the cgroups in it have."""
        self._before = _words(f"{self._parent}/cgroup.subtree_control")
        self._vacated = False
        self.available = _words(f"{self._parent}/cgroup.controllers") & set(KINDS)
        """What can be limited, as far as is known."""

    def prepare(self) -> None:
        """Makes PARENT able to distribute, and every run have a `pids` controller."""
        if not self.available:
            return
        self._enabled.pop(self._parent, None)  # somebody may have undone it, with the base
        try:
            self._vacated = _vacate(self._parent) or _was_vacated(self._parent)
            if "pids" in self.available:
                self._enable("pids", self._base)
        except OSError as error:
            self.available = set()
            self._complain(f"limits of memory, processes and CPU are watched, not enforced by the kernel: {_said(error)}")

    def enable(self, kind: str, directory: str) -> bool:
        """Lets the cgroups in `directory` be limited; whether they can."""
        if kind not in self.available:
            return False
        try:
            self._enable(kind, directory)
        except OSError as error:
            self._complain(f"the cgroup controller {kind} cannot be enabled, so that limits are watched: {_said(error)}")
            if not self.enabled(kind, self._base) and error.errno not in _PASSING:
                self.available.discard(kind)
            return False
        return True

    def _enable(self, kind: str, directory: str) -> None:
        for path in reversed(list(self._up(directory))):
            enabled = self._enabled.setdefault(path, set())
            if kind not in enabled:
                cgroupfs.write(f"{path}/cgroup.subtree_control", b"+" + kind.encode())
                enabled.add(kind)

    def _up(self, directory: str) -> Iterator[str]:
        while len(directory) >= len(self._parent):
            yield directory
            directory = os.path.dirname(directory)

    def enabled(self, kind: str, directory: str) -> bool:
        """Whether the cgroups in `directory` have that controller."""
        return kind in self._enabled.get(directory, ())

    def forget(self, directory: str) -> None:
        """It was removed."""
        self._enabled.pop(directory, None)

    def close(self) -> None:
        """Undoes what was done to PARENT, once the base is gone. Another instance may still need it: then that one does."""
        self._enabled.clear()
        if os.path.exists(self._base):
            return
        if self._vacated:
            undo(self._parent, settle=True)
        elif not _others(self._parent):
            _disable(self._parent, set(KINDS) - self._before)


def undo(parent: str, *, settle: bool = False) -> None:
    """Ends the distribution of `parent`, if a daemon has vacated it and no instance is left in it. `settle` moves what sits
    in the leaf back; without it, a leaf that is in use stays."""
    leaf = f"{parent}/{LEAF}"
    with suppress(OSError):
        if not os.path.isdir(leaf) or _others(parent):
            return
        _disable(parent, set(KINDS))
        if settle:
            _move(leaf, parent)
        os.rmdir(leaf)


def release_unit() -> None:
    """In a process of `ExecStopPost=`: ends the distribution of the unit's cgroup, and of all in it, if a daemon has vacated it.
    Nothing is killed: runs are without limits until the daemon that systemd starts next has adopted them. Where systemd itself
    puts the daemon into the leaf, they stay as they are."""
    own = procfs.cgroup(os.getpid()) or "/"
    for directory in (found for mount in cgroupfs.mounts() if (found := mount.directory(own))):
        unit, name = os.path.split(directory)
        with suppress(OSError):
            if name == _CONTROL and _was_vacated(unit):
                for inner in reversed(list(cgroupfs.nested(unit))):
                    _disable(inner, set(KINDS))


def _others(parent: str) -> bool:
    return any(name.startswith("sfad-") for name in os.listdir(parent))


def _disable(directory: str, kinds: set[str]) -> None:
    for kind in kinds & _words(f"{directory}/cgroup.subtree_control"):
        with suppress(OSError):  # somebody else's cgroup in it uses it
            cgroupfs.write(f"{directory}/cgroup.subtree_control", b"-" + kind.encode())


def _vacate(parent: str) -> bool:
    """Whether it was necessary. Raises `OSError` where what sits there is not ours to move."""
    if not os.path.exists(f"{parent}/cgroup.type"):  # the root of the hierarchy may hold processes and distribute
        return False
    sitting = set(cgroupfs.pids(parent))
    if not sitting:
        return False
    # where pid 1 sits is the top of a container, and the next `docker exec` joins it there
    if not (sitting <= {os.getpid()} or (_delegated(parent) and 1 not in sitting)):
        strangers = ", ".join(map(str, sorted(sitting - {os.getpid()})[:5]))
        raise OSError(f"{parent} also holds processes that are not the daemon's ({strangers})")
    with suppress(FileExistsError):
        os.mkdir(f"{parent}/{LEAF}")
    with suppress(OSError):
        os.setxattr(f"{parent}/{LEAF}", _VACATED, b"1")
    _move(parent, f"{parent}/{LEAF}")
    return True


def _was_vacated(parent: str) -> bool:
    """Whether a daemon has done it, and not systemd."""
    try:
        return os.getxattr(f"{parent}/{LEAF}", _VACATED) == b"1"
    except OSError:
        return False


def _delegated(directory: str) -> bool:
    """Whether systemd says that the cgroup is its unit's own: then everything in it belongs to the daemon's service."""
    for name in ("user.delegate", "trusted.delegate"):  # the first since systemd 251; the second is for root to see
        with suppress(OSError):
            return os.getxattr(directory, name) == b"1"
    return False


def _move(source: str, target: str) -> None:
    """Moves every process. Raises `OSError`, also if they do not stop coming."""
    for _ in range(_TRIES):
        sitting = list(cgroupfs.pids(source))
        if not sitting:
            return
        for pid in sitting:
            with suppress(ProcessLookupError):
                cgroupfs.write(f"{target}/cgroup.procs", str(pid).encode())
    raise OSError(f"{source} cannot be emptied")


def _words(path: str) -> set[str]:
    return set(cgroupfs.read(path).decode().split())


def _said(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


# The files of one cgroup.


def settings(kind: str, value: float | None) -> list[tuple[str, bytes]]:
    """Control files and what to write to them for that bound; `None` is none. A file may be missing if it is not the last."""
    if kind == "cpu":
        quota = b"max" if value is None else b"%d" % max(_LEAST_QUOTA, round(value * _PERIOD))
        return [("cpu.max", quota + b" %d" % _PERIOD)]
    limit = b"max" if value is None else b"%d" % value
    # without it a run that is short of memory would fill the machine's swap first
    swap = [("memory.swap.max", b"max" if value is None else b"0")] if kind == "memory" else []
    return [*swap, (f"{kind}.max", limit)]


def current_pids(directory: str) -> int | None:
    """Processes and threads in a cgroup that has the controller, zombies included."""
    content = cgroupfs.read(f"{directory}/pids.current")
    return int(content) if content else None


def charged_memory(directory: str) -> int | None:
    """Bytes of anonymous and shared memory that are charged to it. Neither its page cache, which the kernel takes back
    before it enforces anything, nor what the kernel itself needs for it: so it can be compared to what processes hold."""
    fields = dict(line.split() for line in (procfs.read_whole(f"{directory}/memory.stat") or b"").splitlines())
    return int(fields[b"anon"]) + int(fields[b"shmem"]) if fields else None


def enforced(kind: str, directory: str) -> int:
    """How often the kernel has enforced a bound of this very cgroup, not of one below it or above."""
    if kind == "memory":
        # not `max`: that is page cache being taken back, which harms nobody; not `oom_kill`: it also counts what the machine was
        # short of. `oom` comes before the kill.
        return _counter(f"{directory}/memory.events.local", b"oom")
    local = f"{directory}/pids.events.local"
    return _counter(local, b"max") if os.path.exists(local) else _failed_forks(directory)


def _failed_forks(directory: str) -> int:
    """Before Linux 6.11 a fork that failed is counted where it was tried, whichever cgroup's bound it met. This one's it can
    only have been if it was full at some time (`pids.peak`, 6.1) or is."""
    limit = cgroupfs.read(f"{directory}/pids.max").strip()
    peak = procfs.read(f"{directory}/pids.peak") or cgroupfs.read(f"{directory}/pids.current")
    if not limit.isdigit() or int(peak or 0) < int(limit):
        return 0
    return sum(_counter(f"{inner}/pids.events", b"max") for inner in cgroupfs.nested(directory))


def _counter(path: str, name: bytes) -> int:
    """0 if the cgroup is gone, or has no such file."""
    words = (procfs.read(path) or b"").split()
    return int(words[words.index(name) + 1]) if name in words else 0
