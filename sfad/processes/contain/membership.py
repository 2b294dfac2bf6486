"""Which run a process is in, and binding runs to CPUs."""

import math
import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from time import monotonic
from types import MappingProxyType
from typing import TypeVar

import psutil
from msgspec import Struct

from ...protocol.types import RunId
from .. import kernel
from ..credentials import COOKIE
from ..kernel import reaped
from ..launched_runs import LaunchedRun, LaunchedRuns, cookie, cookie_run
from ..launcher import Bounds, Unidentifiable
from ..observed import ask, find
from .interface import RunContainment

# ---- Which run a process is in by its ancestors and its cookie, where no cgroup tells


_ANCESTRY_READS = 5


def run_by_cookie(pid: int, runs: LaunchedRuns) -> RunId | None:
    """Return the run whose cookie a process carries. Raises `Unidentifiable` for a cookie of this
    instance that no run has."""
    value = cookie(pid, runs.instance)
    if value is None:
        return None
    run_id = cookie_run(value)
    if run_id in runs and runs[run_id].cookie == value:
        return run_id
    raise Unidentifiable(f"process {pid} carries the cookie of run {run_id}, which is not running")


_Found = TypeVar("_Found")
_identity = attrgetter("pid", "started")


def with_steady_ancestors(pid: int, look: Callable[[list[kernel.Stat]], _Found]) -> _Found:
    """Return what `look` says of a process and its ancestors, up to this process, if they were the
    same before and after: the pid of a parent that ends meanwhile may be used again. Raises
    `Unidentifiable` if they keep changing."""
    for _ in range(_ANCESTRY_READS):
        chain = list(kernel.ancestors(pid, os.getpid()))
        answer = look(chain)
        after = kernel.ancestors(pid, os.getpid())
        if list(map(_identity, chain)) == list(map(_identity, after)):
            return answer
    raise Unidentifiable(f"the ancestors of process {pid} keep changing")


def descends(chain: list[kernel.Stat]) -> bool:
    """Return whether a process descends from this one, by its ancestors."""
    return len(chain) > 1 and chain[-1].pid == os.getpid()


def run_by_ancestors(pid: int, run_of: Callable[[int], RunId | None]) -> tuple[RunId | None, bool]:
    """Return the run of the nearest process that `run_of` knows, of `pid` and its ancestors; and
    whether `pid` descends from this process. Raises `Unidentifiable`."""

    def look(chain: list[kernel.Stat]) -> tuple[RunId | None, bool]:
        me = os.getpid()
        found = (run_of(one.pid) for one in chain if one.pid != me)
        return next(filter(None, found), None), descends(chain)

    return with_steady_ancestors(pid, look)


def unmarked(pid: int) -> Unidentifiable:
    """Return the refusal of a descendant of the daemon that is in no known run: it is in some run,
    and must not have the rights of a person."""
    return Unidentifiable(
        f"process {pid} was started within a run of this daemon, "
        "but has left its run's containment and removed its marks; ask from a process that has not"
    )


