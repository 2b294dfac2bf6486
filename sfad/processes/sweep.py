"""Ends what a dead daemon left: the processes in its cgroups, and those that carry its cookie.

Only what is provably of the instance is touched: cgroups below a directory of its name, and
processes whose environment, as the kernel shows it, has its cookie, with their descendants. So
without cgroups an orphan that cleared its environment is not found: once the daemon is dead nothing
tells whose it was. The caller has locked the state directory.
"""

import errno
import os
import select
import signal
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, suppress
from time import monotonic, sleep

import psutil
from msgspec import Struct

from ..core.state.run import number_or_zero
from ..protocol.types import RunId
from . import kernel, observed
from .contain import membership
from .contain.cgroup import cgroupfs, controllers
from .launched_runs import cookie, cookie_run

_SWEEP_WITHIN = 10.0
"""Seconds that a sweep takes at most for the cgroups, and again for the cookies; `stop.kill_wait`'s
default."""
_KILL_EVERY = 0.5
"""Seconds between two kills of what does not go."""
_PIDFDS_AT_ONCE = 256
"""Pidfds open at a time."""
_SWEPT: RunId = "swept"
"""In the place of a run: a process to be killed."""


class SweepReport(Struct, frozen=True):
    pids: tuple[int, ...] = ()
    """Processes that were found."""
    left: tuple[int, ...] = ()
    """Processes that are still there (uninterruptible sleep, for example)."""


def sweep(
    instance: str,
    cgroup_parent: str | None = None,
    spare: Set[RunId] = frozenset(),
    home: str | None = None,
) -> SweepReport:
    """Kill everything that runs of this instance left, and remove its cgroups. Blocks, for at most
    20 s.

    The runs in `spare` are left alone: their cgroups, the processes that carry their cookies, and
    the descendants of these; but not the runs below them that are not in `spare`. `home` is the
    directory of a live daemon, which keeps its controllers."""
    pids: set[int] = set()
    left: set[int] = set()
    bases = list(cgroupfs.bases(instance, cgroup_parent))
    for base in bases:
        tops = cgroupfs.inner(base) if base == home else [base]
        for directory in (path for top in tops for path in _removable(top, instance, spare)):
            pids.update(_pids(directory))
            left.update(_clear(directory))
    for found in _kill_carriers(instance, spare, bases):
        pids.update(found)
        left.update(found)
    return SweepReport(
        tuple(sorted(pids)), tuple(sorted(pid for pid in left if observed.why_alive(pid)))
    )


def _removable(top: str, instance: str, spare: Set[RunId]) -> Iterator[str]:
    """Yield the outermost cgroups in `top`, or `top` itself, with nothing of a run to be spared."""
    paths = list(cgroupfs.nested(top))
    kept = _with_those_above(top, (path for path in paths if os.path.basename(path) in spare))
    entered: set[str] = set()
    for path in paths:
        above = os.path.dirname(path)
        # cgroups that an agent has made in its own are the agent's, also those named like a run
        is_run = number_or_zero(os.path.basename(path)) > 0 and not (
            above in kept and _is_of(path, instance, spare)
        )
        if path == top or (above in entered and (is_run or os.path.basename(above) not in spare)):
            if path in kept:
                entered.add(path)
            else:
                yield path


def _is_of(directory: str, instance: str, runs: Set[RunId]) -> bool:
    """Return whether a cgroup has processes, and all of them carry the cookies of these runs."""
    found = [cookie(pid, instance) for pid in _pids(directory)]
    return bool(found) and all(one is not None and cookie_run(one) in runs for one in found)


def _with_those_above(top: str, paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while path not in found and len(path) >= len(top):
            found.add(path)
            path = os.path.dirname(path)
    return found


def _pids(base: str) -> list[int]:
    return [pid for directory in cgroupfs.nested(base) for pid in cgroupfs.pids(directory)]


def _clear(base: str) -> list[int]:
    """Kill all of a cgroup and remove it; return the processes that are left."""
    until = monotonic() + _SWEEP_WITHIN
    try:
        with open(f"{base}/cgroup.events", "rb", buffering=0) as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while b"populated 1" in os.pread(events.fileno(), 256, 0) and monotonic() < until:
                cgroupfs.write(f"{base}/cgroup.kill", b"1")
                poll.poll(_KILL_EVERY * 1000)
    except OSError as error:
        if error.errno not in kernel.GONE:  # systemd removes what has become empty
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


def _kill_carriers(instance: str, spare: Set[RunId], bases: Iterable[str]) -> Iterator[list[int]]:
    """Kill the processes that carry the cookie until a look finds none; yield what each look found.
    Those in the cgroups below `bases` and their descendants are spared, and so are this process and
    its ancestors."""
    until = monotonic() + _SWEEP_WITHIN
    prefix = f"{instance}:".encode()
    mine, kept = {each.pid for each in kernel.ancestors(os.getpid())}, frozenset[int]()

    def swept(one: membership.MarkedProcess, inherited: RunId | None) -> RunId | None:
        if inherited == membership.FOREIGN or one.process.pid in kept:
            return membership.FOREIGN
        if one.process.pid in mine:
            return None
        if one.cookie is None or not one.cookie.startswith(prefix):
            return inherited
        return membership.FOREIGN if cookie_run(one.cookie) in spare else _SWEPT

    while monotonic() < until:
        scan = membership.scan_marks()
        if _SWEPT in (run_id for _, run_id in scan.with_runs(swept)):
            kept = frozenset(pid for base in bases for pid in _pids(base))
        found = [one.process for one, run_id in scan.with_runs(swept) if run_id == _SWEPT]
        yield [process.pid for process in found]
        if not found:
            return
        _kill_all(found, until)


def _kill_all(processes: Sequence[psutil.Process], until: float) -> None:
    with ExitStack() as stack:
        poll = select.poll()
        waiting: set[int] = set()
        for process in processes[:_PIDFDS_AT_ONCE]:
            with suppress(ProcessLookupError, PermissionError):
                pidfd = os.pidfd_open(process.pid)
                stack.callback(os.close, pidfd)
                if not process.is_running():
                    continue  # it has ended since, and its pid may be another process's
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                poll.register(pidfd, select.POLLIN)
                waiting.add(pidfd)
        while waiting and monotonic() < until:
            ended = [fd for fd, _ in poll.poll(_KILL_EVERY * 1000)]
            if not ended:
                return
            for fd in ended:
                poll.unregister(fd)
                waiting.discard(fd)
