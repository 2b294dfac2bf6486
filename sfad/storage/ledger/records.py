"""Reads of the ledger that also see writes which are still queued, and pages of events."""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from ...core.state.access import Scope
from ...protocol.messages import EventPage, Events
from ...protocol.types import SEVERITIES, CallInfo, Event, RunId, RunInfo, Severity
from .database import LedgerError, open_reader
from .queries import CALLS, MAX_EVENTS, Page, Reader, Selection
from .rows import EVENT_COLUMNS, NUMBER_OF, Op, RunExtra, Used, event_of, number_of, used_by

# ---- Synchronous reads of the ledger that also see queued writes
#
# Because of these, a run that has ended never shows as running while the disk is slow or full.


MAX_FOUND = 10
"""Ids that `find` returns at most: enough to show that a prefix is ambiguous."""


class _Unwritten(Struct, frozen=True):
    op: Op
    info: RunInfo
    extra: RunExtra


class Records:
    """The runs in the file as their queued writes will leave them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._unwritten: dict[RunId, _Unwritten] = {}

    @property
    def size_bytes(self) -> int:
        return self._reader.size()

    def root_spawns(self, since: datetime) -> list[tuple[str, datetime]]:
        """Return user and time of each root that was admitted after `since`, by time: what a rate
        of spawns counts."""
        return self._reader.root_spawns(since.timestamp())

    def sessions(self, since: datetime) -> list[tuple[str, datetime]]:
        """Return user and time of each session that was admitted after `since`, by time: what the
        rate of sessions counts."""
        return self._reader.sessions(since.timestamp())

    def get(self, run_id: RunId) -> RunInfo | None:
        """Return a run, or `None` if there is none. An admission that is not committed yet is not
        there."""
        found = self._lookup(run_id)
        return None if found is None else found[0]

    def details(self, run_id: RunId) -> RunExtra | None:
        found = self._lookup(run_id)
        return None if found is None else found[1]

    def request(self, run_id: RunId) -> bytes | None:
        """Return what a run was started with, as `RunExtra.request` has it; `None` if that is not
        known."""
        queued = self._unwritten.get(run_id)
        request = queued.extra.request if queued is not None else None
        return request or self._reader.request(run_id)

    def find(self, prefix: str, scope: Scope) -> list[RunId]:
        found = (run for run in self._unwritten if run.startswith(prefix))
        unwritten = (
            run
            for run in found
            if scope.admits(self.uid(run), () if scope.run is None else self.lineage(run))
        )
        return sorted({*self._reader.find(prefix, scope, MAX_FOUND), *unwritten})[:MAX_FOUND]

    def select(self, page: Page) -> Selection:
        found = self._reader.select(page)
        if not self._unwritten:
            return found
        hidden = set(map(number_of, self._unwritten))
        live = [number for number in found.live if number not in hidden]
        ended = [run for run in found.ended if run[0] not in hidden]
        for info, _ in self.unwritten(page):
            number = number_of(info.id)
            if info.status.terminal:
                ended.append((number, info.descendants))
            else:
                live.append(number)
        return Selection.of(page, live, ended, found.reached)

    def runs(self, numbers: Sequence[int]) -> list[RunInfo]:
        """Return the runs with these numbers, oldest first."""
        wanted = set(numbers)
        queued = {
            number: each.info
            for run, each in self._unwritten.items()
            if (number := number_of(run)) in wanted
        }
        read = {
            number_of(info.id): info
            for info in self._reader.runs([number for number in numbers if number not in queued])
        }
        return [info for _, info in sorted((read | queued).items())]

    def unwritten(self, page: Page) -> Iterator[tuple[RunInfo, RunExtra]]:
        for queued in self._unwritten.values():
            lineage = self.lineage(queued.info.id) if page.needs_lineage else ()
            if page.admits(queued.info, queued.extra.uid, lineage):
                yield queued.info, queued.extra

    def used_below(self, roots: Collection[RunId]) -> dict[RunId, Used]:
        used = {run: use for root in roots for run, use in self._reader.used_below(root).items()}
        for queued in self._unwritten.values():
            if queued.info.root_id in roots and queued.info.parent_id is not None:
                used[queued.info.id] = used_by(queued.info.parent_id, queued.info.usage)
        return used

    def uid(self, run_id: RunId) -> int | None:
        """Return the uid of the run's user; `None` if that, or the run, is unknown."""
        owner = self.owner(run_id)
        return None if owner is None else owner[0]

    def owner(self, run_id: RunId) -> tuple[int | None] | None:
        """Return that uid, alone in a tuple; `None` for an unknown run."""
        queued = self._unwritten.get(run_id)
        return (queued.extra.uid,) if queued is not None else self._reader.owner(run_id)

    def lineage(self, run_id: RunId) -> list[RunId]:
        """Return the run's ancestors and itself, root first; only itself if it is unknown."""
        ids = [run_id]
        while (parent := self._parent(ids[-1])) is not None and parent not in ids:
            ids.append(parent)
        return ids[::-1]

    def has_event(self, run: RunId, what: str) -> bool:
        """Whether one of the newest events in the file is of this run and type."""
        return self._reader.has_event(run, what)

    def charged(self, scope: str, name: str, period_start: datetime) -> float:
        """Return the USD that a budget was charged in that period, without charges that are
        queued."""
        return self._reader.charged(scope, name, period_start.timestamp())

    def plans(self) -> list[str]:
        """Return what is known of each account's windows, as JSON, without what is queued."""
        return self._reader.plans()

    def calls(
        self, run: RunId, after: tuple[float, int] = (0.0, 0), rows: int = CALLS
    ) -> list[CallInfo]:
        """See `Reader.calls`. Without rows that are queued."""
        return self._reader.calls(run, after, rows)

    def count_calls(self, run: RunId, but: Iterable[tuple[float, int]] = ()) -> tuple[int, int]:
        return self._reader.count_calls(run, but)

    def last_refusal(self, run: RunId) -> str | None:
        return self._reader.last_refusal(run)

    def _lookup(self, run_id: RunId) -> tuple[RunInfo, RunExtra] | None:
        queued = self._unwritten.get(run_id)
        return (queued.info, queued.extra) if queued is not None else self._reader.get(run_id)

    def _parent(self, run_id: RunId) -> RunId | None:
        queued = self._unwritten.get(run_id)
        return queued.info.parent_id if queued is not None else self._reader.parent(run_id)

    def close(self) -> None:
        self._reader.close()

    def read_from(self, reader: Reader) -> None:
        self._reader.close()
        self._reader = reader

    def remember(self, op: Op, info: RunInfo, extra: RunExtra) -> None:
        self._unwritten[info.id] = _Unwritten(op, info, extra)

    def forget(self, ops: Iterable[Op]) -> None:
        """These were written, or given up."""
        for op in ops:
            queued = self._unwritten.get(op.run_id) if op.run_id else None
            if queued is not None and queued.op is op:
                del self._unwritten[queued.info.id]


