"""What a node answers that is an error, late, or not understood: no daemon has an internal error
because of another one."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from sfad.features.fleet.messages import Relay, SharedSubscriptions, ShareSubscriptions
from sfad.features.fleet.node import Asking, Fleet
from sfad.features.fleet.nodes import Nodes
from sfad.features.fleet.pace import BURST, HARDLY, LATELY, LEAST, LONGER, OWED, UNKNOWN, Pace
from sfad.host.clock import Timers
from sfad.protocol import messages as m
from sfad.protocol.errors import RequestError
from sfad.protocol.framing import frame
from sfad.protocol.messages import pack_message
from sfad.protocol.types import ErrorCode
from tests.bench.fleet_answers import Values

REFUSED = m.Error(id=0, code=ErrorCode.UNAVAILABLE, message="the daemon of node n2: refused")
BUSY = m.Error(id=1, code=ErrorCode.UNAVAILABLE, message="the ledger cannot be written")


async def _asked(said: bytes) -> m.Reply:
    """Return the answer of a node that says this."""
    mine, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        mine.setblocking(False)
        asking = Asking(trio.socket.from_stdlib_socket(mine), "n2", "n1")
        try:
            return await asking.ask(m.Select(id=0, verb="list"))
        finally:
            asking.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (bytes(pack_message(REFUSED)), "the daemon of node n2: refused"),
        (frame(b"no message"), "not understood here"),
        (b"", "does not answer"),
    ],
)
async def test_a_daemon_that_cannot_be_asked_does_not_answer(said: bytes, why: str) -> None:
    with pytest.raises(OSError, match=why):
        await _asked(said)


@pytest.mark.parametrize("said", [b"", bytes(pack_message(REFUSED))])
async def test_a_node_that_hangs_up_without_reading_the_question_is_named(said: bytes) -> None:
    """The kernel then says that the connection was reset, which names no node."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    asking = Asking(trio.socket.from_stdlib_socket(mine), "n2", "n1")

    async def hangs_up() -> None:
        await trio.lowlevel.wait_readable(theirs)
        theirs.sendall(said)
        theirs.close()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hangs_up)
            with pytest.raises(OSError, match="node n2"):
                await asking.ask(m.Select(id=0, verb="list"))
    finally:
        asking.close()


async def test_an_error_about_the_request_is_its_answer() -> None:
    assert await _asked(bytes(pack_message(BUSY))) == BUSY


class Busy:
    """In place of `Fleet`: its node refuses to list, and stops what it is asked to stop once it
    has refused twice."""

    enabled, node = True, "n1"

    def __init__(self) -> None:
        self.pace, self.refused = Pace(), 0
        self.twice = trio.Event()

    async def pass_on(self, _node: str, request: m.Request, _within: float, **_: bool) -> m.Reply:
        if isinstance(request, m.Stop):
            await self.twice.wait()
            return m.Stopped(id=0, stopped=["a1"], survivors=[], elapsed_s=0.0)
        self.refused += 1
        if self.refused == 2:
            self.twice.set()
        return BUSY


async def test_a_node_that_refuses_other_questions_lives(autojump_clock: MockClock) -> None:
    began = autojump_clock.current_time()
    nodes = Nodes(cast("Fleet", Busy()), cast("Any", Values()))
    stopped = await nodes.ask_living("n2", m.Stop(id=0, runs=["a1"]), m.Stopped, 75.0)
    assert stopped.stopped == ["a1"]
    assert autojump_clock.current_time() - began < 75.0


async def test_a_relayed_question_that_is_not_known_here_is_refused() -> None:
    nodes = Nodes(cast("Fleet", Busy()), cast("Any", Values()))
    with pytest.raises(RequestError):
        await nodes.relay(Relay(id=0, asks={"n2": b"no message"}, within=1.0))


class Slow(Fleet):
    """A node's ways to others, as far as questions need them: the test answers."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.node, self.pace, self._nursery = "n1", Pace(), nursery
        self._late, self._ways, self.kept = set(), {}, {}
        self.timers = self._timers = Timers(failed=print)
        self.opened = 0

    def way(self, _node: str) -> socket.socket:
        """See `Fleet`."""
        self.opened += 1
        mine, self.theirs = socket.socketpair()
        mine.setblocking(False)
        return mine


async def test_an_answer_that_comes_too_late_tells_how_slow_its_node_is() -> None:
    async with trio.open_nursery() as nursery:
        fleet = Slow(nursery)
        fleet.pace.answered("n2", 0.001)
        with pytest.raises(OSError, match="does not answer"):
            await fleet.pass_on("n2", m.Select(id=0, verb="list"), 0.6, brief=True)
        before = fleet.pace.patience("n2")
        with fleet.theirs as theirs:
            theirs.sendall(pack_message(m.Selected(id=1, runs=[])))
    assert fleet.pace.patience("n2") > before


@pytest.mark.parametrize(("kept", "opened"), [(None, 3), (100.0, 1)])
async def test_a_connection_to_the_keeper_stays_open(
    autojump_clock: MockClock, kept: float | None, opened: int
) -> None:
    began = autojump_clock.current_time()
    async with trio.open_nursery() as nursery:
        fleet = Slow(nursery)
        nursery.start_soon(fleet.timers.serve)
        fleet.kept = {"n2": kept} if kept is not None else {}
        for number in range(1, 4):
            nursery.start_soon(fleet.pass_on, "n2", ShareSubscriptions(id=0))
            await trio.testing.wait_all_tasks_blocked()
            asked = 1 if kept is None else number
            with fleet.theirs if kept is None else nullcontext():
                fleet.theirs.sendall(pack_message(SharedSubscriptions(id=asked)))
            await trio.sleep(60.0)
        fleet.theirs.close()
        await trio.sleep(60.0)
        nursery.cancel_scope.cancel()
    assert fleet.opened == opened
    assert autojump_clock.current_time() - began >= 240.0


def test_a_node_that_is_late_has_longer_and_one_that_is_silent_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("sfad.features.fleet.pace.time", SimpleNamespace(monotonic=lambda: now))
    pace = Pace()
    assert pace.patience("n2") == UNKNOWN
    pace.missed("n2")
    pace.answered("n2", 2.5)
    assert pace.patience("n2") == 2.5 + LONGER
    pace.missed("n2")
    assert pace.patience("n2") == HARDLY
    now += BURST
    assert pace.patience("n2") == OWED
    pace.answered("n2", 0.001)
    assert LEAST < pace.patience("n2") < 2.5 + LONGER
    for _ in range(20):
        pace.answered("n2", 0.001)
    assert pace.patience("n2") == UNKNOWN
    now += LATELY
    assert LEAST < pace.patience("n2") < UNKNOWN