def printable_path(path: str) -> str:
    """Return a path as text that can be encoded."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def still_there(pidfd: int | None) -> bool:
    """Return whether the pidfd's process is still there, so that /proc/PID was about it: later its
    pid may be used again."""
    return pidfd is None or not reaped(pidfd)


# ---- Binding runs to CPUs, where no `cpu` controller can throttle them. Best effort: a process may
# choose other CPUs itself.
#
# A run that may use 1.5 cores is bound to two of the CPUs that its parent run may use. So it cannot
# use more than two; nothing limits it to one and a half. Runs are spread: each begins where the
# last one ended.


Cpus = frozenset[int]


class Affinity:
    """Chooses CPUs among those that this process has now, or among `cpus`."""

    def __init__(self, cpus: Cpus | None = None) -> None:
        self.all: Cpus = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
        self._turn = 0

    def choose(self, cores: float, within: Cpus) -> Cpus:
        """Return as many of `within` as `cores` takes."""
        count = math.ceil(cores)
        if count >= len(within):
            return within
        ordered = sorted(within)
        first, self._turn = self._turn, self._turn + count
        return frozenset(ordered[(first + offset) % len(ordered)] for offset in range(count))


class RunCpus:
    def __init__(self, runs: LaunchedRuns, containment: RunContainment) -> None:
        self._runs = runs
        self._containment = containment
        self._affinity = Affinity()

    @property
    def several(self) -> bool:
        """Whether there is more than one CPU. With one there is nothing to bind a run to."""
        return len(self._affinity.all) > 1

    @property
    def _binding(self) -> bool:
        return self.several and not self._containment.limits.enforces("cpu")

    def set_bounds(self, run: LaunchedRun, bounds: Bounds) -> None:
        """Give a run its bounds, and choose CPUs for it and for the runs below it."""
        again = bounds.cpu != run.bounds.cpu
        run.bounds = bounds
        # each after the run above it
        for below in run.subtree() if again and self._binding else ():
            below.cpus = self._choose(below)

    def _choose(self, run: LaunchedRun) -> Cpus | None:
        if run.bounds.cpu is None:
            return None
        within = run.parent.bound_to if run.parent else None
        return self._affinity.choose(run.bounds.cpu, within or self._affinity.all)

    def rebind(self, run: LaunchedRun) -> None:
        """Bind the live processes of a run and its descendants. Raises `OSError`."""
        # a process that was forked during the first pass inherited the old CPUs
        for _ in range(2 if self._binding else 0):
            for pid, run_id in tuple(self._containment.members(run)):
                bind(pid, self._runs[run_id].bound_to or self._affinity.all)

    def recall(self, run: LaunchedRun) -> None:
        """Find out what an earlier daemon bound the run to, else choose. Raises `OSError`."""
        if run.bounds.cpu is not None and self._binding:
            with suppress(ProcessLookupError):
                run.cpus = frozenset(os.sched_getaffinity(run.main.pid)) if run.main else None
            run.cpus = run.cpus or self._choose(run)


def bind(pid: int, cpus: Cpus) -> None:
    """Bind every thread of a process; what it starts later inherits that. Raises `OSError`, but not
    if the process is gone."""
    # its `cpu_affinity` would bind the first one only
    for thread in ask(lambda: psutil.Process(pid).threads(), []):
        with suppress(ProcessLookupError, PermissionError):
            os.sched_setaffinity(thread.id, cpus)


# ---- A scan of all processes of the machine for the marks of runs

_REUSED_FOR = 1.0
"""Seconds for which a scan is used again, while one run after the other is adopted."""
FOREIGN: RunId = ""
"""In the place of a run: a foreign process."""


class MarkedProcess(Struct, frozen=True):
    """A process and the marks that it inherited."""

    process: psutil.Process
    parent: int
    cookie: bytes | None
    """Of any instance."""
    tag: int | None


RunOf = Callable[[MarkedProcess, RunId | None], RunId | None]
"""Takes a process and its parent's run; returns its run, `None` if it is in none, or `FOREIGN` if
it is foreign."""


def with_marks(process: psutil.Process, parent: int = 0) -> MarkedProcess:
    """Raises `OSError`."""
    tag = ask(lambda: process.rlimit(resource.RLIMIT_MSGQUEUE)[0], None)
    return MarkedProcess(process, parent, kernel.variable(process.pid, COOKIE), tag)


def run_by_marks(
    one: MarkedProcess,
    inherited: RunId | None,
    cookies: Mapping[bytes, RunId],
    tags: Mapping[int, RunId],
) -> RunId | None:
    """Return the run of a process that has no ancestor in a run, by the cookies and tags of the
    runs that are looked for."""
    carried = cookies.get(one.cookie) if one.cookie is not None else None
    if carried is not None:
        return carried
    if inherited == FOREIGN:
        return FOREIGN
    if one.cookie is not None:
        # where another daemon's run has started this daemon and the earlier one, an orphan may be
        # below that run's processes
        mine = {each.pid for each in kernel.ancestors(os.getpid())}
        return None if one.process.pid in mine else FOREIGN
    return tags.get(one.tag) if one.tag is not None else None


class MarkScan(Struct, frozen=True, dict=True):
    """All living processes."""

    processes: Mapping[int, MarkedProcess]

    @cached_property
    def families(self) -> Mapping[int, list[int]]:
        """Children by parent; orphans, whose parent was not seen, by 0."""
        families: dict[int, list[int]] = defaultdict(list)
        for pid, one in self.processes.items():
            families[one.parent if one.parent in self.processes else 0].append(pid)
        return families

    @cached_property
    def ours(self) -> frozenset[int]:
        """This process and its descendants."""
        return frozenset(
            one.process.pid for one, _ in self.with_runs(lambda _one, _above: None, os.getpid())
        )

    def with_runs(
        self, of: RunOf, top: int = 0, *, but: int = 0
    ) -> Iterator[tuple[MarkedProcess, RunId | None]]:
        """Yield `top` and every process below it, with its run; leave out `but` and what is below
        that."""
        pending: list[tuple[int, RunId | None]] = [(top, None)]
        while pending:
            pid, inherited = pending.pop()
            if pid and (pid == but or pid not in self.processes):
                continue
            if pid:
                inherited = of(self.processes[pid], inherited)
                yield self.processes[pid], inherited
            pending.extend((child, inherited) for child in self.families.get(pid, ()))

    @cached_property
    def _by_mark(self) -> Mapping[bytes | int | None, list[int]]:
        found: dict[bytes | int | None, list[int]] = defaultdict(list)
        for pid, one in self.processes.items():
            found[one.cookie].append(pid)
            found[one.tag].append(pid)
        return found

    def carriers(self, cookie: bytes, tag: int | None) -> list[int]:
        """Return the processes that carry one of the marks: quick, where `members` looks at each
        process of the machine."""
        return [
            *self._by_mark.get(cookie, ()),
            *(self._by_mark.get(tag, ()) if tag is not None else ()),
        ]

    def members(self, cookie: bytes, tag: int | None) -> list[psutil.Process]:
        """Return the processes of one run, by its cookie and tag."""
        cookies: dict[bytes, RunId] = {cookie: "it"}
        tags: dict[int, RunId] = {tag: "it"} if tag is not None else {}

        def of(one: MarkedProcess, inherited: RunId | None) -> RunId | None:
            return inherited if inherited == "it" else run_by_marks(one, inherited, cookies, tags)

        return [one.process for one, run_id in self.with_runs(of) if run_id == "it"]


def scan_marks(known: Mapping[int, MarkedProcess] = MappingProxyType({})) -> MarkScan:
    """Look at all processes. `known` are processes of which an earlier look has found the marks.
    Raises `OSError`."""
    marked = {pid: one for pid, one in known.items() if one.cookie is not None}
    fresh = (process for pid in psutil.pids() if pid not in marked and (process := find(pid)))
    # psutil's `status` and `ppid` would add 50 us a process: a tenth of the adoption of a thousand
    # runs (`recovery`: 0.9 s of CPU)
    shown = ((process, kernel.stat(process.pid)) for process in fresh)
    return MarkScan(
        marked
        | {
            process.pid: with_marks(process, now.parent)
            for process, now in shown
            if now and now.alive
        }
    )


class RecentScan:
    """Two looks, one after the other, for what an earlier daemon has left: the second finds what
    was forked during the first. A thousand runs may be adopted at once, and the same looks serve
    them all."""

    def __init__(self) -> None:
        self._taken: MarkScan | None = None
        self._at = 0.0

    def recent(self) -> MarkScan:
        """Return the processes of both looks; some have ended since. Raises `OSError`."""
        if self._taken is None or monotonic() - self._at > _REUSED_FOR:
            self._taken = scan_marks(scan_marks().processes)
            self._at = monotonic()
        return self._taken
