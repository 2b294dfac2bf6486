"""Runs as processes of this machine: spawning, reaping and reporting. How they are contained is left to a subclass.

Every run that was launched is `Held` until its release. What is reported about it comes from three places: the pipe on
which its trampoline would report failure, the pidfd of its main process, and its containment; all three call
`consider`, and a run is empty once no main process of its subtree is unreaped and its containment is unpopulated.
That order is what makes every `MainExited` come before the `Emptied` of the run and of its ancestors.

A run that an earlier daemon launched is adopted: it is `Held` like any other. Its main process is either our unreaped child,
if that daemon was this process before an execve(2), or not our child: then somebody else reaps it, and its pidfd tells
how it ended.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from time import monotonic, sleep
from typing import Literal

import trio

from ..core.events import Emptied, Event, Frozen, LaunchFailed, LaunchSucceeded, MainExited, Surveyed
from ..faults import effect
from ..protocol.types import RunId, Survivor
from . import procfs
from .affinity import Affinity, Cpus, bind
from .base import UNBOUND, Bounds, Emit, Enforcement, Found, LaunchSpec, Load, Remains, Remember
from .marks import COOKIE, cookie, cookie_run, tag
from .pidfd import ended, exit_status, reaped, tells_exits
from .procfs import Stat
from .reaper import Orphans
from .reserve import lifted
from .spawn import Job, LaunchError, Spawner, candidates
from .trampoline import ATTACH, ENTER, EXEC, INTERPRET, REPORT, Trampoline, best, is_one
from .watch import PAUSE, Watch

_COOKIE_IS = COOKIE + b"="

Complain = Callable[[str], object]
"""Told what the launcher could not do yet and is trying again."""
_COMPLAIN_EVERY = 10.0
_ARRIVAL, _LOOK_AGAIN = 0.5, 0.002
"""Seconds that the trampolines get whose daemon has died, and between two looks: an attach takes 6 ms, Python twenty."""
_NEWS = 3.0
"""Seconds within which whoever adopted an ended main process is expected to reap it: pid 1 of some containers looks for
zombies every two seconds, that of others never."""

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Command:
    """What is being executed, for an error to name."""

    name: bytes = b"its command"
    """As it is here for a run that was adopted: the name is not remembered."""
    cwd: bytes = b"of its own"


@dataclass(slots=True)
class Main:
    """A run's main process until it is reaped."""

    pid: int
    pidfd: int
    report: int | None
    """The read end of the trampoline's report; `None` once it has become the command, or failed to."""
    command: Command | None = None
    """Until then."""
    failure: LaunchError | None = None
    started: int | None = None
    """Of one that was adopted: clock ticks since boot."""
    ours: bool = True
    """Whether it is a child of this process, which then reaps it."""
    ended: float | None = None
    """When an adopted process was seen to exit, while the kernel has not told how."""


@dataclass(slots=True, eq=False)
class Held:
    """A run between its first launch and its release."""

    id: RunId
    parent: Held | None
    cookie: bytes
    children: set[Held] = field(default_factory=set)
    main: Main | None = None
    emptying: bool = False
    """Whether `Emptied` is owed."""
    freezing: bool = False
    """Whether `Frozen` is owed."""
    paused: bool = False
    """Whether it is to stand still until it is thawed."""
    ladder: int = 0
    """Counts how often emptying was begun: what an earlier stop left behind must not touch the next attempt."""
    pauses: int = 0
    """Counts `freeze` and `thaw`: the last one that was asked for is what is tried again."""
    bounds: Bounds = UNBOUND
    cpus: Cpus | None = None
    """Those it was bound to for its own sake."""
    failing: LaunchError | None = None
    """Why its launch failed, until that is reported."""
    number: int = signal.SIGTERM
    """The signal that its stop has come to."""
    since: int = 0
    """When its first process started, in clock ticks since boot; 0 if that is not known."""

    @property
    def nonce(self) -> str:
        """The random part of the cookie."""
        return self.cookie.rsplit(b":", 1)[1].decode()

    def chain(self) -> Iterator[Held]:
        """The run and its ancestors, nearest first."""
        node: Held | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Held]:
        """The run and its descendants."""
        yield self
        for child in tuple(self.children):
            yield from child.subtree()

    def on(self, ladder: int) -> bool:
        """Whether it is still being emptied by that stop."""
        return self.emptying and self.ladder == ladder

    @property
    def mains(self) -> list[Main]:
        """Main processes of the subtree. Each may be outside of its containment: not in it yet, or moved out of it."""
        return [held.main for held in self.subtree() if held.main]


