"""Which hooks are started, and when: hooks, users and runs that want much hold up no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sfad.core.context import MAX_EVENTS, WINDOW
from sfad.features.hooks.end_hooks import AT_ONCE, AT_ONCE_IN_ALL, AT_ONCE_RESERVED, EndHooks
from sfad.features.hooks.event_hooks import WAITING, EventHooks
from sfad.features.hooks.feature import Hook
from sfad.features.hooks.reports import HookReports
from sfad.features.hooks.saved import OnEnd
from sfad.host.counts import Counts
from sfad.host.log import Log
from sfad.host.tasks import Background
from sfad.processes.contained_commands import CommandResult, ContainedCommand, ContainedCommands
from sfad.protocol.types import Event, RunId, Severity, Status
from tests.ledger.samples import run as ended_run

TRUE = CommandResult("exit code 0", ok=True, output=b"", elapsed_s=0.0)


class Commands:
    """In place of the processes: commands end at once, but the hanging ones not until they are
    cancelled or `released`."""

    def __init__(self, hangs: Callable[[ContainedCommand], bool] = lambda _: True) -> None:
        self._hangs = hangs
        self.released = trio.Event()
        self.running: list[ContainedCommand] = []
        self.ended: list[ContainedCommand] = []

    async def run(
        self, command: ContainedCommand, stop: trio.CancelScope, *, operators: bool
    ) -> CommandResult:
        assert operators == (command.argv[1] != b"-c")
        self.running.append(command)
        try:
            with stop:
                if self._hangs(command):
                    await self.released.wait()
        finally:
            self.running.remove(command)
            self.ended.append(command)
        return TRUE


class Told(list[tuple[str, RunId | None]]):
    def tell(self, _what: str, message: str, _severity: Severity, run: RunId | None) -> None:
        self.append((message, run))


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    tasks = Background(print)
    async with trio.open_nursery() as nursery:
        await nursery.start(tasks.serve)
        yield tasks
        nursery.cancel_scope.cancel()


def reports(told: Told) -> HookReports:
    return HookReports(Log("error"), told.tell, Counts())


def event_hooks(
    commands: Commands,
    tasks: Background,
    told: Told,
    *names: str,
    uid_of: Callable[[RunId], int] = int,
) -> EventHooks:
    made = EventHooks(
        cast(ContainedCommands, commands),
        reports(told),
        tasks,
        [],
        "/socket",
        lambda _: None,
        uid_of,
    )
    made.configure({name: Hook(on=("*",), command=("/bin/sh", name)) for name in names}, 0, {})
    return made


def happened(
    number: int, run: str = "1", what: str = "run_paused", severity: Severity = "low"
) -> Event:
    return Event(type=what, seq=number, run_id=run, root_id=run, severity=severity)


def hook_of(command: ContainedCommand) -> str:
    return command.argv[-1].decode()


async def test_hooks_that_hang_hold_up_no_other() -> None:
    commands = Commands(lambda command: hook_of(command).startswith("hangs"))
    async with background() as tasks:
        hooks = event_hooks(commands, tasks, Told(), "hangs-1", "hangs-2", "hangs-3", "works")
        for number in range(1, 21):
            hooks.take(happened(number, str(number)))
            await wait_all_tasks_blocked()
        assert Counter(map(hook_of, commands.ended)) == {"works": 20}
        assert len(commands.running) <= 8 + 3
        assert {hook_of(command) for command in commands.running} == {
            "hangs-1",
            "hangs-2",
            "hangs-3",
        }


async def test_a_user_pushes_no_other_users_event_out() -> None:
    """Neither does a tree for each event help."""
    told, commands = Told(), Commands()
    async with background() as tasks:
        hooks = event_hooks(
            commands, tasks, told, "hangs", uid_of=lambda root: 1 if root == "victim" else 2
        )
        for number in range(1, 5):
            hooks.take(happened(number, f"busy-{number}"))
        hooks.take(happened(5, "victim", "run_failed"))
        for number in range(6, 6 + WAITING + 10):
            hooks.take(happened(number, f"attacker-{number}"))
        (state,) = hooks.states()
        assert (state.waiting, state.dropped) == (WAITING, 11)
        assert [message for message, _ in told] == [
            (
                "hook 'hangs' is not started for each event: "
                "more events wait than may, beginning with run_paused attacker-6 (event 6)"
            )
        ]
        commands.released.set()
        await wait_all_tasks_blocked()
        assert len(commands.ended) == 4 + WAITING
        assert [b"run_failed" in command.stdin for command in commands.ended].count(True) == 1, (
            "the event of the victim"
        )


async def test_events_that_hooks_cause_themselves_start_them_so_often(
    mock_clock: MockClock,
) -> None:
    told, commands = Told(), Commands(lambda _: False)
    async with background() as tasks:
        hooks = event_hooks(commands, tasks, told, "resumes")
        for number in range(1, MAX_EVENTS + 4):
            hooks.take(happened(number))
            await wait_all_tasks_blocked()
        assert len(commands.ended) == MAX_EVENTS
        assert hooks.states()[0].dropped == 3
        assert [message for message, _ in told] == [
            "hook 'resumes' is not started for each event: "
            f"it is started {MAX_EVENTS} times a minute for one type of event of one run, "
            f"beginning with run_paused 1 (event {MAX_EVENTS + 1})"
        ]
        hooks.take(happened(100, what="run_failed"))
        hooks.take(happened(101, "2"))
        mock_clock.jump(WINDOW)
        hooks.take(happened(102))
        await wait_all_tasks_blocked()
        assert len(commands.ended) == MAX_EVENTS + 3


async def test_commands_of_users_that_hang_hold_up_no_other_users() -> None:
    commands, told = Commands(), Told()
    async with background() as tasks:
        hooks = EndHooks(
            cast(ContainedCommands, commands),
            reports(told),
            tasks,
            "/socket",
            lambda _: None,
            lambda _: [],
        )
        users = range(1, AT_ONCE_IN_ALL + AT_ONCE_RESERVED + 10)
        for user in users:
            for number in range(AT_ONCE + 1):
                hooks.ended(
                    ended_run(100 * user + number, status=Status.COMPLETED),
                    OnEnd(f"{user}", b"/", [], user, None),
                )
        await wait_all_tasks_blocked()
        running = Counter(command.argv[-1] for command in commands.running)
        assert len(commands.running) == AT_ONCE_IN_ALL + AT_ONCE_RESERVED
        assert running[b"1"] == running[b"2"] == AT_ONCE
        assert set(running.values()) == {AT_ONCE, 1}
