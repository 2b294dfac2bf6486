"""Asks the keeper of the fleet's budgets what this node may spend: regularly, and at once when something lacks money."""

from collections.abc import Callable

import trio

from ...config import FleetConfig
from ...core import commands as c
from ...core import events as e
from ...core.state.allowances import Drawing
from ...core.state.budgets import to_usd
from ...durable.budgets import BudgetKeeper
from ...host.clock import wall_clock
from ...host.log import Log
from ...protocol.messages import Allowances, Error
from ...protocol.requests.fleet import Allowance
from ..loop.fleet import Fleet, NotConnected

AGAIN, AGAIN_MAX = 0.2, 10.0
"""Seconds until a keeper that has not answered is asked again: doubled each time."""


class AllowanceRequests:
    def __init__(self, config: FleetConfig, budgets: BudgetKeeper, fleet: Fleet, feed: Callable[[e.Event], None], log: Log) -> None:
        self._interval = config.lease
        self._budgets = budgets
        self._fleet = fleet
        self._feed = feed
        self._log = log
        self._drawing = Drawing(fleet.node)
        self._lacking = trio.Event()
        self.keeper: str | None = None
        """The node that keeps the budgets."""
        self.trouble: str | None = None
        """Why it has not answered."""
        if fleet.enabled:
            self._know(config.keeper or budgets.charges.keeper)

    def _know(self, keeper: str | None) -> None:
        self.keeper = keeper
        self._budgets.keeper = None if keeper == self._fleet.node else keeper or ""

    def draw(self, command: c.Draw) -> None:
        """Ask for more of a budget now."""
        key = (command.scope, command.name)
        self._drawing.needs[key] = max(command.nanos, self._drawing.needs.get(key, 0))
        self._lacking.set()

    async def serve(self) -> None:
        """Ask whenever something lacks, and regularly, until cancelled."""
        if not self._fleet.enabled:
            await trio.sleep_forever()
        await self._find_keeper()
        if self.keeper == self._fleet.node:
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

    async def _find_keeper(self) -> None:
        """Wait until it is known who keeps the budgets: the daemon of the cluster's head, unless the config names another."""
        while self.keeper is None:
            await self._fleet.connected.wait()
            head = await self._head()
            if head is None:
                await trio.sleep(AGAIN_MAX)
                continue
            self._budgets.charges.save_keeper(head)
            self._know(head)
            self._budgets.look()

    async def _head(self) -> str | None:
        found: list[str] = []
        answered = trio.Event()

        def told(told: object) -> None:
            found.extend(node.name for node in getattr(told, "nodes", ()) if node.head)
            answered.set()

        try:
            self._fleet.ask_nodes(told)
        except NotConnected:
            return None
        await answered.wait()
        return found[0] if found else None

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
        assert self.keeper is not None
        try:
            answer = await self._fleet.pass_on(self.keeper, self._drawing.request(budgets, wall_clock().timestamp()))
        except OSError as error:
            return self._unanswered(f"node {self.keeper}, which keeps the budgets, does not answer: {error}")
        if isinstance(answer, Error):
            return self._unanswered(f"node {self.keeper}: {answer.message}")
        assert isinstance(answer, Allowances)
        self.trouble = None
        known = self._drawing.understood(answer)
        self._feed(e.AllowancesKnown(trio.current_time(), known))
        return bool(known)

    def _unanswered(self, why: str) -> bool:
        if self.trouble is None:
            self._log.warning(why)
        self.trouble = why
        self._feed(e.AllowancesKnown(trio.current_time(), (), waits=why))
        return False