@dataclass(frozen=True, slots=True)
class Door:
    """How a trampoline gets into a run's containment."""

    fd: int | None = None
    """Where it writes "0", if it has to. The launcher closes it."""
    msgqueue: int | None = None


class LocalLauncher(ABC):
    """The `Launcher` of this machine. One per process, in trio's thread, which is the main thread."""

    containment: Literal["cgroup", "tags"]
    detail: str

    def __init__(
        self,
        *,
        instance: str,
        emit: Emit,
        clock: Callable[[], float] = trio.current_time,
        trampoline: Trampoline | None = None,
        nofile: int | None = None,
        complain: Complain = lambda _text: None,
    ) -> None:
        self.instance = instance
        self._tell = emit
        self._complain = complain
        self._complained = -_COMPLAIN_EVERY
        self._clock = clock
        self._runs: dict[RunId, Held] = {}
        self._numbers: dict[int, RunId] = {}
        """Runs by their tags."""
        self._arrived_by = 0.0
        """When the trampolines that were on their way as an earlier daemon died have become their commands, or hang."""
        self._watch = Watch(self._failed)
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._spawner = Spawner(trampoline or best())
        self._nofile = nofile if nofile is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._orphans = Orphans()
        self._lent: list[int] = []
        """Pipes that were made for the process that this one becomes."""
        self._affinity = Affinity()
        self._nursery: trio.Nursery | None = None
        self._was_subreaper = _subreaper()
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    # What a containment is asked.

    @abstractmethod
    def _enter(self, held: Held) -> Door:
        """Makes the run's containment if it is not there. Raises `OSError`."""

    @abstractmethod
    def _terminate(self, held: Held, number: int) -> None: ...

    @abstractmethod
    def _kill(self, held: Held) -> None: ...

    @abstractmethod
    def _freeze(self, held: Held) -> None:
        """Ends in `_stands`."""

    @abstractmethod
    def _thaw(self, held: Held) -> None: ...

    @abstractmethod
    def _populated(self, held: Held) -> bool:
        """Whether anything is alive in it, zombies and child runs' unreaped mains aside. While the run is being emptied
        the containment calls `_consider` when this may have become false."""

    @abstractmethod
    def _members(self, *tops: Held) -> Iterable[tuple[int, RunId]]:
        """Every live process in these, none of which is in another, and the run that the process is in."""

    @abstractmethod
    def _leave(self, held: Held) -> None:
        """Removes what `_enter` made."""

    # What it is asked of a run that an earlier daemon launched. All raise `OSError`.

    @abstractmethod
    def _rejoin(self, held: Held) -> None:
        """Takes over its containment, as far as that is there."""

    @abstractmethod
    def _forget(self, held: Held) -> None:
        """Undoes that, and leaves what is there as it is. Raises nothing."""

    @abstractmethod
    def _carries(self, held: Held, pid: int) -> bool:
        """Whether a process is provably the run's."""

    @abstractmethod
    def _settle(self, held: Held) -> bool:
        """Whether anything is alive in it; looked at once, when its main process, if that lives, has been taken over."""

    def _outside(self, held: Held) -> Iterable[tuple[int, RunId]]:  # noqa: ARG002 - for subclasses
        """Living processes of the run that `_members` does not find, because they have left its containment."""
        return ()

    # What it may do better.

    def _limit(self, held: Held) -> None:  # noqa: B027 - nothing, where there are no controllers
        """Has the kernel hold the run to its bounds, where it can."""

    def _tasks(self, held: Held) -> int | None:  # noqa: ARG002 - for subclasses
        """Processes and threads of a run as the kernel counts them against its bound; `None` if it does not."""
        return None

    def _charged(self, held: Held) -> int | None:  # noqa: ARG002 - for subclasses
        """Memory of a run as the kernel counts it; `None` if it has not done so from the start."""
        return None

    def breaches(self, run: RunId) -> frozenset[str]:  # noqa: ARG002 - for subclasses
        """See `Launcher.breaches`: without controllers, none."""
        return frozenset()

    @abstractmethod
    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """See `Launcher.place`."""

    # The verbs.

    def launch(self, run: RunId, parent: RunId | None, spec: LaunchSpec, remember: Remember) -> None:
        """Starts the run's command, a first time or again; answered by `LaunchSucceeded` or `LaunchFailed`."""
        held = self._runs.get(run) or self._hold(run, parent, spec.nonce)
        if held.bounds != spec.bounds:
            self._set(held, spec.bounds)
        try:
            self._start(held, spec, remember)
        except LaunchError as error:
            held.failing = error
            self._watch.soon(self._fail, held, error)

    def terminate(self, run: RunId, signal: int) -> None:
        """Signals every process of the run and its descendants; from now on `Emptied` is reported."""
        held = self._owe_emptied(run)
        if held:
            held.number = signal
            self._surely(partial(held.on, held.ladder), self._terminate, held, signal)

    def kill(self, run: RunId) -> None:
        """SIGKILL to everything, until it is empty; `Emptied` is reported."""
        held = self._owe_emptied(run)
        if held:
            held.number = signal.SIGKILL
            self._signal_mains(held, signal.SIGKILL)
            self._surely(partial(held.on, held.ladder), self._kill, held)

    def survey(self, run: RunId) -> None:
        """Answered by `Surveyed`."""
        self._surely(lambda: True, self._survey, run)

    def _survey(self, run: RunId) -> None:
        held = self._runs.get(run)
        survivors = tuple(self._survivors(held)) if held else ()
        self._watch.soon(self._answer, Surveyed, run, survivors)

    def freeze(self, run: RunId) -> None:
        """Answered by `Frozen`."""
        held = self._runs.get(run)
        if held:
            held.freezing = held.paused = True
            held.pauses = now = held.pauses + 1
            self._surely(lambda: held.freezing and held.pauses == now, self._freeze, held)
        else:
            self._watch.soon(self._answer, Frozen, run)

    def thaw(self, run: RunId) -> None:
        """Undoes `freeze`."""
        held = self._runs.get(run)
        if held:
            held.freezing = held.paused = False
            held.pauses = now = held.pauses + 1
            self._surely(lambda: held.pauses == now and self._runs.get(run) is held, self._thaw, held)

    def release(self, run: RunId) -> None:
        """Forgets the run and removes its containment."""
        held = self._runs.pop(run, None)
        if held is None:
            return
        held.emptying = held.freezing = False
        if held.parent:
            held.parent.children.discard(held)
        self._unmark(held)
        self._leave(held)

    def signal_main(self, run: RunId, signal: int) -> bool:
        """Signals the main process alone; whether there was one."""
        held = self._runs.get(run)
        return bool(held and held.main and _signal(held.main, signal))

    def bound(self, run: RunId, bounds: Bounds) -> None:
        """Holds a live run to other bounds. One that is less than what it uses now is enforced at once: the kernel ends
        processes for it (memory) or lets it start no other (pids)."""
        held = self._runs.get(run)
        if held is None:
            return
        self._set(held, bounds)
        try:
            self._limit(held)
            if self.enforcement("cpu") == "watching":
                self._rebind(held)
        except OSError as error:
            self._unenforced(held, error)

    def enforcement(self, kind: str) -> Enforcement:
        """See `Launcher.enforcement`. With one CPU there is nothing to bind a run to."""
        return "watching" if kind != "cpu" or len(self._affinity.all) > 1 else "nothing"

    def load(self, run: RunId) -> Load | None:
        """Processes and memory of the run and its descendants; `None` if it is not held, or cannot be told now."""
        return self.loads([run]).get(run)

    def loads(self, runs: Iterable[RunId]) -> dict[RunId, Load]:
        """See `Launcher.loads`."""
        asked = self._held(runs)
        try:
            resident = cache(procfs.resident)
            return {run: Load(len(pids), self._memory(asked[run], pids, resident)) for run, pids in self._pids(asked).items()}
        except OSError as error:
            self._failed(error)
            return {}

    def uses(self, kind: str, worth: Mapping[RunId, float]) -> dict[RunId, int]:
        """See `Launcher.uses`. Processes and threads where the kernel enforces the limit, else processes. Memory is what the
        kernel charges (`Load`); else resident memory where that is not worth more, else each process's share of it."""
        asked = self._held(worth)
        try:
            told = self._told(kind, asked.values())
            pids = self._pids({run: held for run, held in asked.items() if run not in told})
            return told | {run: _use(kind, found, worth[run]) for run, found in pids.items()}
        except OSError as error:
            self._failed(error)
            return {}

    def _held(self, runs: Iterable[RunId]) -> dict[RunId, Held]:
        return {run: held for run in runs if (held := self._runs.get(run))}

    def _told(self, kind: str, asked: Iterable[Held]) -> dict[RunId, int]:
        tell = self._tasks if kind == "pids" else self._charged
        return {held.id: figure for held in asked if (figure := tell(held)) is not None}

    def _memory(self, held: Held, pids: Iterable[int], resident: Callable[[int], int]) -> int:
        charged = self._charged(held)
        return charged if charged is not None else sum(map(resident, pids))

    def _pids(self, asked: Mapping[RunId, Held]) -> dict[RunId, list[int]]:
        """The live processes of each and its descendants, from one pass."""
        found: dict[RunId, list[int]] = {run: [] for run in asked}
        for pid, run in self._members(*_tops(asked.values())) if asked else ():
            for above in self._runs[run].chain():
                if above.id in found:
                    found[above.id].append(pid)
        return found

    def child_signalled(self) -> None:
        """SIGCHLD came in: orphans may be there to reap."""
        self._orphans.notice()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reaps, watches and reports until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._lasting, self._orphans.serve)
            task_status.started()
            await self._watch.run()

    def close(self) -> None:
        """Gives back every descriptor."""
        for held in self._runs.values():
            if held.main:
                self._drop(held.main)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, self._was_subreaper, 0, 0, 0)
        self._watch.close()
        self._spawner.close()
        os.close(self._null)

    # Starting.

    def _hold(self, run: RunId, parent: RunId | None, nonce: str) -> Held:
        above = self._runs[parent] if parent is not None else None
        held = Held(run, above, f"{self.instance}:{run}:{nonce}".encode())
        self._runs[run] = held
        if above:
            above.children.add(held)
        return held

    def _start(self, held: Held, spec: LaunchSpec, remember: Remember) -> None:
        if held.main is not None:
            raise LaunchError(errno.EBUSY, "cannot start again", held.id.encode())
        if b"\0" in b"".join((spec.cwd, *spec.argv, *spec.env)):
            raise LaunchError(errno.EINVAL, "cannot execute", b"".join(spec.argv[:1]), " (null byte)")
        name = spec.argv[0] if spec.argv else b""
        files = candidates(name, spec.env)
        try:
            far_gate, gate = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise _short(error, name) from error
        try:
            try:
                main = self._spawn(held, spec, files, far_gate)
            finally:
                os.close(far_gate)
            effect("spawned")
            held.main = self._own(held, main)  # a descriptor at least is free again: enough
            self._let_through(held, held.main, gate, remember)
        finally:
            os.close(gate)

    def _let_through(self, held: Held, main: Main, gate: int, remember: Remember) -> None:
        what = main.command.name if main.command else b""
        main.failure = LaunchError(errno.ENOSPC, "cannot remember the start of", what, kind="output")
        try:
            remains = _remains(held, main)
            held.since = held.since or remains.started or 0
            if remember(remains):
                main.failure = None
                os.write(gate, b"\n")
        except BrokenPipeError:  # it has failed before it came to the gate
            pass
        except OSError as error:  # no descriptor, or no memory, to look at it
            main.failure = _short(error, what)
        if main.failure:
            _signal(main, signal.SIGKILL)  # it may be elsewhere than at the gate, and for long

    def _spawn(self, held: Held, spec: LaunchSpec, files: list[bytes], gate: int) -> Main:
        """The child, which nobody watches yet."""
        name = spec.argv[0] if spec.argv else b""
        opened: list[int] = []
        try:
            door = self._enter(held)
            if door.fd is not None:
                opened.append(door.fd)
            report, far_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            opened.append(far_end)
            try:
                pid = self._spawner.spawn(self._job(held, spec, files, door, far_end, gate))
                return Main(pid, -1, report, Command(name, spec.cwd))
            except BaseException:
                os.close(report)
                raise
        except OSError as error:
            raise _short(error, name) from error
        finally:
            for fd in opened:
                os.close(fd)

    def _job(self, held: Held, spec: LaunchSpec, files: list[bytes], door: Door, report: int, gate: int) -> Job:
        null = self._null
        stdin, stdout, stderr = (null if fd is None else fd for fd in (spec.stdin, spec.stdout, spec.stderr))
        env = [item for item in spec.env if not item.startswith(_COOKIE_IS)]
        return Job(
            files=files,
            argv=spec.argv,
            env=[*env, _COOKIE_IS + held.cookie],
            umask=spec.umask,
            cwd=spec.cwd,
            stdio=(stdin, stdout, stderr),
            door=door.fd if door.fd is not None else null,
            report=report,
            gate=gate,
            terminal=spec.terminal and os.isatty(stdin),
            nofile=self._nofile,
            msgqueue=door.msgqueue,
            cpus=self._cpus(held),
        )

    def _own(self, held: Held, main: Main) -> Main:
        """Watches what was just spawned."""
        try:
            return self._watch_over(held, main)
        except OSError as error:
            os.kill(main.pid, signal.SIGKILL)  # our unreaped child: the pid is its own
            self._orphans.notice()
            raise LaunchError(error.errno or errno.EIO, "cannot watch", (main.command or Command()).name) from error

    def _watch_over(self, held: Held, main: Main) -> Main:
        """Has it reaped and its report read. Raises `OSError`; then its descriptors are closed, and it has no owner."""
        try:
            main.pidfd = os.pidfd_open(main.pid)
            if main.report is not None:
                self._watch.add(main.report, lambda: self._read_report(held, main))
            self._watch.add(main.pidfd, lambda: self._reap(held, main))
        except OSError:
            self._drop(main)
            raise
        if main.ours:
            self._orphans.owned[main.pid] = held.id
        return main

    # Handing over and adopting.

    def remains(self, run: RunId) -> Remains | None:
        """See `Launcher.remains`."""
        held = self._runs.get(run)
        return _remains(held, held.main) if held is not None else None

    def hand_over(self) -> dict[RunId, Remains]:
        """See `Launcher.hand_over`."""
        try:
            return {run: self._bequest(held) for run, held in self._runs.items()}
        except OSError:
            self.take_back()
            raise

    def _bequest(self, held: Held) -> Remains:
        remains = _remains(held, held.main)
        failure = held.main.failure if held.main else held.failing
        if failure:
            self._lent.append(_said(failure))  # a pipe in which the trampoline's report stands once more
            return replace(remains, report=self._lent[-1])
        if held.main and held.main.report is not None:
            os.set_inheritable(held.main.report, True)
            return replace(remains, report=held.main.report)
        return remains

    def take_back(self) -> None:
        """See `Launcher.take_back`."""
        while self._lent:
            os.close(self._lent.pop())
        for held in self._runs.values():
            if held.main and held.main.report is not None:
                os.set_inheritable(held.main.report, False)

    def adopt(self, run: RunId, parent: RunId | None, remains: Remains) -> Found:
        """See `Launcher.adopt`."""
        assert run not in self._runs
        held = self._hold(run, parent, remains.nonce)
        held.bounds = remains.bounds
        held.since = remains.started or 0
        try:
            self._rejoin(held)
            held.main = self._resumed(held, remains) if remains.report is not None else self._found(held, remains)
            alive = self._settle(held)
            self._recall_cpus(held)
        except BaseException:
            self._abandon(held)
            raise
        if remains.report is not None:
            self._hear(held, remains.report)
        return Found(held.main.pid if held.main else None, held.main is None and not alive, remains.report is not None)

    def _abandon(self, held: Held) -> None:
        """Nothing of it is held, as before."""
        if held.main:
            self._drop(held.main)
        del self._runs[held.id]
        if held.parent:
            held.parent.children.discard(held)
        self._unmark(held)
        self._forget(held)

    def _resumed(self, held: Held, remains: Remains) -> Main | None:
        """The main process of a launch in flight, a child of ours. Of one that could not be spawned there is only the report."""
        if not remains.pid or remains.report is None:
            return None
        report = fcntl.fcntl(remains.report, fcntl.F_DUPFD_CLOEXEC, 0)
        return self._watch_over(held, Main(remains.pid, -1, report, Command(), started=remains.started))

    def _hear(self, held: Held, report: int) -> None:
        if held.main is None:
            held.failing = _failure(os.read(report, REPORT.size), Command())
            self._watch.soon(self._fail, held, held.failing)
        os.close(report)

    def _found(self, held: Held, remains: Remains) -> Main | None:
        process = self._main_of(held, remains)
        return self._take(held, process, remains) if process else None

    def _main_of(self, held: Held, remains: Remains) -> Stat | None:
        process = procfs.stat(remains.pid) if remains.pid else None
        if process is None or remains.started not in (None, process.started):
            return None
        if process.parent == os.getpid() and remains.started is not None:  # unreaped, perhaps ended: the pid is its own
            return process
        return process if process.alive and self._carries(held, process.pid) else None

    def _take(self, held: Held, process: Stat, remains: Remains) -> Main | None:
        """Watches that process. `None` if it is gone, when the pid may be another's by now, or has not become the command."""
        ours = process.parent == os.getpid()
        main = Main(process.pid, -1, None, started=process.started, ours=ours)
        try:
            self._watch_over(held, main)
            now = procfs.stat(main.pid)
        except ProcessLookupError:
            return None
        except OSError:
            self._drop(main)
            raise
        if now is None or now.started != main.started:
            self._drop(main)
            return None
        if not remains.executed and self._hangs(main.pid):
            # who would hear what it reports has died, and it is not known how far it has come
            _signal(main, signal.SIGKILL)
            self._drop(main)
            return None
        return main

    def _hangs(self, pid: int) -> bool:
        """Whether it is a trampoline still, when all of them have had the time that it takes."""
        while is_one(pid):
            self._arrived_by = self._arrived_by or monotonic() + _ARRIVAL
            if monotonic() > self._arrived_by:
                return True
            sleep(_LOOK_AGAIN)
        return False

    def _recall_cpus(self, held: Held) -> None:
        if held.bounds.cpu is not None and self.enforcement("cpu") == "watching":
            with suppress(ProcessLookupError):
                held.cpus = frozenset(os.sched_getaffinity(held.main.pid)) if held.main else None
            held.cpus = held.cpus or self._own_cpus(held)

    # Bounds.

    def _set(self, held: Held, bounds: Bounds) -> None:
        again = bounds.cpu != held.bounds.cpu
        held.bounds = bounds
        for below in held.subtree() if again and self.enforcement("cpu") == "watching" else ():  # each after the one above it
            below.cpus = self._own_cpus(below)

    def _own_cpus(self, held: Held) -> Cpus | None:
        if held.bounds.cpu is None:
            return None
        within = self._cpus(held.parent) if held.parent else None
        return self._affinity.choose(held.bounds.cpu, within or self._affinity.all)

    def _cpus(self, held: Held) -> Cpus | None:
        """Those of the nearest run that is bound. The daemon starts every run, so a child run inherits none."""
        return next((above.cpus for above in held.chain() if above.cpus is not None), None)

    def _rebind(self, held: Held) -> None:
        for _ in range(2):  # what was forked during the first look inherited the old CPUs
            for pid, run in tuple(self._members(held)):
                bind(pid, self._cpus(self._runs[run]) or self._affinity.all)

    def _unenforced(self, held: Held, error: OSError) -> None:
        with suppress(OSError):  # a log that cannot be written
            where = f"{error.filename}: " if error.filename else ""
            self._complain(f"a limit of run {held.id} is only watched, not enforced: {where}{error.strerror}")

    # Trying again: a daemon that has no descriptor free for a while must not forget what it was asked for.

    def _failed(self, error: Exception) -> None:
        if monotonic() - self._complained >= _COMPLAIN_EVERY:
            self._complained = monotonic()
            internal = "" if isinstance(error, OSError) else f"internal error: {''.join(traceback.format_exception(error))}"
            with suppress(OSError):  # a log that cannot be written
                self._complain(f"containment, to be tried again: {internal or error}")

    def _surely(self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object) -> None:
        """Calls; where that fails, again and again while it is `wanted`."""
        try:
            with lifted():
                call(*arguments)
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._failed(error)
            self._watch.later(self._again, wanted, call, *arguments)

    def _again(self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object) -> None:
        if wanted():
            self._surely(wanted, call, *arguments)

    async def _lasting(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Awaits; where that fails, again and again."""
        while True:
            try:
                await call(*arguments)
            except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
                self._failed(error)
                await trio.sleep(PAUSE)
            else:
                return

    # Reporting.

    def _emit(self, event: Event) -> None:
        try:
            self._tell(event)
        except Exception as error:  # noqa: BLE001 - whatever the receiver failed with: it was told, and is not told twice
            self._failed(error)

    def _answer(self, kind: Callable[..., Event], *fields: object) -> None:
        self._emit(kind(self._clock(), *fields))

    def _fail(self, held: Held, error: LaunchError) -> None:
        held.failing = None
        self._emit(LaunchFailed(self._clock(), held.id, error.errno, error.text, error.kind, error.about))
        self._consider(held)

    def _read_report(self, held: Held, main: Main) -> None:
        if main.report is None:
            return
        try:
            content = os.read(main.report, REPORT.size)
        except BlockingIOError:
            return
        self._watch.discard(main.report)
        os.close(main.report)
        main.report = None
        command, main.command = main.command or Command(), None
        if main.failure:
            return
        if content:
            main.failure = _failure(content, command)  # told once the trampoline is reaped
        else:
            self._emit(LaunchSucceeded(self._clock(), held.id, main.pid))

    def _reap(self, held: Held, main: Main) -> None:
        self._read_report(held, main)
        if not main.ours:
            if ended(main.pidfd):
                self._learn(held, main)
            return
        result = os.waitid(os.P_PIDFD, main.pidfd, os.WEXITED | os.WNOHANG)
        if result is not None:
            effect("reaped")
            exited = result.si_code == os.CLD_EXITED
            self._over(held, main, *((result.si_status, None) if exited else (None, result.si_status)))
        elif ended(main.pidfd):
            # a process that traces it keeps the zombie for itself, perhaps for ever; the reaper takes it when that one lets go
            self._over(held, main, *_code_and_signal(procfs.exit_status(main.pid)))

    def _learn(self, held: Held, main: Main) -> None:
        """How somebody else's child has ended: the kernel tells it once the child was reaped, and wakes us then."""
        gone = reaped(main.pidfd)
        status = exit_status(main.pidfd)
        if status is not None:
            self._over(held, main, *_code_and_signal(status))
        elif gone or not tells_exits() or (main.ended is not None and monotonic() - main.ended > _NEWS):
            self._over(held, main, None, None)
        elif main.ended is None:
            main.ended = monotonic()
            self._watch.discard(main.pidfd)
            self._watch.add(main.pidfd, lambda: self._reap(held, main), 0)  # EPOLLHUP, which needs no asking: it was reaped
            self._wait_for_news(held, main)

    def _wait_for_news(self, held: Held, main: Main) -> None:
        """EPOLLHUP need not come: pid 1 may never reap, and kernels before 6.9 do not report it."""
        if held.main is main:
            self._learn(held, main)
        if held.main is main:
            self._watch.later(self._wait_for_news, held, main)

    def _over(self, held: Held, main: Main, code: int | None, number: int | None) -> None:
        self._drop(main)
        held.main = None
        if main.failure:
            self._fail(held, main.failure)
            return
        self._emit(MainExited(self._clock(), held.id, code, number, self._surely_empty(held)))
        self._consider(held)

    def _drop(self, main: Main) -> None:
        for fd in (main.report, main.pidfd):
            if fd is not None and fd >= 0:
                self._watch.discard(fd)
                os.close(fd)
        main.report, main.pidfd = None, -1
        if main.ours:
            self._orphans.owned.pop(main.pid, None)

    # Emptying.

    def _owe_emptied(self, run: RunId) -> Held | None:
        held = self._runs.get(run)
        if held is None:
            self._watch.soon(self._answer, Emptied, run)
            return None
        for below in held.subtree():
            below.paused = False
        if not held.emptying:
            held.emptying = True
            held.ladder += 1
        self._watch.soon(self._consider, held)
        return held

    def _empty(self, held: Held) -> bool:
        return not any(below.main for below in held.subtree()) and not self._populated(held)

    def _surely_empty(self, held: Held) -> bool:
        """What cannot be told is not empty: then somebody stops it, and that takes until it is."""
        try:
            return self._empty(held)
        except Exception as error:  # noqa: BLE001 - whatever keeps from telling
            self._failed(error)
            return False

    def _consider(self, held: Held) -> None:
        """Something that may have been the last is gone."""
        try:
            for above in tuple(held.chain()):
                if above.emptying and self._empty(above):
                    above.emptying = False
                    self._emit(Emptied(self._clock(), above.id))
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._failed(error)
            self._watch.later(self._consider, held)

    def _stands(self, held: Held) -> None:
        if held.freezing:
            held.freezing = False
            self._emit(Frozen(self._clock(), held.id))

    def _signal_mains(self, held: Held, number: int, *, but: Container[int] = ()) -> None:
        for main in held.mains:
            if main.pid not in but:
                _signal(main, number)

    def _survivors(self, held: Held) -> Iterator[Survivor]:
        mains = [(below.main.pid, below.id) for below in held.subtree() if below.main]
        for pid, run in dict([*mains, *self._outside(held), *self._members(held)]).items():
            why = procfs.plight(pid)
            if why:
                yield Survivor(pid=pid, run_id=run, why=why)

    # Who is whose, where the containment does not tell.

    def _number(self, held: Held) -> int | None:
        """The run's tag; `None` where it would be confused with what others have. Then only descent and cookie tell."""
        number = tag(self.instance, held.id)
        if number is None:
            return None
        return number if self._numbers.setdefault(number, held.id) == held.id else None

    def _unmark(self, held: Held) -> None:
        number = tag(self.instance, held.id)
        if number is not None and self._numbers.get(number) == held.id:
            del self._numbers[number]

    def _within(self, run: RunId, top: RunId) -> bool:
        held = self._runs.get(run)
        return held is not None and any(above.id == top for above in held.chain())

    def _by_number(self, pid: int) -> RunId | None:
        number = procfs.soft_limit(pid, resource.RLIMIT_MSGQUEUE)
        return self._numbers.get(number) if number is not None else None

    def _by_cookie(self, pid: int) -> RunId | None:
        value = cookie(pid, self.instance)
        held = self._runs.get(cookie_run(value)) if value else None
        return held.id if held and held.cookie == value else None

    def _sole_tree(self, started: int) -> RunId | None:
        """The only tree that a descendant without any mark can be of: no other lives that is as old. It is stopped with that one.

        pid 1 also inherits the orphans of strangers."""
        roots = [held.id for held in self._runs.values() if held.parent is None and held.since <= started]
        return roots[0] if len(roots) == 1 and os.getpid() != 1 else None

    async def _gone(self, pids: Iterable[int], bound: float) -> None:
        """Until these children have ended, or so many seconds have passed."""
        await trio.lowlevel.checkpoint()  # those that are gone already are not waited for
        with trio.move_on_after(bound):
            for pid in pids:
                await self._ended(pid)

    async def _ended(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        ended = trio.Event()
        try:
            self._watch.add(pidfd, ended.set)
            await ended.wait()
        finally:
            self._watch.discard(pidfd)
            os.close(pidfd)

    def _task(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        if self._nursery is None:
            raise RuntimeError("the launcher is not being served")
        self._nursery.start_soon(self._lasting, call, *arguments)


_SHORT_OF = {errno.EAGAIN: " (no more processes or threads: RLIMIT_NPROC, pids.max, or kernel.pid_max)"}
"""What the system's message does not say."""


def _tops(asked: Collection[Held]) -> list[Held]:
    """Those that are not below another."""
    everyone = set(asked)
    return [held for held in asked if not any(above in everyone for above in held.chain() if above is not held)]


def _use(kind: str, pids: list[int], worth: float) -> int:
    if kind == "pids":
        return len(pids)
    resident = sum(map(procfs.resident, pids))  # never less than what it is a share of
    return resident if resident < worth else sum(map(procfs.proportional, pids))


def _subreaper() -> int:
    answer = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return answer.value


def _signal(main: Main, number: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(main.pidfd, number)
        return True
    return False


def _code_and_signal(status: int | None) -> tuple[int | None, int | None]:
    """Of a status of wait(2), one of the two; neither if it is not known."""
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def _short(error: OSError, name: bytes) -> LaunchError:
    return LaunchError(error.errno or errno.EIO, "cannot start", name, _SHORT_OF.get(error.errno or 0, ""))


def _failure(report: bytes, command: Command) -> LaunchError:
    stage, number = REPORT.unpack(report)
    if stage == ATTACH:
        return LaunchError(-number, "cannot contain", command.name)
    if stage == ENTER:
        return LaunchError(-number, "cannot enter directory", command.cwd, about="directory")
    missing = stage == INTERPRET and number == -errno.ENOENT
    return LaunchError(-number, "cannot execute", command.name, " (its interpreter is missing)" if missing else "")


def _said(error: LaunchError) -> int:
    """A descriptor on which a trampoline seems to have reported this. Inherited across execve(2)."""
    near, far = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(far, REPORT.pack(EXEC, -error.errno))
        os.set_inheritable(near, True)
    finally:
        os.close(far)
    return near


def _remains(held: Held, main: Main | None) -> Remains:
    return Remains(held.nonce, held.bounds, main.pid, _start_of(main)) if main else Remains(held.nonce, held.bounds)


def _start_of(main: Main) -> int | None:
    """`None` if it is gone, which a child of ours is not before it is reaped. Raises `OSError`."""
    if main.started is None and (process := procfs.stat(main.pid)):
        main.started = process.started
    return main.started
