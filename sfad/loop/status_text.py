"""The line that `systemctl status` shows: how many runs there are, and what is wrong."""

from collections.abc import Callable

import trio

INTERVAL = 1.0
"""Seconds between two texts at the least. A thousand runs that start together need only a few."""


class StatusText:
    def __init__(self, describe: Callable[[], str], send: Callable[[str], None]) -> None:
        self._describe = describe
        self._send = send
        self._outdated = trio.Event()

    def outdated(self) -> None:
        """Have the text written again soon."""
        self._outdated.set()

    async def serve(self) -> None:
        """Send each new text, until cancelled. Nothing happens while nothing changes."""
        sent = None
        while True:
            if (text := self._describe()) != sent:
                self._send(text)
                sent = text
            await trio.sleep(INTERVAL)
            await self._outdated.wait()
            self._outdated = trio.Event()
