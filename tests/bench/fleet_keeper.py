"""How busy the keeper of a fleet is: `python -m tests.bench.fleet_keeper [NODES] [SECONDS]`.

The keeper is a real daemon. All other nodes are simulated in this process: each asks it, on a
connection of its own, for what a node asks in a minute in which one of its trees starts and ends.
What is printed is the CPU time of the daemon."""

from __future__ import annotations

import socket
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import psutil
import trio
from msgspec.structs import replace

from sfad.features.budgets.messages import AllowanceWanted, AskAllowances
from sfad.features.fleet.messages import AskSlots, ShareSubscriptions, SlotsWanted
from sfad.features.fleet.node import Asking
from sfad.protocol import messages as m
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
    def __init__(self, name: str, daemon: Daemon, midnight: datetime) -> None:
        self._name, self._daemon, self._begins = name, daemon, midnight.isoformat()
        self._number = self._has = 0

    async def _ask(self, request: Any) -> m.Reply:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self._daemon.socket))
        asking = Asking(trio.socket.from_stdlib_socket(sock), "n0", self._name)
        try:
            reply = await asking.ask(request)
        finally:
            asking.close()
        assert not isinstance(reply, m.Error), reply
        return reply

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

    async def live(self, after: float) -> None:
        """Ask for what a node asks in each minute."""
        await trio.sleep(after)
        allowance = AllowanceWanted(
            scope="user", name="ann", begins=self._begins, usd=0.5, charged_usd=0.25
        )
        ask = AskAllowances(id=1, node=self._name, number=1, wanted=[allowance])
        while True:
            for needs in (1, 0):
                await self.slots(needs)
                await trio.sleep(MINUTE / 2)
            ask = replace(ask, number=ask.number + 1)
            await self._ask(ask)
            await self._ask(ShareSubscriptions(id=1))


async def simulate(daemon: Daemon, count: int, seconds: float) -> None:
    """Print how busy the keeper of so many nodes is."""
    random, process = Random(1), psutil.Process(daemon.pid)
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    with trio.move_on_after(2 * MINUTE + seconds):
        async with trio.open_nursery() as nursery:
            for number in range(1, count + 1):
                node = Node(f"n{number}", daemon, midnight)
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
    numbers = [float(word) for word in sys.argv[1:]] + [1000, 45][len(sys.argv) - 1 :]
    with (
        tempfile.TemporaryDirectory(prefix="sfad-keeper-") as directory,
        running(Path(directory), config=CONFIG, executed=True) as daemon,
    ):
        trio.run(simulate, daemon, int(numbers[0]), numbers[1])


if __name__ == "__main__":
    main()
