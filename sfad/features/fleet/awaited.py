"""Runs of other nodes that runs here wait for (`--after NODE/ID`)."""

from collections.abc import Collection

import trio
from msgspec.structs import replace

from ...core import events as e
from ...core.state.run import Run
from ...daemon.loop.seam import Heart
from ...protocol import messages as m
from ...protocol.errors import RequestError, bad_request
from ...protocol.types import After, ErrorCode, Status
from ...start.prepared import Prepared, Surroundings
from .nodes import Nodes

WAIT = 60.0
"""Seconds after which a node is asked again that has a run of which the end is awaited."""
PAUSE, PAUSE_MAX = 0.5, 10.0
"""Seconds until a node that has not answered is asked again: doubled each time."""


class AwaitedRuns:
    def __init__(self, nodes: Nodes, heart: Heart) -> None:
        self._nodes = nodes
        self._machine, self._feed = heart.machine, heart.feed
        self._asked: set[str] = set()
        """The runs whose nodes are being asked, as NODE/ID."""
        self._nursery: trio.Nursery | None = None

    async def check(self, p: Prepared, around: Surroundings) -> None:
        """Look whether the runs of other nodes are there that one is to wait for, and have each
        named by its id. A node that does not answer is asked later. Raise `RequestError`."""
        if (why := self._machine.why_refused(around.peer, "over_fleet")) is not None:
            raise RequestError(ErrorCode.NOT_PERMITTED, why)
        await around.aside()
        await self._nodes.look()
        after = list(p.queueing.after)
        for number, each in enumerate(after):
            node, _, run = each.run.rpartition("/")
            if not each.elsewhere:
                continue
            if node not in self._nodes.names:
                raise bad_request(f"there is no node {node!r}; sfactl fleet nodes lists them")
            try:
                info = (await self._nodes.ask(node, m.Info(id=0, run=run), m.RunReply)).run
            except OSError:
                continue
            after[number] = After(run=f"{node}/{info.id}", ok=each.ok)
        p.queueing = replace(p.queueing, after=tuple(after))

    async def serve(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self.changed(list(self._machine.tree))
            await trio.sleep_forever()

    def changed(self, runs: Collection[Run]) -> None:
        """Ask for the ends of what these runs wait for."""
        for run in runs:
            for after in run.awaits:
                if after.elsewhere and after.run not in self._asked and self._nursery is not None:
                    self._asked.add(after.run)
                    self._nursery.start_soon(self._await_end, after.run)

    async def _await_end(self, run: str) -> None:
        try:
            pause = PAUSE
            while self._is_awaited(run):
                try:
                    if (status := await self._status(run)).terminal:
                        self._feed(e.EndedElsewhere(trio.current_time(), {run: status}))
                        return
                    pause = PAUSE
                except (OSError, RequestError):
                    await trio.sleep(pause)
                    pause = min(2 * pause, PAUSE_MAX)
        finally:
            self._asked.discard(run)

    def _is_awaited(self, run: str) -> bool:
        return any(after.run == run for each in self._machine.tree for after in each.awaits)

    async def _status(self, run: str) -> Status:
        """Return how a run is once it has ended, or after a while. One that its node does not know
        is lost. Raise `OSError`, `RequestError`."""
        node, _, own = run.rpartition("/")
        try:
            wait = m.Wait(id=0, run=own, timeout=WAIT)
            found = await self._nodes.ask_living(node, wait, m.RunReply, WAIT + PAUSE_MAX)
        except RequestError as error:
            if error.code is ErrorCode.NO_SUCH_RUN:
                return Status.LOST
            raise
        return found.run.status
