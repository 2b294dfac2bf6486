"""`[[hooks]]`: starts the operator's commands at events.

A hook is started for each event that one of its patterns matches, once the event is on record, or
at once while the ledger cannot be written. The number up to which a hook is done with events is
saved, so a daemon that follows a killed one starts again what was not finished: at least once, not
exactly once, because what a killed daemon had started may have done its work.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import trio
from msgspec import Struct, field

from ...core.context import MAX_EVENTS, EventRate
from ...host.tasks import Background
from ...processes.contained_commands import CommandResult, ContainedCommand, ContainedCommands
from ...protocol.messages import HookState
from ...protocol.types import SEVERITIES, Event, RunId
from .fair_queue import FairQueue
from .feature import CHANNEL, TYPES, Hook
from .programs import program_trouble
from .reports import HookLabel, HookReports, event_json, event_variables

WAITING = 256
"""Events that wait for one hook."""
AT_ONCE = 4
"""Processes of one hook, and of its tests."""
AT_ONCE_IN_ALL = 8
"""Of all hooks. One of which nothing runs is started nevertheless, so that hooks which hang hold up
no other."""


class _Hook(Struct):
    config: Hook
    seen: int
    """The number of the last event that it was asked about."""
    queue: FairQueue[Event] = field(default_factory=lambda: FairQueue(WAITING))
    running: dict[int, trio.CancelScope] = field(default_factory=dict)
    testing: int = 0
    ended: int = 0
    dropped: int = 0
    failed: int = 0
    failing: str | None = None
    """How it ended last, if it failed."""

    def wants(self, event: Event) -> bool:
        return event.channel != CHANNEL and self.wants_type(event.type)

    def wants_type(self, what: str) -> bool:
        return not what.startswith("hook_") and any(
            fnmatchcase(what, pattern) for pattern in self.config.on
        )

    @property
    def finished(self) -> int:
        """The number up to which nothing waits or runs."""
        return (
            min([event.number for event in self.queue] + list(self.running), default=self.seen + 1)
            - 1
        )


class EventHooks(Struct):
    processes: ContainedCommands
    reports: HookReports
    background: Background
    env: list[bytes]
    """The part of the daemon's environment that hooks get."""
    socket: str
    save: Callable[[dict[str, int]], None]
    """Saves how far each hook has come."""
    uid_of: Callable[[RunId], int | None]
    resting: bool = False
    """It starts nothing."""
    _hooks: dict[str, _Hook] = field(default_factory=dict)
    _rate: EventRate = field(default_factory=EventRate)
    """Of the events of a run: a hook may cause such events itself, such as one that resumes what
    another pauses."""
    _idle: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def configure(self, hooks: Mapping[str, Hook], last: int, saved: Mapping[str, int]) -> None:
        """Follow the config. A new hook is told of what happens from now on, or from where an
        earlier daemon has `saved` it. `last`: the number of the last event."""
        before, self._hooks = self._hooks, {}
        for name, config in hooks.items():
            old = before.pop(name, None)
            self._hooks[name] = old or _Hook(config, saved.get(name, last))
            self._hooks[name].config = config
        for gone in before.values():
            for scope in gone.running.values():
                scope.cancel()
        if self._hooks or saved:
            self._save()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @property
    def oldest(self) -> int:
        """The number of the last event that each hook has seen."""
        return min((hook.seen for hook in self._hooks.values()), default=0)

    def take(self, event: Event, _lineage: tuple[RunId, ...] = ()) -> None:
        """Queue an event that is on record for each hook that wants it."""
        for name, hook in self._hooks.items():
            if event.number <= hook.seen:
                continue
            hook.seen = event.number
            if hook.wants(event):
                if self._rate.admits(
                    (name, event.type, event.run_id, event.scope), trio.current_time()
                ):
                    self._drop(name, hook, self._push(hook, event), "more events wait than may")
                else:
                    self._drop(
                        name,
                        hook,
                        event,
                        (
                            f"it is started {MAX_EVENTS} times a minute for one type of event "
                            "of one run"
                        ),
                    )
        self._start()

    def _drop(self, name: str, hook: _Hook, event: Event | None, why: str) -> None:
        if event is not None:
            hook.dropped += 1
            self.reports.dropped(_label_of(name), _about(event), why)

    def _push(self, hook: _Hook, event: Event) -> Event | None:
        user = self.uid_of(event.root_id) if event.root_id is not None else None
        return hook.queue.push(user, event.root_id, SEVERITIES.index(event.severity), event)

    def _start(self) -> None:
        """Start what may start: of the hooks with fewest processes first."""
        while not self.resting:
            most = (
                AT_ONCE
                if sum(len(hook.running) for hook in self._hooks.values()) < AT_ONCE_IN_ALL
                else 1
            )
            ready = [
                name
                for name, hook in self._hooks.items()
                if len(hook.queue) and len(hook.running) < most
            ]
            if not ready:
                return
            name = min(ready, key=lambda each: len(self._hooks[each].running))
            hook = self._hooks[name]
            event = hook.queue.pop()
            assert event is not None
            hook.running[event.number] = scope = trio.CancelScope()
            self.background.start_soon(self._run, name, hook, event, scope)

    async def _run(self, name: str, hook: _Hook, event: Event, scope: trio.CancelScope) -> None:
        try:
            result = await self._execute(hook.config, event, scope)
            if self.resting and scope.cancelled_caught:  # the next daemon starts it again
                self._push(hook, event)
                return
            hook.ended += 1
            hook.failed += not result.ok
            hook.failing = None if result.ok else result.how
            self.reports.ended(_label_of(name), result, _about(event))
        finally:
            del hook.running[event.number]
            self._save()
            self._idle.unpark_all()
        self._start()

    async def _execute(self, config: Hook, event: Event, scope: trio.CancelScope) -> CommandResult:
        path = next(
            (
                item[5:].decode(errors="surrogateescape")
                for item in self.env
                if item.startswith(b"PATH=")
            ),
            None,
        )
        trouble = program_trouble(config.command, path)
        if trouble is not None:
            return CommandResult(f"not started: {trouble}", ok=False, output=b"", elapsed_s=0.0)
        env = [*self.env, *event_variables(event, self.socket)]
        argv = [word.encode(errors="surrogateescape") for word in config.command]
        command = ContainedCommand(argv, b"/", env, event_json(event), config.timeout)
        return await self.processes.run(command, scope, operators=True)

    def types_of(self, name: str) -> list[str]:
        """Return the types of events that start a hook. Raises `KeyError`."""
        return [each for each in TYPES if self._hooks[name].wants_type(each)]

    async def test(self, name: str, event: Event) -> CommandResult | None:
        """Execute a hook for an invented event; `None` if too many tests of it run already. Raises
        `KeyError`."""
        hook = self._hooks[name]
        if hook.testing >= AT_ONCE:
            return None
        hook.testing += 1
        try:
            return await self._execute(hook.config, event, trio.CancelScope())
        finally:
            hook.testing -= 1

    @property
    def names(self) -> list[str]:
        return list(self._hooks)

    def states(self) -> list[HookState]:
        return [
            HookState(
                name=name, on=list(hook.config.on), command=list(hook.config.command),
                timeout=hook.config.timeout, waiting=len(hook.queue), running=len(hook.running),
                ended=hook.ended, failed=hook.failed, failing=hook.failing, dropped=hook.dropped,
            )
            for name, hook in self._hooks.items()
        ]  # fmt: skip

    async def rest(self, within: float, *, queued: bool) -> None:
        """Let hooks that run end, and with `queued` those that wait, within so many seconds; then
        end them. The next daemon starts again what was not finished."""
        self.resting = not queued
        with trio.move_on_after(within):
            while any(
                hook.running or (queued and len(hook.queue)) for hook in self._hooks.values()
            ):
                await self._idle.park()
        self.resting = True
        for hook in self._hooks.values():
            for scope in hook.running.values():
                scope.cancel()
        while any(hook.running for hook in self._hooks.values()):
            await self._idle.park()

    def go_on(self) -> None:
        """Undo `rest`."""
        self.resting = False
        self._start()

    def _save(self) -> None:
        self.save({name: hook.finished for name, hook in self._hooks.items()})


def _label_of(name: str) -> HookLabel:
    return HookLabel(f"'{name}'", f"'{name}'")


def _about(event: Event) -> str:
    return f"{event.type} {event.run_id or ''} (event {event.seq})".replace("  ", " ")
