"""Runs from their first launch or adoption to their release, and which run has which mark."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from zlib import crc32

import trio
from msgspec import Struct, field

from ..core.state.run import number_or_zero
from ..protocol.types import RunId
from . import kernel
from .credentials import COOKIE
from .launcher import UNBOUND, Bounds, LaunchError, LaunchRecord
from .trampoline.executable import ITS_COMMAND, ITS_DIRECTORY

# ---- The two marks that the processes of a run inherit: a cookie in the environment, and a tag, a
# number in the soft
# RLIMIT_MSGQUEUE
#
# A process can change its own marks, or copy those of another run of the same user. So the cgroup
# and the ancestors of a process come first. But processes that an earlier daemon started are not
# below this process: pid 1 has adopted them, and without cgroups only their marks tell them.
# Foreign processes must not be taken for ours. A cookie names instance, run and a random number. A
# tag is a mere number: it counts only if neither the process nor an ancestor of it carries the
# cookie of another run, save an ancestor that this process has, too.


CAPACITY = 819_200
"""The kernel's default RLIMIT_MSGQUEUE, bytes (getrlimit(2)). Tags are numbers of its upper half,
so that message queues work."""


def tag(instance: str, run_id: RunId) -> int | None:
    """Return the number of a run: the same for the next daemon, unique among the live runs of an
    instance, and unlikely to be another instance's. That of a command, whose name has none, is any.
    None if every process has that number by default."""
    soft, hard = _own_limits()
    top = CAPACITY if hard == resource.RLIM_INFINITY else min(hard, CAPACITY)
    least = top // 2
    number = least + (int(instance, 16) + (number_or_zero(run_id) or crc32(run_id.encode()))) % max(
        1, top - least
    )
    return number if number != soft else None


@cache
def _own_limits() -> tuple[int, int]:
    # asked once, and not for each run: nothing changes it
    return resource.getrlimit(resource.RLIMIT_MSGQUEUE)


def cookie(pid: int, instance: str) -> bytes | None:
    """Return the cookie of this instance in the environment that a process was executed with, as
    the kernel shows it."""
    value = kernel.variable(pid, COOKIE)
    return value if value is not None and value.startswith(instance.encode() + b":") else None


def cookie_run(value: bytes) -> RunId:
    return value.split(b":")[1].decode("ascii", "replace")


# ---- The command within a sandbox, as the processes outside see it
#
# bwrap         the main process: waits for the command, and ends with its exit code
# └ bwrap       the first process of the sandbox's pid namespace
#   └ command   the second
#
# The first step of the run may stay, as the main process: it waits for the outer bwrap.


def command_of(main: int) -> int | None:
    """Return the pid of the command that a main process keeps in a sandbox; `None` while there is
    none."""
    children = kernel.children(main)
    below = (pid for child in children for pid in kernel.children(child))
    return next(filter(None, map(_command_in, (*children, *below))), None)


def _command_in(first: int) -> int | None:
    """Return the pid of the command of the sandbox whose first process this is."""
    if kernel.innermost_pid(first) != 1:
        return None
    return next((pid for pid in kernel.children(first) if kernel.innermost_pid(pid) == 2), None)


# ---- Runs, and their marks


class MainProcess(Struct):
    """A run's main process until it is reaped. `Mains` owns it."""

    pid: int
    report: int | None
    """The read end of the trampoline's report; `None` when the trampoline has become the command,
    or has failed."""
    name: bytes = ITS_COMMAND
    cwd: bytes = ITS_DIRECTORY
    """What is executed, and where, for an error to name."""
    pidfd: int = -1
    failure: LaunchError | None = None
    started: int | None = None
    """Clock ticks since boot; `None` until `LaunchedRun.record` asks where the process began as one
    tick became the next."""
    ours: bool = True
    """Whether it is a child of this process, which then reaps it."""
    exit_seen: float | None = None
    """When an adopted process was seen to exit, while the kernel has not told how."""
    sandboxed: bool = False
    """Whether it keeps the command in a sandbox, and is not the command itself."""
    clone_block: int | None = None
    """What it reads until it executes the trampoline; see `trampoline.creating`."""

    @property
    def command(self) -> int:
        """The pid of the command. A sandbox that does not have it yet stands for it."""
        return (command_of(self.pid) if self.sandboxed else None) or self.pid

    def signal(self, number: int) -> bool:
        """Send a signal to the command; return whether it was there to take it. A sandbox forwards
        no signal, and would end."""
        with suppress(ProcessLookupError, PermissionError):
            command = self.command if number != signal.SIGKILL else self.pid
            if command == self.pid:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(command, number)
            return True
        return False


