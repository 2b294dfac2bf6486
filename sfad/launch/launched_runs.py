"""The runs that the launcher holds, from the first launch to the release, and the marks that their processes inherit."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from ..protocol.types import RunId
from . import procfs
from .launcher import UNBOUND, Bounds, LaunchError, Remains
from .marks import cookie, cookie_run, tag
from .trampoline.contract import ITS_COMMAND, ITS_DIRECTORY


@dataclass(slots=True)
class MainProcess:
    """A run's main process until it is reaped. `Mains` owns it."""

    pid: int
    report: int | None
    """The read end of the trampoline's report; `None` when the trampoline has become the command, or has failed."""
    name: bytes = ITS_COMMAND
    cwd: bytes = ITS_DIRECTORY
    """What is executed, and where, for an error to name."""
    pidfd: int = -1
    failure: LaunchError | None = None
    started: int | None = None
    """Clock ticks since boot; known from the start of an adopted process, else when `HeldRun.remains` asks."""
    ours: bool = True
    """Whether it is a child of this process, which then reaps it."""
    ended: float | None = None
    """When an adopted process was seen to exit, while the kernel has not told how."""

    def signal(self, number: int) -> bool:
        """Send a signal; return whether the process was there to take it."""
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.pidfd, number)
            return True
        return False


@dataclass(slots=True, eq=False)
class HeldRun:
    """A run between its first launch and its release."""

    id: RunId
    parent: HeldRun | None
    cookie: bytes
    children: set[HeldRun] = field(default_factory=set)
    main: MainProcess | None = None
    emptying: bool = False
    """Whether `Emptied` is owed."""
    freezing: bool = False
    """Whether `Frozen` is owed."""
    paused: bool = False
    """Whether the run is to stand still until it is thawed."""
    ladder: int = 0
    """How often emptying has begun: what an earlier stop left behind must not touch the next attempt."""
    pauses: int = 0
    """How often `freeze` and `thaw` were called: only the last call is tried again."""
    bounds: Bounds = UNBOUND
    cpus: frozenset[int] | None = None
    """The CPUs that the run was bound to because of its own limit."""
    failing: LaunchError | None = None
    """Why its launch failed, until that is reported."""
    number: int = signal.SIGTERM
    """The last signal of its stop."""
    since: int = 0
    """When its first process started, in clock ticks since boot; 0 if that is not known."""

    @property
    def nonce(self) -> str:
        """The random part of the cookie."""
        return self.cookie.rsplit(b":", 1)[1].decode()

    def chain(self) -> Iterator[HeldRun]:
        """Yield the run and its ancestors, nearest first."""
        node: HeldRun | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[HeldRun]:
        yield self
        for child in tuple(self.children):
            yield from child.subtree()

    @property
    def mains(self) -> list[MainProcess]:
        """Main processes of the subtree. Each may be outside of its containment: not in it yet, or moved out of it."""
        return [held.main for held in self.subtree() if held.main]

    def begin_stop(self, number: int) -> None:
        """Owe `Emptied` because of a signal, and undo every pause of the subtree."""
        self.number = number
        for below in self.subtree():
            below.paused = False
        if not self.emptying:
            self.emptying = True
            self.ladder += 1

    def in_stop(self, ladder: int) -> bool:
        """Return whether the stop with that number is still emptying the run."""
        return self.emptying and self.ladder == ladder

    def set_paused(self, paused: bool) -> int:
        """Note a `freeze` or `thaw`; return its number, to compare with `pauses` later."""
        self.freezing = self.paused = paused
        self.pauses += 1
        return self.pauses

    def remains(self) -> Remains:
        """Return what to save of the run. Raises `OSError`."""
        main = self.main
        if main is None:
            return Remains(self.nonce, self.bounds)
        if main.started is None and (process := procfs.stat(main.pid)):  # an unreaped child of ours has not gone
            main.started = process.started
        self.since = self.since or main.started or 0
        return Remains(self.nonce, self.bounds, main.pid, main.started)


def run_ids(tops: Iterable[HeldRun]) -> set[RunId]:
    return {below.id for held in tops for below in held.subtree()}


class HeldRuns(dict[RunId, HeldRun]):
    """Every held run by its id, and who is whose where the containment does not tell."""

    def __init__(self, instance: str) -> None:
        super().__init__()
        self.instance = instance
        self.tags: dict[int, RunId] = {}
        """Runs by the number in their processes' soft RLIMIT_MSGQUEUE."""

    def hold(self, run: RunId, parent: RunId | None, nonce: str, bounds: Bounds = UNBOUND, since: int = 0) -> HeldRun:
        """Add a run below a parent that is held."""
        above = self[parent] if parent is not None else None
        held = self[run] = HeldRun(run, above, f"{self.instance}:{run}:{nonce}".encode(), bounds=bounds, since=since)
        if above:
            above.children.add(held)
        return held

    def drop(self, held: HeldRun) -> None:
        held.emptying = held.freezing = False
        del self[held.id]
        if held.parent:
            held.parent.children.discard(held)
        number = tag(self.instance, held.id)
        if number is not None and self.tags.get(number) == held.id:
            del self.tags[number]

    def tag_of(self, held: HeldRun) -> int | None:
        """Return the run's tag, or `None` if another run or every process has that number: then only descent and cookie tell."""
        number = tag(self.instance, held.id)
        if number is None:
            return None
        return number if self.tags.setdefault(number, held.id) == held.id else None

    def by_tag(self, pid: int) -> RunId | None:
        number = procfs.soft_limit(pid, resource.RLIMIT_MSGQUEUE)
        return self.tags.get(number) if number is not None else None

    def by_cookie(self, pid: int) -> RunId | None:
        value = cookie(pid, self.instance)
        held = self.get(cookie_run(value)) if value else None
        return held.id if held and held.cookie == value else None

    def within(self, run: RunId, top: RunId) -> bool:
        """Return whether a run is `top` or below it."""
        held = self.get(run)
        return held is not None and any(above.id == top for above in held.chain())

    def sole_tree(self, started: int) -> RunId | None:
        """Return the only root that an orphan without any mark can descend from: no other live root is as old as the orphan.

        The orphan is stopped with that run. None if this process is pid 1, which also adopts orphans of foreign processes."""
        roots = [held.id for held in self.values() if held.parent is None and held.since <= started]
        return roots[0] if len(roots) == 1 and os.getpid() != 1 else None
