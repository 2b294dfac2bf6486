"""Runs as processes of this machine: spawning, reaping and reporting. How they are contained is left to a subclass.

Every run that was launched is `Held` until its release. What is reported about it comes from three places: the pipe on
which its trampoline would report failure, the pidfd of its main process, and its containment; all three call
`consider`, and a run is empty once no main process of its subtree is unreaped and its containment is unpopulated.
That order is what makes every `MainExited` come before the `Emptied` of the run and of its ancestors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import secrets
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from time import monotonic
from typing import Literal

import trio

from ..core.events import Emptied, Event, Frozen, LaunchFailed, LaunchSucceeded, MainExited, Surveyed
from ..protocol.types import RunId, Survivor
from . import procfs
from .affinity import Affinity, Cpus, bind
from .base import UNBOUND, Bounds, Emit, Enforcement, LaunchSpec, Load
from .reaper import Orphans
from .spawn import Job, LaunchError, Spawner, resolve
from .trampoline import ATTACH, REPORT, Trampoline, best
from .watch import PAUSE, Watch

COOKIE = b"SFA_COOKIE"
"""The environment variable that names instance, run and a random number; inherited by what a run starts."""
_COOKIE_IS = COOKIE + b"="

Complain = Callable[[str], object]
"""Told what the launcher could not do yet and is trying again."""
_COMPLAIN_EVERY = 10.0

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)


@dataclass(slots=True)
class Main:
    """A run's main process until it is reaped."""

    pid: int
    pidfd: int
    command: bytes
    report: int | None
    """The read end of the trampoline's report; `None` once it has become the command, or failed to."""
    failure: LaunchError | None = None


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
    ladder: int = 0
    """Counts how often emptying was begun: what an earlier stop left behind must not touch the next attempt."""
    pauses: int = 0
    """Counts `freeze` and `thaw`: the last one that was asked for is what is tried again."""
    bounds: Bounds = UNBOUND
    cpus: Cpus | None = None
    """Those it was bound to for its own sake."""

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
    def starting(self) -> list[Main]:
        """Main processes of the subtree that may not be contained yet."""
        return [held.main for held in self.subtree() if held.main and held.main.report is not None]


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
        self._watch = Watch(self._failed)
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._spawner = Spawner(trampoline or best())
        self._nofile = nofile if nofile is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._orphans = Orphans()
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

    def launch(self, run: RunId, parent: RunId | None, spec: LaunchSpec) -> None:
        """Starts the run's command, a first time or again; answered by `LaunchSucceeded` or `LaunchFailed`."""
        held = self._runs.get(run) or self._hold(run, parent)
        if held.bounds != spec.bounds:
            self._set(held, spec.bounds)
        try:
            held.main = self._start(held, spec)
        except LaunchError as error:
            self._watch.soon(self._fail, held, error)

    def terminate(self, run: RunId, signal: int) -> None:
        """Signals every process of the run and its descendants; from now on `Emptied` is reported."""
        held = self._owe_emptied(run)
        if held:
            self._surely(partial(held.on, held.ladder), self._terminate, held, signal)

    def kill(self, run: RunId) -> None:
        """SIGKILL to everything, until it is empty; `Emptied` is reported."""
        held = self._owe_emptied(run)
        if held:
            self._signal_starting(held, signal.SIGKILL)
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
            held.freezing = True
            held.pauses = now = held.pauses + 1
            self._surely(lambda: held.freezing and held.pauses == now, self._freeze, held)
        else:
            self._watch.soon(self._answer, Frozen, run)

    def thaw(self, run: RunId) -> None:
        """Undoes `freeze`."""
        held = self._runs.get(run)
        if held:
            held.freezing = False
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

    def _hold(self, run: RunId, parent: RunId | None) -> Held:
        above = self._runs[parent] if parent is not None else None
        held = Held(run, above, f"{self.instance}:{run}:{secrets.token_hex(8)}".encode())
        self._runs[run] = held
        if above:
            above.children.add(held)
        return held

    def _start(self, held: Held, spec: LaunchSpec) -> Main:
        if held.main is not None:
            raise LaunchError(errno.EBUSY, "cannot start again", held.id.encode())
        if b"\0" in b"".join((spec.cwd, *spec.argv, *spec.env)):
            raise LaunchError(errno.EINVAL, "cannot execute", b"".join(spec.argv[:1]), " (null byte)")
        opened: list[int] = []
        try:
            pid, path, report = self._spawn(held, spec, opened)
        finally:
            for fd in opened:
                os.close(fd)
        return self._adopt(held, pid, path, report)  # two descriptors at least are free again: enough

    def _spawn(self, held: Held, spec: LaunchSpec, opened: list[int]) -> tuple[int, bytes, int]:
        """The child's pid, the file that it executes, and the near end of its report."""
        cwd = _directory(spec.cwd, opened)
        path = resolve(spec.argv[0] if spec.argv else b"", spec.env, cwd)
        try:
            door = self._enter(held)
            if door.fd is not None:
                opened.append(door.fd)
            report, far_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            opened.append(far_end)
            try:
                return self._spawner.spawn(self._job(held, spec, path, cwd, door, far_end)), path, report
            except BaseException:
                os.close(report)
                raise
        except OSError as error:
            raise LaunchError(error.errno or errno.EIO, "cannot start", path) from error

    def _job(self, held: Held, spec: LaunchSpec, path: bytes, cwd: int, door: Door, report: int) -> Job:
        null = self._null
        stdin, stdout, stderr = (null if fd is None else fd for fd in (spec.stdin, spec.stdout, spec.stderr))
        env = [item for item in spec.env if not item.startswith(_COOKIE_IS)]
        return Job(
            path=path,
            argv=spec.argv,
            env=[*env, _COOKIE_IS + held.cookie],
            umask=spec.umask,
            cwd=cwd,
            stdio=(stdin, stdout, stderr),
            door=door.fd if door.fd is not None else null,
            report=report,
            terminal=spec.terminal and os.isatty(stdin),
            nofile=self._nofile,
            msgqueue=door.msgqueue,
            cpus=self._cpus(held),
        )

    def _adopt(self, held: Held, pid: int, path: bytes, report: int) -> Main:
        self._orphans.owned[pid] = held.id
        watched = [report]
        try:
            main = Main(pid, os.pidfd_open(pid), path, report)
            watched.append(main.pidfd)
            self._watch.add(report, lambda: self._read_report(held, main))
            self._watch.add(main.pidfd, lambda: self._reap(held, main))
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # our unreaped child: the pid is its own
            for fd in watched:
                self._watch.discard(fd)
                os.close(fd)
            del self._orphans.owned[pid]
            self._orphans.notice()
            raise LaunchError(error.errno or errno.EIO, "cannot watch", path) from error
        return main

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

    def _failed(self, error: OSError) -> None:
        if monotonic() - self._complained >= _COMPLAIN_EVERY:
            self._complained = monotonic()
            with suppress(OSError):  # a log that cannot be written
                self._complain(f"containment, to be tried again: {error}")

    def _surely(self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object) -> None:
        """Calls; where that fails, again and again while it is `wanted`."""
        try:
            call(*arguments)
        except OSError as error:
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
            except OSError as error:
                self._failed(error)
                await trio.sleep(PAUSE)
            else:
                return

    # Reporting.

    def _emit(self, event: Event) -> None:
        try:
            self._tell(event)
        except OSError as error:  # of whoever was told: it was told, and is not told twice
            self._failed(error)

    def _answer(self, kind: Callable[..., Event], *fields: object) -> None:
        self._emit(kind(self._clock(), *fields))

    def _fail(self, held: Held, error: LaunchError) -> None:
        self._emit(LaunchFailed(self._clock(), held.id, error.errno, error.text))
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
        if content:
            main.failure = _failure(content, main.command)  # told once the trampoline is reaped
        else:
            self._emit(LaunchSucceeded(self._clock(), held.id, main.pid))

    def _reap(self, held: Held, main: Main) -> None:
        self._read_report(held, main)
        result = os.waitid(os.P_PIDFD, main.pidfd, os.WEXITED | os.WNOHANG)
        if result is None:
            return
        self._drop(main)
        held.main = None
        if main.failure:
            self._fail(held, main.failure)
            return
        exited = result.si_code == os.CLD_EXITED
        code, number = (result.si_status, None) if exited else (None, result.si_status)
        self._emit(MainExited(self._clock(), held.id, code, number, self._surely_empty(held)))
        self._consider(held)

    def _drop(self, main: Main) -> None:
        for fd in (main.report, main.pidfd):
            if fd is not None:
                self._watch.discard(fd)
                os.close(fd)
        self._orphans.owned.pop(main.pid, None)

    # Emptying.

    def _owe_emptied(self, run: RunId) -> Held | None:
        held = self._runs.get(run)
        if held is None:
            self._watch.soon(self._answer, Emptied, run)
            return None
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
        except OSError as error:
            self._failed(error)
            return False

    def _consider(self, held: Held) -> None:
        """Something that may have been the last is gone."""
        try:
            for above in tuple(held.chain()):
                if above.emptying and self._empty(above):
                    with suppress(OSError):
                        self._orphans.reap()  # who asks ps after the answer sees no zombie either
                    above.emptying = False
                    self._emit(Emptied(self._clock(), above.id))
        except OSError as error:
            self._failed(error)
            self._watch.later(self._consider, held)

    def _stands(self, held: Held) -> None:
        if held.freezing:
            held.freezing = False
            self._emit(Frozen(self._clock(), held.id))

    def _signal_starting(self, held: Held, number: int) -> None:
        for main in held.starting:
            _signal(main, number)

    def _survivors(self, held: Held) -> Iterator[Survivor]:
        starting = [(below.main.pid, below.id) for below in held.subtree() if below.main and below.main in held.starting]
        for pid, run in dict([*starting, *self._members(held)]).items():
            why = procfs.plight(pid)
            if why:
                yield Survivor(pid=pid, run_id=run, why=why)

    def _task(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        if self._nursery is None:
            raise RuntimeError("the launcher is not being served")
        self._nursery.start_soon(self._lasting, call, *arguments)


def _tops(asked: Collection[Held]) -> list[Held]:
    """Those that are not below another."""
    everyone = set(asked)
    return [held for held in asked if not any(above in everyone for above in held.chain() if above is not held)]


def _use(kind: str, pids: list[int], worth: float) -> int:
    if kind == "pids":
        return len(pids)
    resident = sum(map(procfs.resident, pids))  # never less than what it is a share of
    return resident if resident < worth else sum(map(procfs.proportional, pids))


def _directory(path: bytes, opened: list[int]) -> int:
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LaunchError(error.errno or errno.EIO, "cannot enter directory", path) from error
    opened.append(fd)
    if not os.access(path, os.X_OK, effective_ids=True):
        raise LaunchError(errno.EACCES, "cannot enter directory", path)
    return fd


def _subreaper() -> int:
    answer = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return answer.value


def _signal(main: Main, number: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(main.pidfd, number)
        return True
    return False


def _failure(report: bytes, command: bytes) -> LaunchError:
    stage, number = REPORT.unpack(report)
    if stage == ATTACH:
        return LaunchError(-number, "cannot contain", command)
    note = " (its interpreter is missing)" if number == -errno.ENOENT and os.path.exists(command) else ""
    return LaunchError(-number, "cannot execute", command, note)
