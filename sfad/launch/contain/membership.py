"""Which run a process is in by its ancestors and its cookie, where no cgroup tells."""

import os
from collections.abc import Callable
from typing import TypeVar

from ...protocol.types import RunId
from .. import procfs
from ..launched_runs import LaunchedRuns
from ..launcher import Unplaceable
from ..marks import cookie, cookie_run
from ..pidfd import reaped
from ..procfs import Stat

_ANCESTRY_READS = 5


def run_by_cookie(pid: int, runs: LaunchedRuns) -> RunId | None:
    """Return the run whose cookie a process carries. Raises `Unplaceable` for a cookie of this instance that no run has."""
    value = cookie(pid, runs.instance)
    if value is None:
        return None
    run_id = cookie_run(value)
    if run_id in runs and runs[run_id].cookie == value:
        return run_id
    raise Unplaceable(f"process {pid} carries the cookie of run {run_id}, which is not running")


def ancestors(pid: int) -> tuple[Stat, ...]:
    """Return a process and its ancestors, up to this process, or as far as /proc tells."""
    found: list[Stat] = []
    while pid > 0 and (process := procfs.stat(pid)):
        found.append(process)
        pid = 0 if pid == os.getpid() else process.parent
    return tuple(found)


_Found = TypeVar("_Found")


def with_steady_ancestors(pid: int, look: Callable[[tuple[Stat, ...]], _Found]) -> _Found:
    """Return what `look` says of the ancestors of a process, if that was the same before and after: the pid of a parent that ends
    meanwhile may be used again. Raises `Unplaceable` if they keep changing."""
    for _ in range(_ANCESTRY_READS):
        chain = ancestors(pid)
        answer = look(chain)
        if [(one.pid, one.started) for one in chain] == [(one.pid, one.started) for one in ancestors(pid)]:
            return answer
    raise Unplaceable(f"the ancestors of process {pid} keep changing")


def descends(chain: tuple[Stat, ...]) -> bool:
    """Return whether a process descends from this one, by its ancestors."""
    return len(chain) > 1 and chain[-1].pid == os.getpid()


def run_by_ancestors(pid: int, run_of: Callable[[int], RunId | None]) -> tuple[RunId | None, bool]:
    """Return the run of the nearest process that `run_of` knows, of `pid` and its ancestors; and whether `pid` descends from this
    process. Raises `Unplaceable`."""

    def look(chain: tuple[Stat, ...]) -> tuple[RunId | None, bool]:
        run_id = next((run_id for one in chain if one.pid != os.getpid() and (run_id := run_of(one.pid))), None)
        return run_id, descends(chain)

    return with_steady_ancestors(pid, look)


def unmarked(pid: int) -> Unplaceable:
    """Return the refusal of a descendant of the daemon that is in no known run: it is in some run, and must not have the rights of
    a person."""
    return Unplaceable(
        f"process {pid} was started within a run of this daemon, but has left its run's containment and removed its marks; "
        "ask from a process that has not"
    )


def printable_path(path: str) -> str:
    """Return a path as text that can be encoded."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def still_there(pidfd: int | None) -> bool:
    """Return whether the pidfd's process is still there, so that /proc/PID was about it: later its pid may be used again."""
    return pidfd is None or not reaped(pidfd)
