"""Starts a task again that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

PAUSE = 1.0
"""Seconds until a task that failed starts again. Without a pause, a bug that it meets at once would keep a CPU busy."""


async def keep_serving(serve: Callable[[], Awaitable[None]], failed: Callable[[Exception], object]) -> None:
    """Call `serve` until it returns or is cancelled, and again after each failure, which `failed` is told.

    A bug in one task must not end the others, and all runs with them."""
    while True:
        try:
            return await serve()
        except Exception as error:  # noqa: BLE001 - whatever it is
            failed(error)
        await trio.sleep(PAUSE)
