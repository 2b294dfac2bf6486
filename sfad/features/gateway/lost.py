"""What calls have used that were under way in a gateway that is not there any more, or in runs that
have ended while no daemon was there."""

from collections.abc import Callable, Iterator, Sequence

import trio

from ...core import events as e
from ...core.state.run import Run
from ...daemon.loop.seam import Heart
from ...protocol.requests.gateway import EndCall
from ...usage.metering import NotedCalls
from .gateways import Gateways
from .program.call_journal import Noted


class LostCalls:
    def __init__(self, heart: Heart, gateways: Callable[[], Gateways]) -> None:
        self._heart = heart
        self._gateways = gateways

    def has_gone(self) -> bool:
        """Return whether the process of a gateway is not there any more."""
        return any(gateway.pid is None for gateway in self._gateways())

    def calls_of(self, ended: Sequence[Run]) -> Iterator[e.CallSettled]:
        """Yield what the model calls have used that runs had under way when their last process
        ended. A gateway that is alive tells it too, but the runs are over by then."""
        under_way = {name: each for run in ended for name, each in run.account.reservations.items()}
        if not under_way:
            return
        for gateway in self._gateways():
            calls, complete = gateway.noted()
            # one that is alive may send a call yet that it has not noted
            noted = NotedCalls(gateway.uid, calls, complete and gateway.pid is None)
            yield from self._heart.metering.use_pricing.settled_noted(
                trio.current_time(), noted, under_way
            )

    def tell_gone(self) -> None:
        """Tell the core what gateways had under way that are not there any more."""
        for gateway in self._gateways():
            if gateway.pid is None:
                self._tell_gone(gateway.uid, gateway.noted())

    async def settle(self, gateway_uid: int | None, noted: Noted) -> None:
        """Charge what a gateway that has ended had under way: that of a user, or the service's
        own."""
        for each in noted.calls:
            await self._price_known(each)
        self._tell_gone(gateway_uid, noted)
        self._heart.call_settled()

    async def _price_known(self, call: EndCall) -> None:
        known, pricing = trio.Event(), self._heart.metering.use_pricing
        pricing.when_known(call.run, call.model, known.set, lambda _: known.set())
        await known.wait()

    def _tell_gone(self, gateway_uid: int | None, noted: Noted) -> None:
        at = trio.current_time()
        under_way = {
            name: each
            for run in self._heart.machine.tree
            for name, each in run.account.reservations.items()
        }
        settled = self._heart.metering.use_pricing.settled_noted(
            at, NotedCalls(gateway_uid, *noted), under_way
        )
        self._heart.feed(e.GatewayGone(at, tuple(settled), gateway_uid))
