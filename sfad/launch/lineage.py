"""Which run a process is in by what it inherited, where no cgroup tells."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..protocol.types import RunId
from . import procfs
from .base import Unplaceable
from .local import Held
from .marks import cookie, cookie_run
from .procfs import Stat

_TRIES = 5


def by_cookie(pid: int, instance: str, runs: Mapping[RunId, Held]) -> RunId | None:
    """The run that a process carries the cookie of. Raises `Unplaceable` for a cookie of this instance that no run holds."""
    value = cookie(pid, instance)
    if value is None:
        return None
    run = cookie_run(value)
    if run in runs and runs[run].cookie == value:
        return run
    raise Unplaceable(f"process {pid} carries the cookie of run {run}, which is not running")


def lineage(pid: int) -> tuple[Stat, ...]:
    """A process and its ancestors, as far as this process or as /proc tells."""
    found: list[Stat] = []
    while pid > 0 and (process := procfs.stat(pid)):
        found.append(process)
        pid = 0 if pid == os.getpid() else process.parent
    return tuple(found)


def same(one: tuple[Stat, ...], other: tuple[Stat, ...]) -> bool:
    """Whether two lineages are of the same processes."""
    return [(p.pid, p.started) for p in one] == [(p.pid, p.started) for p in other]


_Found = TypeVar("_Found")


def settled(pid: int, look: Callable[[tuple[Stat, ...]], _Found]) -> _Found:
    """What `look` says of the lineage of a process, where that was the same before and after: a parent that ends meanwhile
    may leave its pid to another. Raises `Unplaceable` where it keeps changing."""
    for _ in range(_TRIES):
        chain = lineage(pid)
        answer = look(chain)
        if same(chain, lineage(pid)):
            return answer
    raise Unplaceable(f"the ancestors of process {pid} keep changing")


def descends(chain: tuple[Stat, ...]) -> bool:
    """Whether the process that the lineage is of was started by this one, or by a process that was."""
    return len(chain) > 1 and chain[-1].pid == os.getpid()


def by_ancestry(pid: int, run_of: Callable[[int], RunId | None]) -> tuple[RunId | None, bool]:
    """The run of the nearest ancestor, or the process itself, that `run_of` knows; and whether the process descends from this one.
    Raises `Unplaceable`."""

    def look(chain: tuple[Stat, ...]) -> tuple[RunId | None, bool]:
        run = next((run for one in chain if one.pid != os.getpid() and (run := run_of(one.pid))), None)
        return run, descends(chain)

    return settled(pid, look)


def left(pid: int) -> Unplaceable:
    """Why a descendant of the daemon that nothing places is refused: it is in some run, and would have the rights of a person."""
    return Unplaceable(
        f"process {pid} was started within a run of this daemon, but has left its run's containment and removed its marks; "
        "ask from a process that has not"
    )


def shown(path: str) -> str:
    """A path as text that can be encoded."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def still(pidfd: int | None) -> bool:
    """Whether what /proc/PID told was about this process: once it has ended, its pid may be another's."""
    if pidfd is None:
        return True
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
