"""Clients that wait for the end of a run, or watch its events."""

from collections.abc import Callable
from typing import TypeVar

from ..protocol.types import CallInfo, Event, RunId, RunInfo

Waiter = Callable[[RunInfo], None]
Watcher = Callable[[Event], None]
CallWatcher = Callable[[CallInfo], None]
GiveUp = Callable[[], None]

T = TypeVar("T")


class Subscribers:
    def __init__(self) -> None:
        self._waiters: dict[RunId, set[Waiter]] = {}
        self._watchers: dict[RunId, set[Watcher]] = {}
        self._call_watchers: dict[RunId, set[CallWatcher]] = {}

    def on_end(self, run: RunId, waiter: Waiter) -> GiveUp:
        """Call `waiter` when a run that is not over is. Return how to give up waiting."""
        return _added(self._waiters, run, waiter)

    def watch(self, run: RunId, watcher: Watcher) -> GiveUp:
        """Call `watcher` with each event of a run and of its descendants. Return how to stop it."""
        return _added(self._watchers, run, watcher)

    def watch_calls(self, run: RunId, watcher: CallWatcher) -> GiveUp:
        """Call `watcher` with each call of a run and of its descendants that begins to wait, has ended or is not made. Return how
        to stop it."""
        return _added(self._call_watchers, run, watcher)

    def called(self, call: CallInfo, lineage: tuple[RunId, ...]) -> None:
        """Tell those that watch the calls of a run of `lineage`."""
        for run in lineage if self._call_watchers else ():
            for watcher in list(self._call_watchers.get(run, ())):
                watcher(call)

    def ended(self, info: RunInfo) -> None:
        for waiter in list(self._waiters.pop(info.id, ())):
            waiter(info)

    def happened(self, event: Event, lineage: tuple[RunId, ...]) -> None:
        """Tell those that watch a run of `lineage`."""
        for run in lineage if self._watchers else ():
            for watcher in list(self._watchers.get(run, ())):
                watcher(event)


def _added(table: dict[RunId, set[T]], run: RunId, one: T) -> GiveUp:
    entries = table.setdefault(run, set())
    entries.add(one)

    def forget() -> None:
        entries.discard(one)
        if not entries and table.get(run) is entries:
            del table[run]

    return forget