# ---- Events of the ledger, a page at a time, for clients that resume where they stopped


_BELOW = (
    "run_id IN (WITH RECURSIVE below(id) AS (SELECT id FROM runs WHERE number = ? UNION ALL SELECT "
    "child.id FROM below JOIN runs AS child ON child.parent_id = below.id) SELECT id FROM below)"
)


# the runs of a user may be a million, so each event's run is looked up, by its number
_OWN = (
    f"EXISTS (SELECT 1 FROM runs WHERE runs.number = ({NUMBER_OF.format('events.run_id')}) "  # noqa: S608
    "AND runs.id = events.run_id AND runs.uid = ?)"
)


class EventFilter(Struct, frozen=True):
    """Which events a client asks for, and may see."""

    scope: Scope
    runs: tuple[RunId, ...] = ()
    """Only of these runs and their descendants; of all, where there is none."""
    types: tuple[str, ...] = ()
    """Patterns, of which one must match."""
    severity: Severity = "low"
    """The least."""
    since: float | None = None
    """Only events from then on, in Unix seconds."""
    milestones: bool = True
    """Also what runs tell of their progress themselves."""

    def admits(self, event: Event, lineage: Sequence[RunId]) -> bool:
        """Decide about a new event, in the scope, of the run at the end of `lineage`."""
        return (
            (not self.types or any(fnmatchcase(event.type, pattern) for pattern in self.types))
            and SEVERITIES.index(event.severity) >= SEVERITIES.index(self.severity)
            and (not self.runs or any(run in lineage for run in self.runs))
            and (self.milestones or not event.is_milestone)
        )

    def terms(self) -> tuple[str, list[object]]:
        """Return the same as SQL with its values."""
        terms, values = ["1"], list[object]()
        if self.types:
            terms.append(f"({' OR '.join('type GLOB ?' for _ in self.types)})")
            values += self.types
        if self.severity != SEVERITIES[0]:
            wanted = SEVERITIES[SEVERITIES.index(self.severity) :]
            terms.append(f"severity IN ({', '.join('?' * len(wanted))})")
            values += wanted
        if self.since is not None:
            terms.append("time >= ?")
            values.append(self.since)
        if self.scope.run is not None:
            terms.append(_BELOW)
            values.append(number_of(self.scope.run))
        elif self.scope.uid is not None:
            terms.append(_OWN)
            values.append(self.scope.uid)
        if self.runs:
            terms.append(f"({' OR '.join(_BELOW for _ in self.runs)})")
            values += [number_of(run) for run in self.runs]
        if not self.milestones:
            terms.append(
                "NOT (type = 'run_progress' AND json_valid(body) AND json_extract(body, '$.by') "
                "IS NOT NULL)"
            )
        return " AND ".join(terms), values


