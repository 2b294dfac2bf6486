"""Carries runs out that are functions of programs: begins and ends them, and does what it can of
what the core wants of their processes.

A function cannot be signalled, frozen or killed. Its program is told of a stop by an event,
`run_stopping`; the gateway makes no further call for it. If the program has not ended it when the
grace is over, it is taken for ended, and left running.
"""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ...core import events as e
from ...core.state.access import Peer, unknown_run
from ...core.state.run import Run
from ...core.state.vocabulary import ReasonKind
from ...daemon.loop.seam import Carrier, Heart
from ...daemon.server.asker import Asker
from ...processes import kernel
from ...processes.launcher import LaunchRecord, RunProcesses
from ...protocol.errors import RequestError
from ...protocol.event_types import EventType
from ...protocol.types import Admitted, ErrorCode, RunId
from ...runs.live import Live, bounds_of
from .feature import ADMIT


class _Program(Struct):
    """A process that carries runs out."""

    pidfd: int
    runs: set[RunId] = field(default_factory=set)
    watch: trio.CancelScope = field(default_factory=trio.CancelScope)


class Programs(Carrier, RunProcesses):
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._launcher = heart.resources.launcher
        self._programs: dict[tuple[int, int], _Program] = {}
        """By pid and start."""

    # ---- Beginning and ending

    def begin(self, live: Live) -> None:
        """Begin a run. `LaunchFailed` is fed if its program has ended meanwhile."""
        run, program = live.run, of(live)
        self._heart.processes[run.id] = self
        now = trio.current_time()
        if not self._join(program, run.id):
            words = f"run {run.id} was not started: its program, process {program.pid}, has ended"
            self._heart.feed(e.LaunchFailed(now, run.id, errno.ESRCH, words))
            return
        parent = run.parent.id if run.parent is not None else None
        self._launcher.enter(run.id, parent, LaunchRecord(live.nonce, bounds_of(run)))
        live.set_main(program.pid, program.started, ())
        self._heart.resources.spool.journal.save([live])
        self._heart.feed(e.LaunchSucceeded(now, run.id, program.pid))

    def go_on(self, live: Live) -> None:
        """Go on with a run of an earlier daemon. The launcher knows it."""
        self._heart.processes[live.run.id] = self
        if live.run.pid is not None and not self._join(of(live), live.run.id):
            self._launcher.leave(live.run.id, _gone(of(live)))

    def end(self, live: Live, failed: str | None = None, *, left: bool = False) -> None:
        """Take a run for ended, if it was not before. `left`: its function goes on."""
        program = self._programs.get(_key(of(live)))
        if program is not None and live.run.id in program.runs:
            program.runs.discard(live.run.id)
            self._launcher.leave(live.run.id, failed, left=left)

    def _join(self, admitted: Admitted, run: RunId) -> bool:
        """Note that a program carries a run out, and watch it. Return whether it is alive."""
        program = self._programs.get(_key(admitted))
        if program is None:
            try:
                program = _Program(os.pidfd_open(admitted.pid))
            except OSError:
                return False
            self._programs[_key(admitted)] = program
            self._heart.background.start_soon(self._watch, admitted, program)
        if not kernel.is_alive(admitted.pid, admitted.started):
            return False
        program.runs.add(run)
        return True

    async def _watch(self, admitted: Admitted, program: _Program) -> None:
        """End the runs of a program when that has ended: a process that it has forked may have its
        connection."""
        try:
            with program.watch:
                await trio.lowlevel.wait_readable(program.pidfd)
        finally:
            os.close(program.pidfd)
            del self._programs[_key(admitted)]
        for run in sorted(program.runs):
            self._launcher.leave(run, _gone(admitted))

    # ---- Whose it is

    def own(self, asker: Asker, run: RunId) -> Live:
        """Return a live run that the process which asks carries out. Raise `RequestError`."""
        live, sender = self._heart.catalogue.live.get(run), asker.connection.sender
        if live is None:
            raise RequestError(ErrorCode.NO_SUCH_RUN, unknown_run(run))
        process = kernel.stat(sender) if live.run.asked.in_program else None
        if process is not None and (sender, process.started) == _key(of(live)):
            return live
        raise RequestError(
            ErrorCode.NOT_PERMITTED, f"run {run} is not an agent within process {sender}"
        )

    def below(self, asker: Asker, run: RunId) -> Peer:
        self.own(asker, run)
        return replace(asker.peer, run=run)

    def is_caller(self, live: Live, inode: int | None) -> bool:
        program = of(live)
        # in this order: the descriptors may be those of another process that has its pid by now
        return _has_socket(program.pid, inode) and kernel.is_alive(program.pid, program.started)

    # ---- What the core wants of its processes

    def terminate(self, run_id: RunId, signal: int) -> None:
        for live in self._carried(run_id):
            run, admitted = live.run, of(live)
            reason = run.ending.reason if run.ending is not None else None
            self._heart.announcer.tell_of_run(
                EventType.RUN_STOPPING,
                run.id,
                reason.message if reason is not None else "it is stopped with a run above it",
                "low",
                limit_kind=reason.limit_kind if reason is not None else None,
            )
            if reason is not None and reason.kind == ReasonKind.CLIENT:
                self.end(live)  # no one is there to be told
            elif admitted.stop == "terminate_process":
                self._signal(admitted, signal)
        self._launcher.terminate(run_id, signal)

    def kill(self, run_id: RunId) -> None:
        for live in self._carried(run_id):
            if of(live).stop == "terminate_process":
                self._signal(of(live), signal.SIGKILL)
            else:
                self.end(live, left=True)
        self._launcher.kill(run_id)

    def _carried(self, run_id: RunId) -> Iterator[Live]:
        """Yield the runs that programs carry out and have not ended: this one, and those below
        it."""
        carried = {run for program in self._programs.values() for run in program.runs}
        run: Run = self._heart.catalogue.live[run_id].run
        for each in run.subtree():
            if each.id in carried:
                yield self._heart.catalogue.live[each.id]

    def _signal(self, admitted: Admitted, number: int) -> None:
        program = self._programs.get(_key(admitted))
        if program is not None:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(program.pidfd, number)

    def freeze(self, run_id: RunId) -> None:
        self._launcher.freeze(run_id)

    def thaw(self, run_id: RunId) -> None:
        self._launcher.thaw(run_id)

    def signal_main(self, run_id: RunId, signal: int) -> bool:
        return self._launcher.signal_main(run_id, signal)

    def survey(self, run_id: RunId) -> None:
        self._launcher.survey(run_id)

    def release(self, run_id: RunId) -> None:
        self._heart.processes.pop(run_id, None)
        for program in self._programs.values():
            program.runs.discard(run_id)
            if not program.runs:
                program.watch.cancel()
        self._launcher.release(run_id)


def carrier(heart: Heart) -> Programs:
    return Programs(heart)


def of(live: Live) -> Admitted:
    """Return what was decided about such a run."""
    found = live.parts.of(ADMIT)
    assert isinstance(found, Admitted)
    return found


def _key(admitted: Admitted) -> tuple[int, int]:
    return admitted.pid, admitted.started


def _gone(admitted: Admitted) -> str:
    return f"its program, process {admitted.pid}, ended without ending it"


def _has_socket(pid: int, inode: int | None) -> bool:
    """Return whether a process has a socket open."""
    if inode is None:
        return False
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                if os.readlink(descriptor.path) == f"socket:[{inode}]":
                    return True
    return False
