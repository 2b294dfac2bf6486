"""Requests of other nodes that wait until something happens to runs that they have granted to this
one."""

from collections.abc import Iterable
from typing import Protocol

import trio

from ...core.state.run import Run
from ...host.clock import Timers


class Tending(Protocol):
    @property
    def key(self) -> tuple[str, int]:
        """The same for requests of one connection."""

    @property
    def wait(self) -> float:
        """Seconds."""

    def answer(self, *, whatever: bool) -> bool:
        """Answer, if there is something to tell, or `whatever` there is. Return whether it need not
        wait any more."""


class GrantedRuns:
    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.waiting: dict[tuple[str, int], Tending] = {}

    def tend(self, tending: Tending) -> None:
        """Answer a request, now or later. An earlier one of the same connection is answered now."""
        before = self.waiting.pop(tending.key, None)
        if before is not None:
            before.answer(whatever=True)
        if tending.answer(whatever=tending.wait <= 0):
            self._timers.disarm(tending.key)
            return
        self.waiting[tending.key] = tending
        self._timers.arm(
            tending.key, trio.current_time() + tending.wait, lambda: self._due(tending.key)
        )

    def _due(self, key: tuple[str, int]) -> None:
        if (tending := self.waiting.pop(key, None)) is not None:
            tending.answer(whatever=True)

    def changed(self, runs: Iterable[Run]) -> None:
        """Answer what waits for a change of one of these runs."""
        if self.waiting and any(run.lease is not None for run in runs):
            for key, tending in list(self.waiting.items()):
                if tending.answer(whatever=False):
                    del self.waiting[key]
                    self._timers.disarm(key)
