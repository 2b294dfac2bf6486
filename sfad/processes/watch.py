"""Watches what was started: what trampolines report, how main processes end, when a run is empty;
reaps orphans."""

from __future__ import annotations

import os
import select
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from time import monotonic, sleep

import trio
from msgspec import Struct

from ..core.events import Emptied, Event, Frozen, LaunchFailed, LaunchSucceeded, MainExited
from ..host.faults import crash_point
from ..host.linux.descriptors import lifted, with_reserve
from ..protocol.types import RunId
from . import kernel
from .kernel import ended, exit_status, reaped, tells_exits
from .launched_runs import LaunchedRun, MainProcess
from .launcher import Complain, Emit, LaunchError
from .trampoline.creating import free, is_waiting
from .trampoline.executable import REPORT, reported

# ---- Orphans: what a run left behind is reparented to this process, a subreaper, which has to reap
# it
#
# A status has one owner. `Mains` reaps a main process through its pidfd; all other children are
# reaped here, by one `waitpid(pid, WNOHANG)` each. Never `waitpid(-1)`: it takes the status of any
# child, and of 50 children that exited with 7 up to 15 were then reported as 0 (measured). So a
# program that serves a launcher starts its other children through it, or in a thread that outlives
# them.

NO_RUN: RunId = "-"
"""The run of a child that is in none: the daemon's own."""
_LOOKS_APART = 0.05
"""Seconds between two looks: a killed tree may have thousands of orphans, and SIGCHLD comes for
each of them."""
_MANY_ORPHANS = 200
"""Orphans in one look after which the next follows at once: processes that fork without pause leave
zombies faster than a look every 50 ms reaps them, until the machine has no pid left."""


class Orphans:
    """Reaps the children that are not in `owned`."""

    def __init__(self) -> None:
        self.owned: dict[int, RunId] = {}
        """Main processes, and the run of each, kept by `Mains`; and the daemon's own children."""
        self.homes: dict[int, RunId] = {}
        """Live orphans, and the run that each was found to be of. Until an orphan is reaped, its
        pid is not used again."""
        self._noticed = trio.Event()
        self.none_since = 0
        """The last poll of the reactor after which a look has found none alive. What is left of a
        run whose main process had ended by then was ours already, or descends from an orphan that
        was."""
        self._parent = os.getpid()

    def notice(self) -> None:
        self._noticed.set()

    async def serve(self) -> None:
        """Look when told. May be called again after an `OSError`.

        Several signals may be one (signal(7)), but none is lost: an orphan that ends after a look
        sends another. The kernel also sends it for a zombie that becomes ours, or that a tracer
        lets go."""
        while True:
            self._noticed = trio.Event()
            found, living = self._look()
            if found - len(living) >= _MANY_ORPHANS:
                await trio.lowlevel.checkpoint()
                continue
            await trio.sleep(_LOOKS_APART)
            await self._noticed.wait()

    def reap(self) -> int:
        """Reap every orphan that has ended; return how many. Raises `OSError`."""
        found, living = self._look()
        return found - len(living)

    def unreaped(self) -> list[int]:
        """Return the orphans, zombies included. Raises `OSError`."""
        return sorted(kernel.children(self._parent).difference(self.owned))

    def reap_one(self, pid: int) -> bool:
        """Reap an orphan if it has ended; return whether it had. A tracer may keep the zombie."""
        reaped = reap_orphan(pid)
        if reaped:
            self.homes.pop(pid, None)
        return reaped

    def _look(self) -> tuple[int, list[int]]:
        orphans = self.unreaped()
        living = [pid for pid in orphans if not reap_orphan(pid)]
        if self.homes:
            self.homes = {pid: self.homes[pid] for pid in living if pid in self.homes}
        return len(orphans), living


