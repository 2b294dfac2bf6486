"""Ends what a dead daemon left: the processes in its cgroups, and those that carry its cookie.

Only what is provably of the instance is touched: cgroups below a directory of its name, and processes whose environment,
as the kernel shows it, holds its cookie, with their descendants. So without cgroups an orphan that cleared its
environment is not found: once the daemon is dead nothing tells whose it was. Whoever sweeps holds the lock of the state
directory.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from time import monotonic, sleep

from ..core.ids import run_number
from ..protocol.types import RunId
from . import procfs
from .contain.cgroup import cgroupfs, controllers
from .contain.marks import cookie, cookie_run

BOUND = 10.0
"""Seconds that a sweep takes at most for the cgroups, and for the cookies; `stop.kill_wait`'s default."""
_INSIST = 0.5
_BATCH = 256
"""Pidfds held at a time."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did."""

    runs: tuple[RunId, ...] = ()
    """Runs of which something was found."""
    pids: tuple[int, ...] = ()
    """Processes that were found."""
    left: tuple[int, ...] = ()
    """Those that are still there (uninterruptible sleep, for example)."""


def sweep(instance: str, cgroup_parent: str | None = None, spare: Set[RunId] = frozenset(), home: str | None = None) -> SweepReport:
    """Kills everything that runs of this instance left, and removes its cgroups. Blocks, for at most 20 s.

    What is in a run of `spare` is left alone: its cgroup, who carries its cookie and their descendants; but not runs below it
    that are not in `spare`. `home` is the directory of a living daemon, which stays and keeps its controllers.
    """
    runs: set[RunId] = set()
    pids: set[int] = set()
    left: set[int] = set()
    kept: set[int] = set()
    for base in cgroupfs.bases(instance, cgroup_parent):
        tops = cgroupfs.inner(base) if base == home else [base]
        for directory in (path for top in tops for path in _condemned(top, spare)):
            runs.update(_runs(directory))
            pids.update(_pids(directory))
            left.update(_clear(directory))
        kept.update(_pids(base))
    for found in _carriers(instance, spare, kept):
        runs.update(found.values())
        pids.update(found)
        left.update(found)
    left = {pid for pid in left if procfs.plight(pid)}
    return SweepReport(tuple(sorted(runs)), tuple(sorted(pids)), tuple(sorted(left)))


def _condemned(top: str, spare: Set[RunId]) -> Iterator[str]:
    """The cgroups in `top`, or it itself, that hold nothing of a run to be spared, and are in none that is condemned."""
    paths = list(cgroupfs.nested(top))
    kept = _with_those_above(top, (path for path in paths if os.path.basename(path) in spare))
    entered: set[str] = set()
    for path in paths:
        above = os.path.dirname(path)
        # what an agent has made in its own cgroup is the agent's
        if path == top or (above in entered and (_is_run(path) or os.path.basename(above) not in spare)):
            if path in kept:
                entered.add(path)
            else:
                yield path


def _with_those_above(top: str, paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while path not in found and len(path) >= len(top):
            found.add(path)
            path = os.path.dirname(path)
    return found


def _is_run(directory: str) -> bool:
    try:
        return run_number(os.path.basename(directory)) > 0
    except ValueError:
        return False


def _runs(top: str) -> Iterator[RunId]:
    leaves = (path for path in cgroupfs.nested(top) if os.path.basename(path) == "self")
    return (os.path.basename(os.path.dirname(path)) for path in leaves)


def _pids(base: str) -> list[int]:
    return [pid for directory in cgroupfs.nested(base) for pid in cgroupfs.pids(directory)]


def _clear(base: str) -> list[int]:
    """Kills all of a cgroup and removes it; what is left of it."""
    until = monotonic() + BOUND
    try:
        with open(f"{base}/cgroup.events", "rb", buffering=0) as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while b"populated 1" in os.pread(events.fileno(), 256, 0) and monotonic() < until:
                cgroupfs.write(f"{base}/cgroup.kill", b"1")
                poll.poll(_INSIST * 1000)
    except OSError as error:
        if error.errno not in procfs.GONE:  # systemd removes what has become empty
            raise
        return []
    _remove(base)
    if os.path.basename(base).startswith("sfad-"):
        controllers.undo(os.path.dirname(base))
    return _pids(base)


def _remove(base: str) -> None:
    for _ in range(50):
        try:
            cgroupfs.remove_tree(base)
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
            sleep(0.02)  # the last process has gone but its cgroup may be busy for a moment
        else:
            return


def _carriers(instance: str, spare: Set[RunId], kept: Set[int]) -> Iterator[dict[int, RunId]]:
    """Kills those who carry the cookie until a look finds none; yields what each look found."""
    until = monotonic() + BOUND
    while monotonic() < until:
        found, table = _find(instance, spare, kept)
        yield found
        if not found:
            return
        _kill_all([table[pid] for pid in found], until)


def _find(instance: str, spare: Set[RunId], kept: Set[int]) -> tuple[dict[int, RunId], dict[int, procfs.Stat]]:
    """Who carries a cookie that is not to be spared, and their descendants; and what lives on this machine."""
    table = {pid: process for pid, process in procfs.scan().items() if process.alive}
    families: dict[int, list[int]] = defaultdict(list)
    for process in table.values():
        families[process.parent].append(process.pid)
    carriers = {pid: cookie_run(value) for pid in table if (value := cookie(pid, instance))}
    spared = {pid: run for pid, run in carriers.items() if run in spare} | dict.fromkeys(kept, "")
    mine = dict.fromkeys(procfs.ancestry(os.getpid()), "")
    return _with_descendants(carriers, families, {**_with_descendants(spared, families, {}), **mine}), table


def _with_descendants(tops: dict[int, RunId], families: Mapping[int, list[int]], spared: Container[int]) -> dict[int, RunId]:
    found: dict[int, RunId] = {}
    pending = list(tops.items())
    while pending:
        pid, run = pending.pop()
        if pid not in found and pid not in spared:
            found[pid] = run
            pending.extend((child, run) for child in families.get(pid, ()))
    return found


def _kill_all(processes: Sequence[procfs.Stat], until: float) -> None:
    with ExitStack() as stack:
        poll = select.poll()
        waiting: set[int] = set()
        for process in processes[:_BATCH]:
            with suppress(ProcessLookupError, PermissionError):
                pidfd = os.pidfd_open(process.pid)
                stack.callback(os.close, pidfd)
                if not procfs.is_alive(process.pid, process.started):
                    continue  # it has ended since, and its pid may be somebody else's
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                poll.register(pidfd, select.POLLIN)
                waiting.add(pidfd)
        while waiting and monotonic() < until:
            ended = [fd for fd, _ in poll.poll(_INSIST * 1000)]
            if not ended:
                return
            for fd in ended:
                poll.unregister(fd)
                waiting.discard(fd)
