"""Calls in threads, on a machine that may have none left."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NO_THREAD = "can't start new thread"
"""CPython's message, in a `RuntimeError` like many others."""


async def in_thread(call: Callable[[*Ts], T], *args: *Ts, abandon: bool = False, limiter: trio.CapacityLimiter | None = None) -> T:
    """Do `trio.to_thread.run_sync`. Where no thread can be started (`TasksMax`, `ulimit -u`, memory), raise `OSError(EAGAIN)`
    instead of a `RuntimeError`; then nothing was called."""
    try:
        return await trio.to_thread.run_sync(call, *args, abandon_on_cancel=abandon, limiter=limiter)
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        raise OSError(errno.EAGAIN, _NO_THREAD) from error
