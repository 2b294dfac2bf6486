"""Tasks that serve for as long as the daemon lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

PAUSE = 1.0
"""Seconds until a task that failed begins again: a bug that it meets at once must not keep a CPU busy."""


async def keep_serving(serve: Callable[[], Awaitable[None]], failed: Callable[[Exception], object]) -> None:
    """Serve until cancelled, again after each failure: a bug in one task must not end the others, and all runs with them."""
    while True:
        try:
            return await serve()
        except Exception as error:  # noqa: BLE001 - whatever it is
            failed(error)
        await trio.sleep(PAUSE)
