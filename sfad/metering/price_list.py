"""Loads the price library when it is needed, and has a run wait for it."""

import math
from collections.abc import Awaitable, Callable, Mapping

import trio

from ..config import Price
from ..protocol.types import Tokens
from .pricing import PriceLibrary, Prices

LOAD_AGAIN, LOAD_AGAIN_MAX = 1.0, 60.0
"""Seconds between two tries to import the price list while the machine is short of something: doubled each time."""

PRICES_WAIT = 10.0
"""Seconds that the end of a run waits at most for the price list, which takes 0.2 s to load on an idle machine."""


class PriceList:
    """`loaded()` is called when more prices may be known; `trouble(message)` when the library cannot be loaded."""

    def __init__(self, own: Mapping[str, Price], *, loaded: Callable[[], None], trouble: Callable[[str], None]) -> None:
        self._loaded = loaded
        self._trouble = trouble
        self._library = PriceLibrary()
        self.current = Prices(own, self._library)
        """The prices of runs that begin now. A run keeps those with which it began."""
        self._loading = False
        self._to_start, self._started = trio.open_memory_channel[Callable[[], Awaitable[None]]](math.inf)

    @property
    def ready(self) -> bool:
        """Whether the library is loaded, or known not to be there."""
        return self._library.ready

    def reconfigure(self, own: Mapping[str, Price]) -> None:
        self.current = Prices(own, self._library)

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            async for task in self._started:
                nursery.start_soon(task)

    def load_soon(self) -> None:
        """Load the library in the background, with as many tries as it takes."""
        if not self.ready and not self._loading:
            self._loading = True
            self._to_start.send_nowait(self._load)

    async def load_for_an_end(self) -> None:
        """Try to load the library, for at most `PRICES_WAIT`. The end of a run does not wait longer."""
        with trio.move_on_after(PRICES_WAIT):
            await self._try()
        self._loaded()

    def when_known(self, prices: Prices, model: str | None, then: Callable[[], None], unsure: Callable[[str], None]) -> None:
        """Call `then` when the price of a model is known, or known to be unknown: now, unless the library must be loaded first.
        Call `unsure` with the reason if the library cannot be loaded now."""

        async def wait() -> None:
            failure = await self._try()
            if failure is None or self.ready:
                then()
            else:
                unsure(failure)

        if model is None or self.ready or prices.cost(model, Tokens()) is not None:
            then()
        else:
            self._to_start.send_nowait(wait)

    async def _load(self) -> None:
        pause = LOAD_AGAIN
        try:
            while await self._try() is not None and not self.ready:
                await trio.sleep(pause)
                pause = min(2 * pause, LOAD_AGAIN_MAX)
        finally:
            self._loading = False
        self._loaded()

    async def _try(self) -> str | None:
        failure = await self._library.load()
        if failure is not None:
            self._trouble(f"{failure}; costs are computed from the config's [prices] alone")
        return failure
