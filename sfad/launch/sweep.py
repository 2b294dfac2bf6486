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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from time import monotonic, sleep

from ..protocol.types import RunId
from . import cgroupfs, controllers, procfs
from .lineage import cookie, cookie_run

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


def sweep(instance: str, cgroup_parent: str | None = None) -> SweepReport:
    """Kills everything that runs of this instance left, and removes its cgroups. Blocks, for at most 20 s."""
    runs: set[RunId] = set()
    pids: set[int] = set()
    left: set[int] = set()
    for directory in _bases(instance, cgroup_parent):
        runs.update(_runs(directory))
        pids.update(_pids(directory))
        left.update(_clear(directory))
    for found in _carriers(instance):
        runs.update(found.values())
        pids.update(found)
        left.update(found)
    left = {pid for pid in left if procfs.plight(pid)}
    return SweepReport(tuple(sorted(runs)), tuple(sorted(pids)), tuple(sorted(left)))


def _bases(instance: str, parent: str | None) -> Iterator[str]:
    """The instance's directory, wherever it is: a daemon started otherwise was in another cgroup."""
    name = f"sfad-{instance}"
    tops = [parent] if parent else [mount.point for mount in cgroupfs.mounts()]
    for top in tops:
        for directory in cgroupfs.nested(top):
            if os.path.basename(directory) == name:
                yield directory


def _runs(base: str) -> Iterator[RunId]:
    return (os.path.basename(d) for d in cgroupfs.nested(base) if d != base and os.path.isdir(f"{d}/self"))


def _pids(base: str) -> list[int]:
    return [pid for directory in cgroupfs.nested(base) for pid in cgroupfs.pids(directory)]


def _clear(base: str) -> list[int]:
    """Kills all of a base and removes it; what is left of it."""
    until = monotonic() + BOUND
    try:
        with open(f"{base}/cgroup.events", "rb", buffering=0) as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while b"populated 1" in os.pread(events.fileno(), 256, 0) and monotonic() < until:
                _kill_group(base)
                poll.poll(_INSIST * 1000)
    except FileNotFoundError:
        return []
    _remove(base)
    controllers.undo(os.path.dirname(base))
    return _pids(base)


def _kill_group(base: str) -> None:
    try:
        cgroupfs.write(f"{base}/cgroup.kill", b"1")
    except FileNotFoundError:  # before Linux 5.14
        for pid in _pids(base):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


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


def _carriers(instance: str) -> Iterator[dict[int, RunId]]:
    """Kills those who carry the cookie until a look finds none; yields what each look found."""
    until = monotonic() + BOUND
    while monotonic() < until:
        found = _find(instance)
        yield found
        if not found:
            return
        _kill_all(found, until)


def _find(instance: str) -> dict[int, RunId]:
    table = {pid: process for pid, process in procfs.scan().items() if process.alive}
    spared = set(procfs.ancestry(os.getpid()))
    families: dict[int, list[int]] = defaultdict(list)
    for process in table.values():
        families[process.parent].append(process.pid)
    found: dict[int, RunId] = {}
    pending = [(pid, cookie_run(value)) for pid in table if (value := cookie(pid, instance))]
    while pending:
        pid, run = pending.pop()
        if pid not in found and pid not in spared:
            found[pid] = run
            pending.extend((child, run) for child in families[pid])
    return found


def _kill_all(pids: Iterable[int], until: float) -> None:
    with ExitStack() as stack:
        poll = select.poll()
        waiting: set[int] = set()
        for pid in list(pids)[:_BATCH]:
            with suppress(ProcessLookupError, PermissionError):
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
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
