"""What a question to all nodes of a fleet costs: `python -m tests.bench.fleet_answers [NODES]`.

All daemons are simulated in one process, and their messages are encoded and decoded as on a wire,
which takes a few milliseconds each way. So the time of a question is longer than on as many
machines: their work is done one after the other here, and is printed as a part of it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any, ClassVar, cast

import trio
from msgspec.structs import replace

from sfad.features.fleet.answers.names import Names
from sfad.features.fleet.answers.sums import left_of, page_of
from sfad.features.fleet.messages import FleetState, FleetStatus, FleetTold, Relay
from sfad.features.fleet.node import Fleet
from sfad.features.fleet.nodes import Nodes
from sfad.features.fleet.pace import Pace
from sfad.protocol import messages as m
from sfad.protocol.encoding import pack
from sfad.protocol.requests.base import unpack_reply
from sfad.protocol.types import RunInfo, Status
from tests.top.test_table import NOW, info

LIVE, ENDED = 2, 50
"""Runs of each node."""
WAY = 0.002
"""Seconds of one way, at most twice as long."""


class Values:
    """In place of the spool: nothing is known from before."""

    items: ClassVar[dict[str, bytes]] = {}

    def write_soon(self, changes: Any) -> None:
        """Keep nothing."""


class Daemon:
    """One node: the part of `Fleet` that `Nodes` uses, and its runs."""

    enabled = True

    def __init__(self, name: str, net: Net) -> None:
        self.node, self.pace, self._net = name, Pace(), net
        self.nodes = Nodes(cast("Fleet", self), cast("Any", Values()))
        number = len(net.daemons)
        self.runs: list[RunInfo] = [
            info(each + 1, created_at=NOW + timedelta(seconds=60 * each + number))
            for each in range(ENDED + LIVE)
        ]
        self.runs[:ENDED] = [replace(run, status=Status.COMPLETED) for run in self.runs[:ENDED]]

    def ask_nodes(self, then: Any) -> None:
        """Tell of no other nodes: all are known."""
        then(FleetTold(id=0))

    async def pass_on(
        self, node: str, request: m.Request, within: float, *, brief: bool
    ) -> m.Reply:
        """Have a node answer. Raise `OSError`."""
        began = trio.current_time()
        with trio.move_on_after(within):
            reply = await self._net.carry(self.node, node, request)
            if brief:
                self.pace.answered(node, trio.current_time() - began)
            return reply
        raise OSError(f"node {node} does not answer")

    async def answer(self, request: m.Request) -> m.Reply:
        """Do what a daemon does."""
        match request:
            case Relay():
                return await self.nodes.relay(request)
            case FleetStatus():
                return FleetState(id=0, node=self.node, address="", connected=True)
            case m.List():
                ended, live = self.runs[ENDED - request.rows : ENDED], self.runs[ENDED:]
                more = ended[0].id if request.rows < ENDED else None
                return m.RunList(id=0, runs=[*ended, *live], next=more)
        raise AssertionError(request)


class Net:
    def __init__(self, count: int) -> None:
        self.daemons: dict[str, Daemon] = {}
        self.hung: set[str] = set()
        self.received: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._random = Random(1)
        for number in range(count):
            name = f"n{number}"
            self.daemons[name] = Daemon(name, self)
        for daemon in self.daemons.values():
            daemon.nodes.names = list(self.daemons)

    async def carry(self, sender: str, to: str, request: m.Request) -> m.Reply:
        """Carry a request to a node, and its answer back."""
        data = pack(request)
        await trio.sleep(self._random.uniform(WAY, 2 * WAY))
        self.received[to] += 1
        if to in self.hung:
            await trio.sleep_forever()
        answer = pack(await self.daemons[to].answer(m.unpack_request(data)))
        await trio.sleep(self._random.uniform(WAY, 2 * WAY))
        self.bytes[sender] += len(answer)
        return unpack_reply(answer)


async def ask(net: Net, asked: str, request: m.Request, expected: type[Any]) -> dict[str, float]:
    """Ask all nodes, and return what that took."""
    net.received.clear()
    net.bytes.clear()
    began, cpu = time.perf_counter(), time.process_time()
    nodes = net.daemons[asked].nodes
    found, failed = await nodes.each(lambda _: request, expected)
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    own = time.process_time()
    for reply in found.values():
        unpack_reply(pack(reply))
    if expected is m.RunList:
        page = page_of(found, left_of(None, nodes.names), Names(), first=True)
        assert len(page.runs) >= LIVE * len(found)
        assert len({run.id for run in page.runs}) == len(page.runs)
    own = time.process_time() - own
    others = Counter(net.received)
    del others[asked]
    return {
        "answered": len(found),
        "not answered": len(failed),
        "s": round(ended - began, 3),
        "CPU s of all nodes": round(cpu, 3),
        "of these the asker's, at most": round(own, 3),
        "questions of the asker": min(len(found) + len(failed), sum(others.values())),
        "most questions to one node": max(others.values(), default=0),
        "MB to the asker": round(net.bytes[asked] / 1e6, 2),
    }


async def simulate(count: int) -> None:
    """Print what questions cost in a fleet of so many nodes."""
    net = Net(count)
    rows = max(4, 50 // count)
    questions: list[tuple[str, m.Request, type[Any]]] = [
        ("list --fleet, first page", m.List(id=0, rows=rows, queued=20), m.RunList),
        ("fleet nodes", FleetStatus(id=0, here=True), FleetState),
    ]
    for hung in (0, count // 100):
        net.hung = {f"n{number}" for number in range(7, 7 + hung)}
        for words, request, expected in questions:
            for _ in range(2):  # the first time, the nodes' pace is not known
                told = await ask(net, "n0", request, expected)
            print(f"{count} nodes, {hung} hang: {words}: {told}", flush=True)


if __name__ == "__main__":
    for size in [int(word) for word in sys.argv[1:]] or [10, 100, 1000]:
        trio.run(simulate, size)
