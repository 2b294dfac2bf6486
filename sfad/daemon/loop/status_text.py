"""The line that `systemctl status` shows: how many runs there are, and what is wrong."""

from collections.abc import Callable
from contextlib import suppress

import trio

from ...host import systemd

INTERVAL = 1.0
"""Seconds between two texts at the least. A thousand runs that start together need only a few."""


class StatusText:
    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._outdated = trio.Event()
        self.is_outdated = False
        """Then `outdated` need not be called: there are three events for each run."""
        self._sent: str | None = None

    def outdated(self) -> None:
        """Have the text written again soon."""
        if not self.is_outdated:
            self.is_outdated = True
            self._outdated.set()

    def tell(self) -> None:
        """Send the text as it is now, if it is new."""
        if (text := self._describe()) != self._sent:
            with suppress(OSError):  # `systemctl status` shows the text before it
                systemd.notify(systemd.status(text))
            self._sent = text

    async def serve(self) -> None:
        """Send each new text, until cancelled. Nothing happens while nothing changes."""
        while True:
            self.tell()
            await trio.sleep(INTERVAL)
            await self._outdated.wait()
            self._outdated, self.is_outdated = trio.Event(), False