class LaunchedRun(Struct, eq=False):
    """A run between its first launch and its release."""

    id: RunId
    parent: LaunchedRun | None
    cookie: bytes
    children: set[LaunchedRun] = field(default_factory=set)
    main: MainProcess | None = None
    in_program: bool = False
    """Whether a program carries it out, which is not in its containment, and has not ended it."""
    emptying: bool = False
    """Whether `Emptied` is owed."""
    emptied: bool = False
    """Whether it was told to be empty since its last launch: it is released soon."""
    freezing: bool = False
    """Whether `Frozen` is owed."""
    paused: bool = False
    """Whether the run is to stand still until it is thawed."""
    stop_count: int = 0
    """How often emptying has begun: what an earlier stop left behind must not touch the next
    attempt."""
    pause_count: int = 0
    """How often `freeze` and `thaw` were called: only the last call is tried again."""
    bounds: Bounds = UNBOUND
    cpus: frozenset[int] | None = None
    """The CPUs that the run was bound to because of its own limit."""
    launch_error: LaunchError | None = None
    """Why its launch failed, until that is reported."""
    stop_signal: int = signal.SIGTERM
    """The last signal of its stop."""
    tag: int | None = None
    """The number in its processes' soft RLIMIT_MSGQUEUE, once it has one to itself."""
    first_started: int = 0
    """When its first process started, in clock ticks since boot; 0 if that is not known."""

    @property
    def nonce(self) -> str:
        return self.cookie.rsplit(b":", 1)[1].decode()

    @property
    def bound_to(self) -> frozenset[int] | None:
        """The CPUs of the nearest run that is bound. The daemon starts every run, so a child run
        inherits none."""
        run = self
        while run.cpus is None and run.parent is not None:
            run = run.parent
        return run.cpus

    def upwards(self) -> Iterator[LaunchedRun]:
        """Yield the run and its ancestors, nearest first."""
        node: LaunchedRun | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[LaunchedRun]:
        yield self
        for child in tuple(self.children):
            yield from child.subtree()

    def has_main(self) -> bool:
        """Return whether `mains` has any, or a program carries out one of the subtree."""
        return (
            self.main is not None
            or self.in_program
            or (bool(self.children) and any(child.has_main() for child in self.children))
        )

    @property
    def mains(self) -> list[MainProcess]:
        """Main processes of the subtree. Each may be outside of its containment: not in it yet, or
        moved out of it."""
        return [run.main for run in self.subtree() if run.main]

    @property
    def sandboxes(self) -> set[int]:
        """Pids of main processes of the subtree that only wait for a command: they end with it, and
        take no signal but SIGKILL."""
        return {main.pid for main in self.mains if main.sandboxed and main.command != main.pid}

    def begin_stop(self, number: int) -> None:
        """Owe `Emptied` because of a signal, and undo every pause of the subtree."""
        self.stop_signal = number
        for below in self.subtree():
            below.paused = False
        if not self.emptying:
            self.emptying = True
            self.stop_count += 1

    def in_stop(self, stop: int) -> bool:
        """Return whether the stop with that number is still emptying the run."""
        return self.emptying and self.stop_count == stop

    def set_paused(self, paused: bool) -> int:
        """Note a `freeze` or `thaw`; return its number, to compare with `pause_count` later."""
        self.freezing = self.paused = paused
        self.pause_count += 1
        return self.pause_count

    def record(self) -> LaunchRecord:
        """Return what to save of the run. Raises `OSError`."""
        main = self.main
        if main is None:
            return LaunchRecord(self.nonce, self.bounds)
        # an unreaped child of ours has not gone
        if main.started is None and (process := kernel.stat(main.pid)):
            main.started = process.started
        self.first_started = self.first_started or main.started or 0
        return LaunchRecord(
            self.nonce, self.bounds, main.pid, main.started, sandboxed=main.sandboxed
        )


