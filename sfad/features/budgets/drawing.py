"""Asks the keeper of the fleet what this node may spend of budgets, regularly, and at once when
something lacks money."""

import trio

from ...core import events as e
from ...core.state.money import to_usd
from ...daemon.loop.seam import Keeper
from ...host.clock import wall_clock
from ...host.log import Log
from ...protocol.requests.base import Error
from .allowances import Drawing
from .books import BudgetBooks
from .messages import Allowance, Allowances
from .told import AllowancesKnown, Draw

AGAIN, AGAIN_MAX = 0.2, 10.0
"""Seconds until a keeper that has not answered is asked again: doubled each time."""


_RESTS = "the daemon is being renewed; try again"


class KeeperRequests:
    def __init__(self, keeper: Keeper, books: BudgetBooks, feed: e.Feed, log: Log) -> None:
        self._keeper = keeper
        self._books = books
        self._feed = feed
        self._log = log
        self._drawing = Drawing(keeper.here)
        self._lacking = trio.Event()
        self._was_known = keeper.known.is_set()
        self._rests = False

    def draw(self, draw: Draw) -> None:
        """Ask for more of a budget now."""
        key = (draw.scope, draw.name)
        self._drawing.needs[key] = max(draw.nanos, self._drawing.needs.get(key, 0))
        self._lacking.set()
        if self._rests:
            self._refuse(_RESTS)
        elif self._keeper.node is None:
            self._refuse("it is not known yet which node keeps the budgets (sfactl fleet status)")

    async def serve(self) -> None:
        """Ask whenever something lacks, and regularly, until cancelled."""
        keeper = self._keeper
        await keeper.known.wait()
        if not self._was_known:
            self._was_known = True
            self._books.look()
        if keeper.node == keeper.here:
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
            regular_at = trio.current_time() + keeper.interval

    def _give_back(self) -> None:
        returned = [
            Allowance(scope=budget.scope, name=budget.name, begins=budget.begins, usd=to_usd(kept))
            for budget, kept in self._drawing.returned(self._books.known)
        ]
        if returned:
            self._feed(e.Told(trio.current_time(), AllowancesKnown(returned)))

    async def _ask(self) -> bool:
        """Ask the keeper, and take its answer. Return whether it has given one."""
        budgets, node = list(self._books.known), self._keeper.node
        if not budgets:
            return True
        request = self._drawing.request(budgets, wall_clock().timestamp())
        try:
            answer = await self._keeper.ask(request)
        except OSError as error:
            return self._unanswered(
                f"node {node}, which keeps the budgets, does not answer: {error}"
            )
        if isinstance(answer, Error):
            return self._unanswered(f"node {node}: {answer.message}")
        assert isinstance(answer, Allowances)
        self._keeper.trouble = None
        known = self._drawing.understood(answer)
        self._feed(e.Told(trio.current_time(), AllowancesKnown(known)))
        return bool(known) and all(each.number for each in known)

    async def rest(self) -> None:
        """Refuse what waits for the keeper, or would, because the next program would not know of
        it."""
        self._rests = True
        if self._keeper.enabled:
            self._refuse(_RESTS)

    def go_on(self) -> None:
        self._rests = False

    def _unanswered(self, why: str) -> bool:
        if self._keeper.trouble is None:
            self._log.warning(why)
        self._keeper.trouble = why
        self._refuse(why)
        return False

    def _refuse(self, why: str) -> None:
        self._feed(e.Told(trio.current_time(), AllowancesKnown((), waits=why)))
