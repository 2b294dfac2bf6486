"""How busy the keeper of a fleet is: `python -m tests.bench.fleet_keeper [NODES] [SECONDS]`.

The keeper is a real daemon. All other nodes are simulated in this process: each asks it, on a
connection of its own that stays open, for what a node asks in a minute in which one of its trees
starts and ends. What is printed is the CPU time of the daemon; and for each question its calls,
which the load of the machine does not touch. A first question makes the connection, too."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import psutil
import trio

from sfad.features.budgets.messages import AllowanceWanted, AskAllowances
from sfad.features.fleet.messages import AskSlots, ShareSubscriptions, SlotsWanted
from sfad.features.fleet.node import Asking
from sfad.protocol import messages as m
from tests.bench import ours
from tests.bench.counts import counting, traced, traced_calls
from tests.harness import Daemon, running

CONFIG = """
[fleet]
address = "auto"
node = "n0"
keeper = "n0"
share_quotas = true
[quotas]
trees = 3000
trees_per_user = 3000
[budgets.users.ann]
daily_usd = 1000
"""
MINUTE = 60.0
"""Seconds after which a node asks again, whatever happens: `fleet.lease`."""


class Node:
    def __init__(self, name: str, daemon: Daemon) -> None:
        self._name, self._daemon = name, daemon
        self._number = self._has = 0
        midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        self._allowance = AllowanceWanted(
            scope="user", name="ann", begins=midnight.isoformat(), usd=0.5, charged_usd=0.25
        )
        self._asking: Asking | None = None

    async def _ask(self, request: Any) -> None:
        if self._asking is None:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(self._daemon.socket))
            self._asking = Asking(trio.socket.from_stdlib_socket(sock), "n0", self._name)
        reply = await self._asking.ask(request)
        assert not isinstance(reply, m.Error), reply

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    async def slots(self, needs: int) -> None:
        """Get a slot for a tree, or give it back."""
        self._number += 1
        self._has = min(self._has, needs)
        names = (("quotas.trees", ""), ("quotas.trees_per_user", f"u{self._name}"))
        wanted = [
            SlotsWanted(key=key, user=user, has=self._has, needs=needs - self._has)
            for key, user in names
        ]
        await self._ask(AskSlots(id=1, node=self._name, number=self._number, wanted=wanted))
        self._has = needs

    async def minute(self, tree: float) -> None:
        """Ask for what a node asks in a minute, in which a tree takes so many seconds."""
        for needs in (1, 0):
            await self.slots(needs)
            await trio.sleep(tree)
        wanted = [self._allowance]
        await self._ask(AskAllowances(id=1, node=self._name, number=self._number, wanted=wanted))
        await self._ask(ShareSubscriptions(id=1))

    async def live(self, after: float) -> None:
        await trio.sleep(after)
        while True:
            await self.minute(MINUTE / 2)


ASKED = 4
"""Questions of a minute."""


def ask(nodes: Sequence[Node], minutes: int) -> None:
    """Have nodes ask, one after the other, for what they ask in so many minutes."""

    async def each() -> None:
        for node in nodes:
            for _ in range(minutes):
                await node.minute(0)
            node.close()

    trio.run(each)


def counts(nodes: int = 20, minutes: int = 10) -> dict[str, tuple[float, float]]:
    """Return how many calls the keeper makes for a question, and how many more for the first one of
    a connection."""
    found: dict[str, tuple[float, float]] = {}
    with counting() as (environment, counters), ours.daemon(environment, CONFIG) as daemon:

        def calls() -> Counter[str]:
            return Counter({"Python calls": counters.read()[0]})

        found |= _each(daemon, calls, nodes, minutes)
    if shutil.which("strace") is not None:
        with (
            ours.directory() as place,
            ours.daemon({}, CONFIG) as daemon,
            traced(daemon, place / "log"),
        ):

            def made() -> Counter[str]:
                log = (place / "log").read_text()
                return Counter({"system calls": traced_calls(log)["system calls"]})

            found |= _each(daemon, made, nodes, minutes)
    return found


def _each(
    daemon: Daemon, look: Callable[[], Counter[str]], nodes: int, minutes: int
) -> dict[str, tuple[float, float]]:
    ask([Node("first", daemon)], 1)
    looks = [look()]
    for asked in (1, 1 + minutes):
        ask([Node(f"n{number}", daemon) for number in range(nodes)], asked)
        looks.append(look())
    short, long = looks[1] - looks[0], looks[2] - looks[1]
    found = {}
    for what, count in short.items():
        question = (long[what] - count) / (nodes * minutes * ASKED)
        found[what] = question, count / nodes - ASKED * question
    return found


async def simulate(daemon: Daemon, count: int, seconds: float) -> None:
    """Print how busy the keeper of so many nodes is."""
    random, process = Random(1), psutil.Process(daemon.pid)
    with trio.move_on_after(2 * MINUTE + seconds):
        async with trio.open_nursery() as nursery:
            for number in range(1, count + 1):
                node = Node(f"n{number}", daemon)
                nursery.start_soon(node.live, random.uniform(0, MINUTE / 2))
            await trio.sleep(MINUTE / 2)  # all have begun
            before, threads = process.cpu_times(), process.num_threads()
            await trio.sleep(seconds)
            after = process.cpu_times()
            used = after.user + after.system - before.user - before.system
            print(
                f"{count} nodes: {100 * used / seconds:.1f} % of a core, {threads} threads, "
                f"{process.memory_info().rss >> 20} MiB",
                flush=True,
            )
            nursery.cancel_scope.cancel()


def main() -> None:
    for what, (question, first) in counts().items():
        print(f"{what} for a question: {question:.0f}; more for a first one: {first:.0f}")
    numbers = [float(word) for word in sys.argv[1:]] + [1000, 45][len(sys.argv) - 1 :]
    with (
        tempfile.TemporaryDirectory(prefix="sfad-keeper-") as directory,
        running(Path(directory), config=CONFIG, executed=True) as daemon,
    ):
        trio.run(simulate, daemon, int(numbers[0]), numbers[1])


if __name__ == "__main__":
    main()
