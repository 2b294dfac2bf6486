"""`--on-end`: executes the command that a run was started with, once its end is on record.

Only a run that was started from outside any run has one, so a tree has one. It is saved from the
run's admission on until it was executed: at least once, whatever becomes of the daemon.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import trio
from msgspec import UNSET, Struct, field

from ...core.life.lifecycle import severity_of_end
from ...host.tasks import Background
from ...processes.contained_commands import CommandResult, ContainedCommand, ContainedCommands
from ...protocol.messages import OnEndState
from ...protocol.types import Event, Isolation, RunId, RunInfo
from .fair_queue import FairQueue
from .reports import HookLabel, HookReports, event_json, event_variables
from .saved import OnEnd

TIMEOUT = 30.0
"""Seconds that one may take."""
AT_ONCE = 4
"""Processes for the runs of one user."""
AT_ONCE_IN_ALL = 8
AT_ONCE_RESERVED = 24
"""More processes, for users for whom none runs: commands of some users that hang hold up no other
user's."""
WAITING = 1024
"""Ended runs whose commands wait. The longest queue of a user loses its oldest."""


class EndHooks(Struct):
    processes: ContainedCommands
    reports: HookReports
    background: Background
    socket: str
    forget: Callable[[Iterable[RunId]], None]
    """Deletes what is saved of these runs."""
    sandbox_of: Callable[[Isolation], list[bytes]]
    """Returns `LaunchSpec.sandbox`. Raises `OSError`."""
    resting: bool = False
    """It starts nothing."""
    _queue: FairQueue[RunId] = field(default_factory=lambda: FairQueue(WAITING))
    _ended: dict[RunId, tuple[OnEnd, Event]] = field(default_factory=dict)
    """Runs whose command waits or is executed."""
    _running: dict[RunId, trio.CancelScope] = field(default_factory=dict)
    _idle: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def ended(self, info: RunInfo, hook: OnEnd) -> None:
        """The end of a run is on record."""
        if info.id in self._ended:
            return
        self._ended[info.id] = (hook, _event_of(info))
        dropped = self._queue.push(hook.uid, None, 0, info.id)
        if dropped is not None:
            self.reports.dropped(self._label_of(dropped), f"run {dropped}", "too many wait")
            self._done(dropped)
        self._start()

    def _start(self) -> None:
        while not self.resting and len(self._running) < AT_ONCE_IN_ALL + AT_ONCE_RESERVED:
            most = AT_ONCE if len(self._running) < AT_ONCE_IN_ALL else 1
            executed = Counter(self._ended[run][0].uid for run in self._running)
            next_run = self._queue.pop([uid for uid, count in executed.items() if count >= most])
            if next_run is None:
                return
            self._running[next_run] = scope = trio.CancelScope()
            self.background.start_soon(self._run, next_run, scope)

    async def _run(self, run: RunId, scope: trio.CancelScope) -> None:
        try:
            result = await self._execute(*self._ended[run], scope)
            # else the next daemon executes it again
            if not (scope.cancelled_caught and self.resting):
                self.reports.ended(self._label_of(run), result, f"{self._ended[run][1].type} {run}")
                self._done(run)
        finally:
            del self._running[run]
            self._idle.unpark_all()
        self._start()

    async def _execute(self, hook: OnEnd, event: Event, scope: trio.CancelScope) -> CommandResult:
        argv = [b"/bin/sh", b"-c", hook.command.encode(errors="surrogateescape")]
        env = [*hook.env, *event_variables(event, self.socket)]
        try:
            sandbox = self.sandbox_of(hook.isolation) if hook.isolation is not None else None
        except OSError as error:
            return CommandResult(f"not started: {error}", ok=False, output=b"", elapsed_s=0.0)
        command = ContainedCommand(
            argv, hook.cwd, env, event_json(event), TIMEOUT, hook.user, sandbox
        )
        return await self.processes.run(command, scope, operators=False)

    def _label_of(self, run: RunId) -> HookLabel:
        return HookLabel(
            f"--on-end of run {run}", f"--on-end of user {self._ended[run][0].uid}", run
        )

    def _done(self, run: RunId) -> None:
        del self._ended[run]
        self.forget([run])

    def cancel(self, run: RunId) -> bool:
        """Do not execute the command of an ended run, or end it. Return whether there was one."""
        if run not in self._ended:
            return False
        if run in self._running:
            self._running[run].cancel()
        else:
            self._queue.remove(run)
            self._done(run)
        return True

    def states(self) -> list[OnEndState]:
        return [
            OnEndState(
                run_id=run,
                command=hook.command,
                state="running" if run in self._running else "waiting",
            )
            for run, (hook, _) in self._ended.items()
        ]

    async def rest(self, within: float, *, queued: bool) -> None:
        """As `EventHooks.rest`."""
        self.resting = not queued
        with trio.move_on_after(within):
            while self._running or (queued and len(self._queue)):
                await self._idle.park()
        self.resting = True
        for scope in self._running.values():
            scope.cancel()
        while self._running:
            await self._idle.park()

    def go_on(self) -> None:
        """Undo `rest`."""
        self.resting = False
        waiting = set(self._queue)
        for run, (hook, _) in self._ended.items():
            if run not in waiting:
                self._queue.push(hook.uid, None, 0, run)
        self._start()


def _event_of(info: RunInfo) -> Event:
    """Return the end of a run as an event. It has no number: a later daemon may execute the
    command, for a run of this one."""
    return Event(
        type=f"run_{info.status}",
        severity=severity_of_end(info.status),
        run_id=info.id,
        root_id=info.root_id,
        agent_name=info.name,
        user=info.user,
        message=info.reason.message if info.reason is not None else "",
        channel=info.channel,
        time=info.ended_at if info.ended_at is not None else UNSET,
    )
