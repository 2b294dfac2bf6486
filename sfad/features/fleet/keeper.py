"""Finds out which node is the keeper, and asks it for other features. Tells it what features share,
and hears what other nodes know."""

from contextlib import suppress

import trio

from ...daemon.loop.seam import Heart, Keeper
from ...protocol.errors import unavailable
from ...protocol.requests.base import Reply, Request
from .feature import FleetConfig
from .messages import SharedSubscriptions, ShareSubscriptions
from .node import Fleet

AGAIN_MAX = 10.0
"""Seconds until the cluster's head is asked for again."""
KEPT = 2.5
"""Leases for which the connection to the keeper stays open: each node asks it about once a lease,
and a new connection would cost the keeper ten times as much as the question."""
SHARE_AFTER = 2.0
"""Seconds between two times that this is shared: each reply to a model call changes
something."""

SAVED = "keeper"
"""The key in the spool: the keeper as it was known last."""


class FleetKeeper(Keeper):
    def __init__(self, config: FleetConfig, fleet: Fleet, heart: Heart) -> None:
        super().__init__(heart.parts().alone)
        self.interval = config.lease
        self.enabled = fleet.enabled
        self.here = fleet.node
        self._fleet = fleet
        self._machine = heart.machine
        self._values = heart.resources.spool.values
        self._parts = heart.parts
        self._shares_changed = trio.Event()
        if fleet.enabled:
            saved = self._values.items.get(SAVED, b"").decode() or None
            self._know(config.keeper or saved)

    def _know(self, keeper: str | None) -> None:
        self.node = keeper
        if keeper is not None:
            self._fleet.kept[keeper] = KEPT * self.interval
            self.known.set()

    def check_here(self) -> str:
        if self.node != self.here:
            raise unavailable(
                f"node {self.here} does not keep the budgets of this fleet; "
                f"for it the keeper is {self.node or 'not known yet'}"
            )
        return self.here

    async def ask(self, request: Request) -> Reply:
        return await self._fleet.pass_on(self.node or "", request)

    async def serve(self) -> None:
        """Find out which node it is: that of the cluster's head, unless the config names
        another."""
        while self.enabled and self.node is None:
            await self._fleet.connected.wait()
            head = await self._head()
            if head is None:
                await trio.sleep(AGAIN_MAX)
                continue
            self._values.write_soon({SAVED: head.encode()})
            self._know(head)
        await trio.sleep_forever()

    async def _head(self) -> str | None:
        with suppress(OSError):
            told = await self._fleet.told_by_actor("nodes")
            return next((node.name for node in told.nodes if node.head), None)
        return None

    async def serve_shares(self) -> None:
        """Share what features share whenever that changes, and regularly, until cancelled."""
        await self.known.wait()
        if self.node == self.here:
            await trio.sleep_forever()
        while True:
            with trio.move_on_after(self.interval):
                await self._shares_changed.wait()
            self._shares_changed = trio.Event()
            if (known := self._parts().shared()) or len(self._machine.tree):
                with suppress(OSError):  # the next time tells the same, or newer
                    answer = await self.ask(ShareSubscriptions(id=1, plans=known))
                    self._parts().heard(
                        answer.plans if isinstance(answer, SharedSubscriptions) else ()
                    )
            await trio.sleep(SHARE_AFTER)

    def shares_changed(self) -> None:
        self._shares_changed.set()
