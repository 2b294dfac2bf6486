"""When parts of features are loaded, and what they are told then."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.lowlevel

from sfad.daemon.loop.leading import Leading
from sfad.daemon.loop.seam import Heart, Part, Parts
from sfad.feature import Feature
from sfad.protocol.errors import RequestError
from sfad.protocol.messages import Spawn
from sfad.protocol.requests.starting import OF_FEATURES
from sfad.protocol.types import Admitted, Checks, Isolation, Placing, Ship, Terminal, Worktree
from sfad.runs import live
from sfad.start.prepared import Prepared, Surroundings
from tests.loop.shell import bare, shell
from tests.processes.fake import FakeLauncher

ENDING = Feature(decides={"on_end": str}, part="part")
NONE = cast(Heart, None)
ASKED = {
    "on_end": "true",
    "isolation": Isolation(),
    "worktree": Worktree(),
    "check": Checks(commands=["true"]),
    "setup": "true",
    "terminal": Terminal(),
    "admit": Admitted(),
    "ship": Ship(directory=b"/", archive="a" * 32, size=1),
}


class Ended(live.Parts):
    """Also where no feature is there."""

    on_end: str | None = None


class Told(list[str]):
    def part(self, _heart: Heart) -> Part:
        self.append("loaded")

        async def rest() -> None:
            self.append("rest")

        return Part(
            begin=lambda: self.append("begin"),
            check=lambda _p, _around: self.append("check"),
            rest=rest,
            go_on=lambda: self.append("go on"),
        )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told()
    part = SimpleNamespace(part=made.part)
    for name in ("sfad.features.ending", "sfad.features.ending.part"):
        monkeypatch.setitem(sys.modules, name, part)
    return made


def around(**order: Any) -> Surroundings:
    return bare(Spawn(id=0, argv=[b"true"], cwd=b"/", env=[], **order))


def check(parts: Parts, **order: Any) -> None:
    asked = around(**order)
    p = Prepared.of(asked.order)
    p.parts = Ended(on_end=order.get("on_end"))
    parts.load(p, asked)
    parts.check(p, asked)


def test_what_only_an_absent_feature_could_do_is_refused() -> None:
    for asked in OF_FEATURES:
        with pytest.raises(RequestError, match=f"no feature that carries out '{asked}'"):
            check(Parts({}, NONE), **{asked: ASKED[asked]})
    with pytest.raises(RequestError, match="no feature that carries out 'placing'"):
        check(Parts({}, NONE), placing=Placing())
    check(Parts({}, NONE))


def test_a_request_loads_the_part_that_it_asks_for(told: Told) -> None:
    parts = Parts({"ending": ENDING}, NONE)
    parts.begin()
    check(parts)
    assert told == []
    check(parts, on_end="true")
    assert told == ["loaded", "begin", "check"]
    check(parts)
    assert told[3:] == []


def test_a_part_begins_when_the_daemon_has(told: Told) -> None:
    parts = Parts({"ending": ENDING}, NONE)
    check(parts, on_end="true")
    assert told == ["loaded", "check"]
    parts.begin()
    assert told[2:] == ["begin"]


def test_a_part_that_is_loaded_while_the_daemon_rests_waits_until_it_goes_on(told: Told) -> None:
    parts = Parts({"ending": ENDING}, NONE)
    parts.begin()
    trio.run(parts.rest)
    check(parts, on_end="true")
    assert told == ["loaded", "check"]
    parts.go_on()
    assert told[2:] == ["go on"]


def test_where_nothing_makes_a_sandbox_no_command_is_executed_for_an_isolated_run() -> None:
    with pytest.raises(OSError, match="no feature that makes a sandbox"):
        Parts({}, NONE).sandbox_of(Isolation())


@pytest.mark.parametrize(("waits", "times"), [(False, 1), (True, 2)])
async def test_what_was_waited_for_may_have_changed_what_is_checked(
    tmp_path: Path, waits: bool, times: int
) -> None:
    checked: list[Prepared] = []

    async def wait() -> None:
        await trio.lowlevel.checkpoint()

    def last(_p: Prepared, _around: Surroundings) -> Awaitable[None] | None:
        return wait() if waits else None

    def check(p: Prepared, _around: Surroundings) -> None:
        checked.append(p)

    async with shell(tmp_path, FakeLauncher) as runtime:
        runtime.starting.leading = Leading(have=last)
        runtime.starting.steps, runtime.starting.checks = (), (check,)
        p = await runtime.starting.prepare(around())
    assert checked == [p] * times