def reap_orphan(pid: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid  # noqa: TID251 - an orphan, by pid: this takes no owner's status
    return False


# ---- One epoll for everything that the launcher waits for, nested in trio's, and everything that
# is tried again
#
# It is nested because trio waits for EPOLLIN alone, and `cgroup.events` is always readable: a
# change shows as EPOLLPRI (cgroups(7), measured). Pidfds and pipes are in the same epoll, so that
# one task reports everything, in one order.
#
# A call that fails is made again after a pause until it works. It may lack descriptors or memory,
# which come back; or it has a bug, which must not touch anything else that is waited for. So a call
# may be made twice. One that finds no descriptor left is made again at once, with those that are
# kept back for stopping.

Call = Callable[[], object]
Together = Callable[[], AbstractContextManager[object]]
ONCE = select.EPOLLIN | select.EPOLLONESHOT
"""For a descriptor that the call closes: see `Reactor.add`."""
_CALLS_AT_ONCE = 64
"""Calls before the daemon's other tasks get their turn."""
_RETRY_AFTER = 0.25
"""Seconds until a failed call is made again."""
_IDLE_CALLS, MOST_IDLE = 4, 256
"""Calls before an idle loop looks again whether something is ready, and calls that may wait for
that."""


class Reactor(trio.abc.Instrument):
    """Calls back when a descriptor is ready. A call may be spurious: it looks again, and does
    nothing if nothing is there."""

    def __init__(
        self,
        failed: Callable[[Exception], object] = lambda _error: None,
        together: Together = nullcontext,
    ) -> None:
        """`together` is entered around the calls of one batch."""
        self._failed = failed
        self._together = together
        self.polls = 0
        """How often it has asked the kernel what is ready."""
        self._epoll = select.epoll()
        self._calls: dict[int, tuple[Call, int]] = {}
        self._silent: set[int] = set()
        """Descriptors that the epoll does not report: their call failed, and they rest until it has
        worked; or they are added `ONCE`, and their call is being made."""
        self._soon: deque[Call] = deque()
        self._later: deque[tuple[float, Call]] = deque()
        self._tasks: deque[Callable[[], Awaitable[object]]] = deque()
        self._idle: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add(self._wake, self._run_soon)

    def add(self, fd: int, call: Call, events: int = select.EPOLLIN) -> None:
        """Call `call` while `fd` has one of `events`. Raises `OSError`.

        `ONCE`: the call usually discards and closes `fd`, which then takes no system call to leave
        the epoll. Else it is made again."""
        self._epoll.register(fd, events)
        self._calls[fd] = (call, events)

    def discard(self, fd: int) -> None:
        """Forget `fd`. Needed before closing it: a duplicate elsewhere would keep reporting under
        the old number."""
        if self._calls.pop(fd, None) is not None and fd not in self._silent:
            self._epoll.unregister(fd)
        self._silent.discard(fd)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` from the serving task, never from within the caller."""
        self._soon.append(partial(call, *arguments))
        os.eventfd_write(self._wake, 1)

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` from the serving task after a pause."""
        self._later.append((trio.current_time() + _RETRY_AFTER, partial(call, *arguments)))
        os.eventfd_write(self._wake, 1)  # the serving task may be waiting for longer

    def when_idle(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` when no task of the daemon has anything to do, for what no client waits for;
        at once if many calls wait."""
        self._idle.append(partial(call, *arguments))
        if len(self._idle) > MOST_IDLE:
            self._try(self._idle.popleft())

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio. With a timeout of 0, a task is ready to run."""
        if timeout > 0 and self._idle:
            for _ in range(min(_IDLE_CALLS, len(self._idle))):
                self._try(self._idle.popleft())
            if self._idle:
                os.eventfd_write(self._wake, 1)

    def finish_idle(self) -> None:
        """Make the calls of `when_idle` now."""
        while self._idle:
            self._try(self._idle.popleft())

    def task(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Await `call` in a task of its own, again and again until it works."""
        self._tasks.append(partial(call, *arguments))
        os.eventfd_write(self._wake, 1)

    def retry_while(
        self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object
    ) -> None:
        """Call `call` now; if it fails, again and again while it is `wanted`."""
        try:
            with lifted():
                call(*arguments)
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._failed(error)
            self.later(self._again, wanted, call, *arguments)

    def _again(
        self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object
    ) -> None:
        if wanted():
            self.retry_while(wanted, call, *arguments)

    async def retry(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Await `call`; if it fails, again and again."""
        while True:
            try:
                await call(*arguments)
            except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
                self._failed(error)
                await trio.sleep(_RETRY_AFTER)
            else:
                return

    async def run(self) -> None:
        trio.lowlevel.add_instrument(self)
        try:
            await self._run()
        finally:
            trio.lowlevel.remove_instrument(self)

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    while self._tasks:
                        nursery.start_soon(self.retry, self._tasks.popleft())
                    if self._later:
                        with trio.move_on_at(self._later[0][0]):
                            await trio.lowlevel.wait_readable(self._epoll.fileno())
                    else:  # without a scope, which costs more than the wait
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                    self.dispatch()
                except OSError as error:
                    self._failed(error)
                    await trio.sleep(_RETRY_AFTER)

    def dispatch(self) -> None:
        """Make one batch of the calls that are due, without waiting."""
        self.polls += 1
        with self._together():
            for fd, _ in self._epoll.poll(0, _CALLS_AT_ONCE):
                if fd in self._calls and fd not in self._silent:
                    self._ready(fd, *self._calls[fd])
        now = trio.current_time()
        while self._later and self._later[0][0] <= now:
            self._try(self._later.popleft()[1])

    def _ready(self, fd: int, call: Call, events: int) -> None:
        once = events == ONCE
        if once:
            self._silent.add(fd)
        try:
            with_reserve(call)
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._failed(error)
            # else it was discarded, and may be another file by now
            if self._calls.get(fd) == (call, events):
                if not once:  # it stays ready: the epoll would report it without pause
                    self._epoll.unregister(fd)
                    self._silent.add(fd)
                self.later(self._wake_up, fd, call, events)
        else:
            if once and self._calls.get(fd) == (call, events):
                self._epoll.modify(fd, events)
                self._silent.discard(fd)

    def _wake_up(self, fd: int, call: Call, events: int) -> None:
        if self._calls.get(fd) == (call, events) and fd in self._silent:
            if events != ONCE:
                self._epoll.register(fd, events)
                self._silent.discard(fd)
            self._ready(fd, call, events)

    def _try(self, call: Call) -> None:
        try:
            with_reserve(call)
        except Exception as error:  # noqa: BLE001 - see `_ready`
            self._failed(error)
            self.later(call)

    def _run_soon(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._soon)):
            self._try(self._soon.popleft())

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wake)


async def wait_ended(reactor: Reactor, pids: Iterable[int], bound: float) -> None:
    """Wait until these children have ended, for `bound` seconds at most. Raises `OSError`."""
    await trio.lowlevel.checkpoint()  # children that are gone already are not waited for
    with trio.move_on_after(bound):
        for pid in pids:
            await _wait_ended(reactor, pid)


async def _wait_ended(reactor: Reactor, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = trio.Event()
    try:
        reactor.add(pidfd, ended.set)
        await ended.wait()
    finally:
        reactor.discard(pidfd)
        os.close(pidfd)


# ---- Events to the loop


class Emitter:
    """Sends events with the current time. `failed` is told if the receiver raises."""

    def __init__(
        self,
        emit: Emit,
        clock: Callable[[], float],
        failed: Callable[[Exception], object],
        together: Together = nullcontext,
    ) -> None:
        self.together = together
        """Is entered around what is sent in one go."""
        self._emit = emit
        self._clock = clock
        self._failed = failed

    def emit(self, kind: Callable[..., Event], *fields: object) -> None:
        """Send an event of that kind, with the current time before its fields."""
        try:
            self._emit(kind(self._clock(), *fields))
        except Exception as error:  # noqa: BLE001 - the receiver has the event, whatever it failed with: do not send it twice
            self._failed(error)


# ---- What the launcher tells the log: what failed and is tried again, and what the kernel refused


_COMPLAIN_EVERY = 10.0
"""Seconds between two complaints about something that is tried again."""


class Complaints:
    """`remedy` is called with each error first, and may remove its cause."""

    def __init__(
        self, complain: Complain, remedy: Callable[[Exception], object] = lambda _error: None
    ) -> None:
        self._complain = complain
        self._complained = -_COMPLAIN_EVERY
        self._remedy = remedy

    def failed(self, error: Exception) -> None:
        """Complain, every few seconds at most, that something failed and is tried again."""
        self._remedy(error)
        if monotonic() - self._complained >= _COMPLAIN_EVERY:
            self._complained = monotonic()
            internal = (
                ""
                if isinstance(error, OSError)
                else f"internal error: {''.join(traceback.format_exception(error))}"
            )
            self._say(f"containment, to be tried again: {internal or error}")

    def unenforced(self, run_id: RunId, error: OSError) -> None:
        """Complain that the kernel cannot be told a limit of a run."""
        where = f"{error.filename}: " if error.filename else ""
        self._say(f"a limit of run {run_id} is only watched, not enforced: {where}{error.strerror}")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a log that cannot be written
            self._complain(text)


# ---- The two events that the launcher owes after a request: `Emptied` after a stop, `Frozen` after
# a freeze
#
# A run is empty when no main process of its subtree is unreaped and its containment is unpopulated.
# That order puts every `MainExited` before the `Emptied` of the run and of its ancestors.


class OwedEvents(Struct):
    """Reports that a run is empty or stands still. `populated` asks the containment whether
    anything lives in a run."""

    emitter: Emitter
    complaints: Complaints
    reactor: Reactor
    populated: Callable[[LaunchedRun, int | None], bool]

    def owe_emptied(self, run: LaunchedRun, number: int) -> None:
        """From now on report when the run, which gets this signal, is empty; it may be already."""
        run.begin_stop(number)
        self.reactor.soon(self.report_if_empty, run)

    def report_if_empty(self, run: LaunchedRun) -> None:
        """Look whether the run and its ancestors are empty, because something has gone that may
        have been the last."""
        try:
            above: LaunchedRun | None = run
            while above is not None:
                if above.emptying and self._empty(above):
                    above.emptying, above.emptied = False, True
                    self.emitter.emit(Emptied, above.id)
                above = above.parent
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self.complaints.failed(error)
            self.reactor.later(self.report_if_empty, run)

    def known_empty(self, run: LaunchedRun, poll: int | None) -> bool:
        """Return whether the run is known to be empty. If that cannot be told it is stopped, and
        the stop waits until it is. `poll`: see `RunContainment.populated`."""
        try:
            return self._empty(run, poll)
        except Exception as error:  # noqa: BLE001 - any failure means that it cannot be told
            self.complaints.failed(error)
            return False

    def _empty(self, run: LaunchedRun, poll: int | None = None) -> bool:
        if run.main is not None or run.in_program or (run.children and run.has_main()):
            return False
        try:
            return not self.populated(run, poll)
        except OSError:
            return not with_reserve(self.populated, run, poll)

    def report_frozen(self, run: LaunchedRun) -> None:
        """Report `Frozen`, if it is owed."""
        if run.freezing:
            run.freezing = False
            self.emitter.emit(Frozen, run.id)


# ---- Main processes: what their trampolines report, and how they end


REAPED_WITHIN = 3.0
"""Seconds within which the parent of an ended main process is expected to reap it, if we are not
the parent. In some containers pid 1 looks for zombies every two seconds, in others never."""


_EXECUTES_WITHIN, _LOOK_EVERY = 0.05, 0.0001
"""Seconds within which a new child executes its trampoline (it takes 0.2 ms), and between two
looks."""


class Mains(Struct):
    """Owns the main process of each run, from its start or adoption until it is reaped."""

    reactor: Reactor
    orphans: Orphans
    emitter: Emitter
    owed: OwedEvents

    def own(self, run: LaunchedRun, main: MainProcess) -> None:
        """Open the process's pidfd, read its report and reap it. Raises `OSError`; then its
        descriptors are closed, and it has no owner."""
        run.main, run.emptied = main, False
        try:
            if main.pidfd < 0:
                main.pidfd = os.pidfd_open(main.pid)
            if main.report is not None:
                self.reactor.add(main.report, partial(self._read_report, run, main), ONCE)
            # of another process's child the pidfd stays open: see `_find_status`
            events = ONCE if main.ours else select.EPOLLIN
            self.reactor.add(main.pidfd, partial(self._reap, run, main), events)
        except OSError:
            self.disown(run)
            raise
        if main.ours:
            self.orphans.owned[main.pid] = run.id

    def disown(self, run: LaunchedRun) -> None:
        """Close the descriptors of a main process, and leave it to the reaper of orphans."""
        main, run.main = run.main, None
        if main is None:
            return
        for fd in (main.report, main.pidfd):
            if fd is not None and fd >= 0:
                self.reactor.discard(fd)
                os.close(fd)
        main.report, main.pidfd = None, -1
        if main.ours:
            self.orphans.owned.pop(main.pid, None)

    def fail_soon(self, run: LaunchedRun, error: LaunchError) -> None:
        """Report that a launch has failed without a main process."""
        run.launch_error = error
        self.reactor.soon(self._fail, run, error)

    def _fail(self, run: LaunchedRun, error: LaunchError) -> None:
        run.launch_error = None
        self.emitter.emit(LaunchFailed, run.id, error.errno, error.text, error.kind, error.about)
        self.owed.report_if_empty(run)

    def _read_report(self, run: LaunchedRun, main: MainProcess) -> None:
        if main.report is None:
            return
        try:
            content = os.read(main.report, REPORT.size)
        except BlockingIOError:
            return
        self.reactor.discard(main.report)
        os.close(main.report)
        main.report = None
        _free(main)
        if main.failure:
            return
        if content:
            # reported to the loop when the trampoline is reaped
            main.failure = reported(content, main.name, main.cwd)
        else:
            self.emitter.emit(LaunchSucceeded, run.id, main.pid)

    def _reap(self, run: LaunchedRun, main: MainProcess) -> None:
        if main.report is not None:
            self._read_report(run, main)
        if not main.ours:
            if ended(main.pidfd):
                self._find_status(run, main)
            return
        result = os.waitid(os.P_PIDFD, main.pidfd, os.WEXITED | os.WNOHANG)
        if result is not None:
            crash_point("reaped")
            exited = result.si_code == os.CLD_EXITED
            status = (result.si_status, None) if exited else (None, result.si_status)
            self._ended(run, main, *status, poll=self.reactor.polls)
        elif ended(main.pidfd):
            # a process that traces it keeps the zombie, perhaps for ever; the orphans' reaper takes
            # it when the tracer lets go
            self._ended(run, main, *_code_and_signal(kernel.status_of_zombie(main.pid)))

    def _find_status(self, run: LaunchedRun, main: MainProcess) -> None:
        """Find out how another process's child has ended. The kernel tells it when its parent has
        reaped it, and wakes us then."""
        gone = reaped(main.pidfd)
        status = exit_status(main.pidfd)
        if status is not None:
            self._ended(run, main, *_code_and_signal(status))
        elif (
            gone
            or not tells_exits()
            or (main.exit_seen is not None and monotonic() - main.exit_seen > REAPED_WITHIN)
        ):
            self._ended(run, main, None, None)
        elif main.exit_seen is None:
            main.exit_seen = monotonic()
            self.reactor.discard(main.pidfd)
            # EPOLLHUP, always reported: it was reaped
            self.reactor.add(main.pidfd, lambda: self._reap(run, main), 0)
            self._look_again(run, main)

    def _look_again(self, run: LaunchedRun, main: MainProcess) -> None:
        """Look again later: EPOLLHUP may not come, because pid 1 may never reap, and kernels before
        6.9 do not report it."""
        if run.main is main:
            self._find_status(run, main)
        if run.main is main:
            self.reactor.later(self._look_again, run, main)

    def _ended(
        self,
        run: LaunchedRun,
        main: MainProcess,
        code: int | None,
        number: int | None,
        *,
        poll: int | None = None,
    ) -> None:
        self.disown(run)
        if main.clone_block is not None:
            _free(main)
        if main.failure:
            self._fail(run, main.failure)
            return
        run.emptied = self.owed.known_empty(run, poll)
        self.emitter.emit(MainExited, run.id, code, number, run.emptied)
        if run.emptying or run.parent is not None:
            self.owed.report_if_empty(run)


def _free(main: MainProcess) -> None:
    """Free what a child reads before it executes: it has executed, or it has ended."""
    if main.clone_block is not None:
        free(main.clone_block)
        main.clone_block = None


def wait_for_trampolines(run: LaunchedRun) -> None:
    """Wait until the new children of a subtree have executed their trampolines. One that stood
    still before that would keep the daemon's descriptors, and the locks that the next daemon
    needs."""
    until = monotonic() + _EXECUTES_WITHIN
    for main in run.mains:
        while main.clone_block is not None and is_waiting(main.clone_block) and monotonic() < until:
            sleep(_LOOK_EVERY)


def signal_mains(
    run: LaunchedRun, *numbers: int, but: set[int] | list[int] | tuple[()] = ()
) -> None:
    for main in run.mains:
        if main.pid not in but:
            for number in numbers:
                main.signal(number)


def _code_and_signal(status: int | None) -> tuple[int | None, int | None]:
    """Split a status of wait(2) into exit code and signal; both are None if it is not known."""
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)
