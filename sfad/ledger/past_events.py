"""Events of the ledger, a page at a time, for clients that resume where they stopped."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..core.access import Scope
from ..protocol.messages import EventPage, Events
from ..protocol.types import SEVERITIES, Event, RunId, Severity
from .database import LedgerError, open_reader
from .rows import EVENT_COLUMNS, event_of, number_of

_BELOW = (
    "run_id IN (WITH RECURSIVE below(id) AS (SELECT id FROM runs WHERE number = ? UNION ALL "
    "SELECT child.id FROM below JOIN runs AS child ON child.parent_id = below.id) SELECT id FROM below)"
)


_OWN = "run_id IN (SELECT id FROM runs WHERE uid = ?)"


@dataclass(frozen=True, slots=True)
class EventFilter:
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
            terms.append("NOT (type = 'run_progress' AND json_valid(body) AND json_extract(body, '$.by') IS NOT NULL)")
        return " AND ".join(terms), values


def event_page(connection: sqlite3.Connection, wanted: EventFilter, request: Events, rows: int) -> EventPage:
    """Return a page of at most `rows` events, the oldest first. Raises `sqlite3.Error`."""
    where, values = wanted.terms()
    columns, order = ", ".join(EVENT_COLUMNS), "DESC" if request.after is None else "ASC"
    sql = f"SELECT {columns} FROM events WHERE seq > ? AND {where} ORDER BY seq {order} LIMIT ?"  # noqa: S608
    # one more than asked for shows whether there are more
    found = [event_of(row) for row in connection.execute(sql, [request.after or 0, *values, rows + 1])]
    events = found[:rows]
    if request.after is None:
        events.reverse()
    more = request.after is not None and len(found) > rows
    reached = events[-1].number if events else request.after or 0
    return EventPage(id=request.id, events=events, reached=reached, more=more)


def read_event_page(directory: Path, wanted: EventFilter, request: Events, rows: int) -> EventPage:
    """Do `event_page` on a connection of its own, for a thread. Raises `LedgerError`."""
    try:
        with closing(open_reader(directory)) as connection:
            return event_page(connection, wanted, request, rows)
    except sqlite3.Error as error:
        raise LedgerError(f"the events in {directory} cannot be read: {error}") from error
