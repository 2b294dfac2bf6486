"""Calls of a live run that the ledger's file may not have yet."""

from collections.abc import Iterator

from msgspec.structs import replace

from ..protocol.types import CallInfo

KEPT = 100
"""More of them wait only while the disk is full. Each is saved with the run whenever that changes."""

ROWS_A_MINUTE = 10
"""Rows that a run's calls get that were refused or withdrawn; further ones are counted in the last one's row. An agent that asks
again and again must not fill the disk."""

_MINUTE = 60.0


class UnrecordedCalls:
    def __init__(self) -> None:
        self._calls: dict[tuple[float, int], CallInfo] = {}
        self._began = -_MINUTE
        self._rows = 0
        self._last: CallInfo | None = None
        """The last one that was not made."""

    def __iter__(self) -> Iterator[CallInfo]:
        return iter(self._calls.values())

    def add(self, call: CallInfo) -> None:
        """Keep a call until its row is in the file. Another one with its key replaces it."""
        self._calls[call.time.timestamp(), call.number] = call
        if len(self._calls) > KEPT:
            del self._calls[next(iter(self._calls))]

    def add_not_made(self, call: CallInfo, now: float) -> CallInfo:
        """Keep a call that was refused or withdrawn at `now`, in seconds. Return what to record."""
        if now - self._began >= _MINUTE:
            self._began, self._rows = now, 0
        self._rows += 1
        if self._rows > ROWS_A_MINUTE and self._last is not None:
            call = replace(self._last, more=self._last.more + 1)
        self._last = call
        self.add(call)
        return call

    def recorded(self, time: float, number: int) -> None:
        self._calls.pop((time, number), None)
