"""Asks the keeper of the fleet what this node may spend of budgets, regularly, and at once when
something lacks money. Tells it what features share, and hears what other nodes know."""

from contextlib import suppress

import trio

from ...core import commands as c
from ...core import events as e
from ...core.state.budgets import to_usd
from ...daemon.loop.seam import Heart
from ...host.clock import wall_clock
from ...protocol.messages import Allowances, Error
from ...protocol.requests.allowances import Allowance
from .drawing import Drawing
from .feature import FleetConfig
from .messages import SharedSubscriptions, ShareSubscriptions
from .node import Fleet

AGAIN, AGAIN_MAX = 0.2, 10.0
"""Seconds until a keeper that has not answered is asked again: doubled each time."""
SHARE_AFTER = 2.0
"""Seconds between two times that this is shared: each reply to a model call changes
something."""


class KeeperRequests:
    def __init__(self, config: FleetConfig, fleet: Fleet, heart: Heart) -> None:
        self._interval = config.lease
        self._budgets = heart.budgets
        self._machine = heart.machine
        self._fleet = fleet
        self._feed = heart.feed
        self._log = heart.resources.log
        self._parts = heart.parts
        self._rests = False
        self._drawing = Drawing(fleet.node)
        self._lacking, self._shares_changed, self._known = (
            trio.Event(),
            trio.Event(),
            trio.Event(),
        )
        self.node: str | None = None
        """The keeper."""
        self.trouble: str | None = None
        """Why it has not answered."""
        if fleet.enabled:
            self._know(config.keeper or self._budgets.charges.keeper)

    def _know(self, keeper: str | None) -> None:
        self.node = keeper
        if keeper is not None:
            self._known.set()
        self._budgets.keeper = None if keeper == self._fleet.node else keeper or ""

    def draw(self, command: c.Draw) -> None:
        """Ask for more of a budget now."""
        key = (command.scope, command.name)
        self._drawing.needs[key] = max(command.nanos, self._drawing.needs.get(key, 0))
        self._lacking.set()
        if self._rests:
            self._refuse()
        elif self.node is None:
            why = "it is not known yet which node keeps the budgets (sfactl fleet status)"
            self._feed(e.AllowancesKnown(trio.current_time(), (), waits=why))

    async def serve(self) -> None:
        """Ask whenever something lacks, and regularly, until cancelled."""
        if not self._fleet.enabled:
            await trio.sleep_forever()
        await self._find_keeper()
        if self.node == self._fleet.node:
            await trio.sleep_forever()
        regular_at = trio.current_time()
        while True:
            with trio.move_on_at(regular_at):
                await self._lacking.wait()
            self._lacking, pause = trio.Event(), AGAIN
            if trio.current_time() >= regular_at:
                self._give_back()
            while not await self._ask():
                await trio.sleep(pause)
                pause = min(2 * pause, AGAIN_MAX)
            regular_at = trio.current_time() + self._interval

    async def serve_shares(self) -> None:
        """Share what features share whenever that changes, and regularly, until cancelled."""
        await self._known.wait()
        if self.node == self._fleet.node:
            await trio.sleep_forever()
        while True:
            with trio.move_on_after(self._interval):
                await self._shares_changed.wait()
            self._shares_changed = trio.Event()
            if (known := self._parts().shared()) or len(self._machine.tree):
                with suppress(OSError):  # the next time tells the same, or newer
                    answer = await self._fleet.pass_on(
                        self.node or "", ShareSubscriptions(id=1, plans=known)
                    )
                    self._parts().heard(
                        answer.plans if isinstance(answer, SharedSubscriptions) else ()
                    )
            await trio.sleep(SHARE_AFTER)

    def shares_changed(self) -> None:
        self._shares_changed.set()

    async def _find_keeper(self) -> None:
        """Wait until it is known who keeps the budgets: the daemon of the cluster's head, unless
        the config names another."""
        while self.node is None:
            await self._fleet.connected.wait()
            head = await self._head()
            if head is None:
                await trio.sleep(AGAIN_MAX)
                continue
            self._budgets.charges.save_keeper(head)
            self._know(head)
            self._budgets.look()

    async def _head(self) -> str | None:
        with suppress(OSError):
            return next((node.name for node in await self._fleet.nodes() if node.head), None)
        return None

    def _give_back(self) -> None:
        returned = [
            Allowance(scope=budget.scope, name=budget.name, begins=budget.begins, usd=to_usd(kept))
            for budget, kept in self._drawing.returned(self._budgets.known)
        ]
        if returned:
            self._feed(e.AllowancesKnown(trio.current_time(), returned))

    async def _ask(self) -> bool:
        """Ask the keeper, and take its answer. Return whether it has given one."""
        budgets = list(self._budgets.known)
        if not budgets:
            return True
        assert self.node is not None
        try:
            answer = await self._fleet.pass_on(
                self.node, self._drawing.request(budgets, wall_clock().timestamp())
            )
        except OSError as error:
            return self._unanswered(
                f"node {self.node}, which keeps the budgets, does not answer: {error}"
            )
        if isinstance(answer, Error):
            return self._unanswered(f"node {self.node}: {answer.message}")
        assert isinstance(answer, Allowances)
        self.trouble = None
        known = self._drawing.understood(answer)
        self._feed(e.AllowancesKnown(trio.current_time(), known))
        return bool(known) and all(each.number for each in known)

    def rest(self) -> None:
        """Refuse from now on what waits for the keeper: the next program would not know of it."""
        self._rests = True
        if self._fleet.enabled:
            self._refuse()

    def _refuse(self) -> None:
        why = "the daemon is being renewed; try again"
        self._feed(e.AllowancesKnown(trio.current_time(), (), waits=why))

    def go_on(self) -> None:
        self._rests = False

    def _unanswered(self, why: str) -> bool:
        if self.trouble is None:
            self._log.warning(why)
        self.trouble = why
        self._feed(e.AllowancesKnown(trio.current_time(), (), waits=why))
        return False