_nonces: list[str] = []
"""Nonces that no run has yet: getrandom(2) is asked for many at a time."""
os.register_at_fork(after_in_child=_nonces.clear)


def new_nonce() -> str:
    """Return the random part of a run's cookie: 64 bits, hexadecimal."""
    if not _nonces:
        _nonces.extend(os.urandom(8 * 256).hex(" ", 8).split())
    return _nonces.pop()


def run_ids(tops: Iterable[LaunchedRun]) -> set[RunId]:
    return {below.id for run in tops for below in run.subtree()}


class LaunchedRuns(dict[RunId, LaunchedRun]):
    """Every launched run by its id, and the runs of processes where the containment does not
    tell."""

    def __init__(self, instance: str) -> None:
        super().__init__()
        self.instance = instance
        self.tags: dict[int, RunId] = {}
        """Runs by the number in their processes' soft RLIMIT_MSGQUEUE."""
        self._first = trio.lowlevel.ParkingLot()
        self.emptied: Callable[[], object] = lambda: None
        """Called when the last run was dropped."""

    async def some(self) -> None:
        """Wait until there is a run."""
        while not self:
            await self._first.park()

    def add(
        self,
        run_id: RunId,
        parent: RunId | None,
        nonce: str,
        bounds: Bounds = UNBOUND,
        first_started: int = 0,
    ) -> LaunchedRun:
        """Add a run below its parent, which was added before."""
        above = self[parent] if parent is not None else None
        if not self and self._first:
            self._first.unpark_all()
        run = self[run_id] = LaunchedRun(
            run_id,
            above,
            f"{self.instance}:{run_id}:{nonce or new_nonce()}".encode(),
            bounds=bounds,
            first_started=first_started,
        )
        if above:
            above.children.add(run)
        return run

    def drop(self, run: LaunchedRun) -> None:
        run.emptying = run.freezing = False
        del self[run.id]
        if run.parent:
            run.parent.children.discard(run)
        if run.tag is not None:
            del self.tags[run.tag]
        if not self:
            self.emptied()

    def tag_of(self, run: LaunchedRun) -> int | None:
        """Return the run's tag, or `None` if another run or every process has that number: then
        only descent and cookie tell."""
        if run.tag is None:
            number = tag(self.instance, run.id)
            if number is not None and self.tags.setdefault(number, run.id) == run.id:
                run.tag = number
        return run.tag

    def by_tag(self, pid: int) -> RunId | None:
        with suppress(ProcessLookupError, PermissionError):
            return self.tags.get(resource.prlimit(pid, resource.RLIMIT_MSGQUEUE)[0])
        return None

    def by_cookie(self, pid: int) -> RunId | None:
        value = cookie(pid, self.instance)
        run = self.get(cookie_run(value)) if value else None
        return run.id if run and run.cookie == value else None

    def within(self, run_id: RunId, top: RunId) -> bool:
        """Return whether a run is `top` or below it."""
        run = self.get(run_id)
        return run is not None and any(above.id == top for above in run.upwards())

    def sole_tree(self, started: int) -> RunId | None:
        """Return the only root that an orphan without any mark can descend from: no other live root
        is as old as the orphan.

        The orphan is stopped with that run. None if this process is pid 1, which also adopts
        orphans of foreign processes."""
        roots = [
            run.id
            for run in self.values()
            if run.parent is None
            and not run.emptied
            and run.first_started <= started
            and not (run.in_program and not run.children)
        ]
        return roots[0] if len(roots) == 1 and os.getpid() != 1 else None
