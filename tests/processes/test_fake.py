"""The fake answers like a real launcher, under the autojump clock."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from sfad.core.events import (
    Emptied,
    Event,
    Frozen,
    LaunchFailed,
    LaunchSucceeded,
    MainExited,
    Surveyed,
)
from sfad.processes.launcher import Adopted, Launcher, LaunchRecord, LaunchSpec
from tests.processes.fake import FakeLauncher, Script

SPEC = LaunchSpec([b"agent"], b"/", [])


def remembered(_record_of: LaunchRecord) -> bool:
    return True


class Stage:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.scripts: dict[str, Script] = {}
        self.launcher = FakeLauncher(
            emit=self.events.append,
            script=lambda run, _spec: self.scripts.get(run, Script(after=None)),
        )

    def told(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    launcher: Launcher = made.launcher
    async with trio.open_nursery() as nursery:
        await nursery.start(launcher.serve)
        yield made
        nursery.cancel_scope.cancel()


async def test_exits_by_itself(stage: Stage, autojump_clock: MockClock) -> None:
    stage.scripts["a1"] = Script(after=60, code=7)
    stage.launcher.launch("a1", None, SPEC, remembered)
    assert stage.events == []
    await trio.sleep(61)
    assert stage.told() == [LaunchSucceeded, MainExited]
    assert isinstance(stage.events[1], MainExited)
    assert (stage.events[1].code, stage.events[1].empty) == (7, True)


async def test_fails_to_launch(stage: Stage, autojump_clock: MockClock) -> None:
    stage.scripts["a1"] = Script(errno=2)
    stage.launcher.launch("a1", None, SPEC, remembered)
    await trio.sleep(1)
    assert stage.told() == [LaunchFailed]


async def test_stubborn_with_a_child(stage: Stage, autojump_clock: MockClock) -> None:
    stage.scripts["a2"] = Script(after=None, obeys=False)
    stage.launcher.launch("a1", None, SPEC, remembered)
    stage.launcher.launch("a2", "a1", SPEC, remembered)
    await trio.sleep(1)
    stage.launcher.terminate("a1", signal.SIGTERM)
    stage.launcher.survey("a1")
    await trio.sleep(5)
    assert stage.told() == [LaunchSucceeded, LaunchSucceeded, Surveyed, MainExited]
    stage.launcher.kill("a1")
    await trio.sleep(1)
    assert stage.told()[4:] == [MainExited, Emptied]


async def test_leaves_something(stage: Stage, autojump_clock: MockClock) -> None:
    stage.scripts["a1"] = Script(after=1, leaves=True)
    stage.launcher.launch("a1", None, SPEC, remembered)
    await trio.sleep(2)
    assert isinstance(stage.events[-1], MainExited)
    assert not stage.events[-1].empty
    stage.launcher.terminate("a1", signal.SIGTERM)
    await trio.sleep(1)
    assert stage.told()[2:] == [Emptied]


async def test_frozen_does_not_end(stage: Stage, autojump_clock: MockClock) -> None:
    stage.scripts["a1"] = Script(after=10)
    stage.launcher.launch("a1", None, SPEC, remembered)
    stage.launcher.freeze("a1")
    await trio.sleep(60)
    assert stage.told() == [LaunchSucceeded, Frozen]
    stage.launcher.thaw("a1")
    await trio.sleep(1)
    assert stage.told()[2:] == [MainExited]


async def test_adopted(stage: Stage, autojump_clock: MockClock) -> None:
    stage.launcher.survived = {
        "a1": Script(after=60, code=None),
        "a2": Script(headless=True, after=None),
        "a4": Script(after=None),
    }
    adopt = stage.launcher.adopt
    assert adopt("a1", None, LaunchRecord("00", pid=77)) == Adopted(77, empty=False)
    assert adopt("a2", "a1", LaunchRecord("00", pid=78)) == Adopted(None, empty=False)
    assert adopt("a3", None, LaunchRecord("00")) == Adopted(None, empty=True)
    assert adopt("a4", None, LaunchRecord("00", pid=80, report=5)) == Adopted(
        80, empty=False, starting=True
    )
    assert list(stage.launcher.hand_over()) == ["a1", "a2", "a3", "a4"]
    assert stage.launcher.hand_over()["a1"] == LaunchRecord("00", pid=77, started=77)
    await trio.sleep(61)
    assert stage.told() == [LaunchSucceeded, MainExited]
    assert isinstance(stage.events[1], MainExited)
    assert (stage.events[1].code, stage.events[1].signal, stage.events[1].empty) == (
        None,
        None,
        False,
    )
    stage.launcher.kill("a1")
    await trio.sleep(1)
    assert stage.told()[2:] == [Emptied]
