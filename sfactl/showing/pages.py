"""Long lists of runs, page by page, of which this process holds a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.texts.units import counted
from sfad.protocol.types import RunId, RunInfo

from .. import output
from ..connecting.connection import Client
from ..exits import ExitCode, Quit
from ..options.selection import RunSelection, labels

PAGE = 250
"""Ended runs in one request, about 10 ms of the daemon's time."""
HELD = 1000
"""Runs of a list that are held at once, 5 MiB. A longer list is read in the order in which it is
shown."""


def order(run: RunInfo) -> Any:
    """Return what the runs of a list are sorted by. The ids of several nodes have no order."""
    return run.created_at if "/" in run.id else run.id


Ask = Callable[[List, type[RunList]], RunList]
"""Asks the daemon, as `Client.call` does."""


def every(ask: Ask, wanted: List, after: RunId = "") -> Iterator[list[RunInfo]]:
    """Yield all runs that match and have higher ids than `after`, page by page, the oldest
    first."""
    cursor: RunId | None = after
    while cursor is not None:
        page = ask(replace(wanted, after=cursor, rows=PAGE), RunList)
        if page.runs:
            yield page.runs
        cursor = page.next


QUEUED = 20
"""Queued runs that a person is shown who names no status. The others are counted."""


def tell_queued(more: int) -> None:
    """Tell a person how many queued runs were left out."""
    if more:
        words = counted(more, "more run is", "more runs are")
        output.note(f"sfactl: {words} queued: sfactl list --status queued")


class Newest:
    """The live runs that match, and the newest of the ended ones."""

    def __init__(self, client: Client, wanted: List, most: int) -> None:
        """Read them. `most`: ended runs."""
        self.truncated = False
        """There are more ended ones."""
        self.queued = 0
        """Queued runs that are left out, see `List.queued`."""
        self._client, self._wanted, self._most = client, wanted, most
        self._before: RunId | None = None
        """The newest of the ended runs that are left out."""
        self._live: dict[RunId, RunInfo] = {}
        self._ended: dict[RunId, RunInfo] = {}
        self._read()

    def _read(self) -> None:
        before: RunId | None = None
        seen: set[RunId] = set()
        # of many, only how far they go is learned here
        holds = self._most <= HELD or self._client.fleet is not None
        while True:
            # one run more than needed shows whether there are more
            rows = min(PAGE, self._most - len(seen) + 1)
            wanted = replace(self._wanted, rows=rows, before=before)
            page = self._client.call(wanted, RunList)
            self.queued = self.queued or page.queued
            self._live |= {run.id: run for run in page.runs if not run.status.terminal}
            ended = [run for run in page.runs if run.status.terminal]
            for run in sorted(ended, key=order, reverse=True):
                if run.id not in seen:
                    if len(seen) == self._most:
                        self.truncated, self._before = True, run.id
                        return
                    seen.add(run.id)
                    if holds:
                        self._ended[run.id] = run
            if page.next is None:
                return
            before = page.next

    def pages(self) -> Iterator[list[RunInfo]]:
        """Yield them page by page, the oldest first."""
        if len(self._ended) or self._most <= HELD or self._client.fleet is not None:
            # one that ended meanwhile came a second time, in a later page
            yield sorted((self._live | self._ended).values(), key=order)
            return
        start = self._before or ""
        yield sorted((run for run in self._live.values() if run.id <= start), key=order)
        yield from every(self._client.call, self._wanted, start)


def listed(client: Client, selection: RunSelection) -> Iterator[RunId]:
    """Yield the runs that a selection names, and those that `list` shows for its filters, but no
    refused starts. If there are none, raise `Quit` after a note."""
    wanted = List(id=0, name=selection.name or None, labels=labels(selection.label), limits=False)
    yield from selection.runs
    found = bool(selection.runs)
    for runs in every(client.call, wanted):
        for run in runs:
            if not run.status.rejected:
                found = True
                yield run.id
    if not found:
        output.note("no run matches")
        raise Quit(ExitCode.DONE)