def event_page(
    connection: sqlite3.Connection, wanted: EventFilter, request: Events, rows: int
) -> EventPage:
    """Return a page of at most `rows` events, the oldest first. At most `MAX_EVENTS` are looked at.
    Raises `sqlite3.Error`."""
    (first, highest), after = _ends(connection), request.after
    if after is not None:
        low = max(after, first - 1)
        high = min(low + MAX_EVENTS, highest)
    else:
        high = min(highest, (request.before or highest + 1) - 1)
        low = max(first - 1, high - MAX_EVENTS)
    where, values = wanted.terms()
    order = "DESC" if after is None else "ASC"
    sql = (
        f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > ? AND seq <= ? AND {where} "  # noqa: S608
        f"ORDER BY seq {order} LIMIT ?"
    )
    # one more than asked for shows whether there are more
    found = [event_of(row) for row in connection.execute(sql, [low, high, *values, rows + 1])]
    events, full = found[:rows], len(found) > rows
    if after is None:
        events.reverse()
        older = events[0].number if full else low + 1 if low >= first else None
        return EventPage(id=request.id, events=events, reached=highest, older=older)
    reached = events[-1].number if full else max(high, after)
    return EventPage(id=request.id, events=events, reached=reached, more=full or high < highest)


def _ends(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the lowest and the highest number of an event; 1 and 0 if there is none."""
    sql = "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)"
    first, highest = connection.execute(sql).fetchone()
    return (first, highest) if isinstance(highest, int) else (1, 0)


def read_event_page(directory: Path, wanted: EventFilter, request: Events, rows: int) -> EventPage:
    """Do `event_page` on a connection of its own, for a thread. Raises `LedgerError`."""
    try:
        with closing(open_reader(directory)) as connection:
            return event_page(connection, wanted, request, rows)
    except sqlite3.Error as error:
        raise LedgerError(f"the events in {directory} cannot be read: {error}") from error
