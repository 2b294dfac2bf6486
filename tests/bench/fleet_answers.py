"""What a question to all nodes of a fleet costs: `python -m tests.bench.fleet_answers [NODES …]`.

First all daemons are simulated in one process, and their messages are encoded and decoded as on a
wire, which takes a few milliseconds each way. So the time of a question is longer than on as many
machines: their work is done one after the other here, and is printed as a part of it.

Then a real daemon and client show the first page of as many nodes, all others of which are behind
the daemon's actor in this process, and answer at once."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, ClassVar, cast

import psutil
import trio
from msgspec.structs import replace

from sfad.features.fleet.answers.names import Names
from sfad.features.fleet.answers.sums import left_of, page_of
from sfad.features.fleet.messages import (
    FleetNode,
    FleetPush,
    FleetState,
    FleetStatus,
    FleetTold,
    Relay,
    Relayed,
)
from sfad.features.fleet.node import Fleet
from sfad.features.fleet.nodes import Nodes
from sfad.features.fleet.pace import Pace
from sfad.features.fleet.ray.link import Link
from sfad.features.fleet.ray.tunnels import DATA, OPEN, Message, Tunnels
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, FrameDecoder, frame, pack
from sfad.protocol.requests.base import unpack_reply
from sfad.protocol.types import RunInfo, Status
from tests.harness import running, wait_until
from tests.paper_fleet import CONFIG
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


def runs_of(number: int) -> list[RunInfo]:
    """Return the runs of a node, the ended ones first."""
    runs = [
        info(each + 1, created_at=NOW + timedelta(seconds=60 * each + number))
        for each in range(ENDED + LIVE)
    ]
    return [replace(run, status=Status.COMPLETED) for run in runs[:ENDED]] + runs[ENDED:]


def page(runs: list[RunInfo], request: m.List) -> m.RunList:
    ended, live = runs[max(ENDED - request.rows, 0) : ENDED], runs[ENDED:]
    more = ended[0].id if request.rows < ENDED else None
    return m.RunList(id=0, runs=[*ended, *live], next=more)


class Daemon:
    """One node: the part of `Fleet` that `Nodes` uses, and its runs."""

    enabled = True

    def __init__(self, name: str, net: Net) -> None:
        self.node, self.pace, self._net = name, Pace(), net
        self.nodes = Nodes(cast("Fleet", self), cast("Any", Values()))
        self.runs = runs_of(len(net.daemons))

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
                return page(self.runs, request)
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


def rows_of(count: int) -> int:
    """Return how many ended runs each of so many nodes is asked for."""
    return max(4, 50 // count)


async def simulate(count: int) -> None:
    """Print what questions cost in a fleet of so many nodes."""
    net = Net(count)
    rows = rows_of(count)
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


# ---- a real daemon and client


class Actor:
    """The actor of a daemon, and all other nodes."""

    def __init__(self, daemon: str, others: list[str]) -> None:
        self._others = others
        rows = rows_of(len(others) + 1)
        self._pages = {
            (name, rows): pack(page(runs_of(int(name[1:])), m.List(id=0, rows=rows)))
            for name in others
        }
        self._decoders: dict[str, FrameDecoder] = {}
        self._asked: queue.Queue[FleetPush] = queue.Queue()
        self._tunnels = Tunnels(daemon, "n0", self._call)
        self.link = Link("n0", daemon, self._way, self._asked.put, lambda: None)
        for each in (self.link.serve, self._serve):
            threading.Thread(target=each, daemon=True).start()

    def _way(self, push: FleetPush, descriptor: int) -> None:
        self._tunnels.open(push.node, socket.socket(fileno=descriptor))

    def _serve(self) -> None:
        while True:
            push = self._asked.get()
            nodes = [FleetNode(name=name, alive=True) for name in ["n0", *self._others]]
            self.link.send(FleetTold(id=0, number=push.number, nodes=nodes))

    def _call(
        self, node: str, messages: list[Message], then: Callable[[list[str] | None], None]
    ) -> None:
        answers: list[Message] = []
        for name, kind, data in messages:
            if kind == OPEN:
                self._decoders[name] = FrameDecoder(MAX_REQUEST)
            elif kind == DATA:
                bodies = self._decoders[name].feed(data)
                answers += [(name, DATA, frame(self._answer(node, body))) for body in bodies]
        then([])
        self._tunnels.deliver(node, answers)

    def _answer(self, node: str, body: bytes) -> bytes:
        match request := m.unpack_request(body):
            case Relay():
                answers = {
                    name: self._page(name, m.unpack_request(asked))
                    for name, asked in request.asks.items()
                }
                return pack(Relayed(id=request.id, answers=answers))
            case m.List():
                return pack(replace(page(runs_of(int(node[1:])), request), id=request.id))
        return pack(m.Welcome(id=request.id, version=1, daemon="", pid=1, state_dir=""))

    def _page(self, node: str, request: Any) -> bytes:
        key = node, request.rows
        if key not in self._pages:
            self._pages[key] = pack(page(runs_of(int(node[1:])), request))
        return self._pages[key]


def show(count: int) -> None:
    """Print what the first page of so many nodes costs a real daemon and client."""
    with tempfile.TemporaryDirectory(prefix="sfad-asker-") as directory:
        config = CONFIG.format(name="n0", lease=60, more="")
        with running(Path(directory), config=config, executed=True) as daemon:
            actor = Actor(str(daemon.socket), [f"n{number}" for number in range(1, count)])
            wait_until(lambda: actor.link.connected, "the actor is connected")
            process = psutil.Process(daemon.pid)
            words = [str(Path(sys.executable).with_name("sfactl")), "list", "--fleet"]
            for words_of in ("the first time", "again", "again"):
                before, began = process.cpu_times(), time.perf_counter()
                client = subprocess.Popen(
                    [*words, "--socket", str(daemon.socket)], stdout=subprocess.PIPE
                )
                assert client.stdout is not None
                shown = client.stdout.read()
                _, code, used = os.wait4(client.pid, 0)
                took, after = time.perf_counter() - began, process.cpu_times()
                cpu = after.user + after.system - before.user - before.system
                print(
                    f"{count} nodes, a real daemon and client, {words_of}: "
                    f"{len(shown.splitlines()) - 1} rows after {took:.2f} s, "
                    f"exit code {os.waitstatus_to_exitcode(code)}; CPU of the daemon "
                    f"{cpu:.2f} s, of the client {used.ru_utime + used.ru_stime:.2f} s",
                    flush=True,
                )
                client.returncode = 0


if __name__ == "__main__":
    for size in [int(word) for word in sys.argv[1:]] or [10, 100, 1000]:
        trio.run(simulate, size)
        show(size)
