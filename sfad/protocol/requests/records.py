"""What is kept of runs: results, events and model calls."""

from __future__ import annotations

from ..structs import datetime
from ..types import CallInfo, Event, RunId, Severity
from .base import ALWAYS, Reply, Request


class Result(Request, tag="result"):
    """Return a finished run's final answer, or else its stdout: as it is, or made safe for a language model. Answered by
    `ResultText`."""

    repeats = 1

    run: str
    max_bytes: int = 64 * 1024
    raw: bool = False
    """Always stdout."""
    wrapped: bool = True
    """Made safe for a language model."""


class ResultText(Reply, tag="result"):
    run: RunId
    text: str
    truncated: bool


class Events(Request, tag="events"):
    """Return the oldest `rows` events with a higher number than `after`, or without it the newest ones. Answered by `EventPage`.
    With `follow`, after a page that has no more behind it, each later event comes as `EventPush`, once the ledger has it."""

    repeats = ALWAYS

    after: int | None = None
    rows: int = 50
    runs: list[str] = []
    """Only events of these runs and their descendants."""
    types: list[str] = []
    """Patterns as of a shell: `alert_*`."""
    severity: Severity = "low"
    """The least."""
    since: float | None = None
    follow: bool = False
    milestones: bool = True
    """Also what runs tell of their progress themselves, unless `types` names `run_progress`."""


class EventPage(Reply, tag="events"):
    """`reached`: `after` for the next page, or where the page is the last one, to resume later."""

    events: list[Event]
    reached: int
    more: bool = False


class ListCalls(Request, tag="calls"):
    """Return a page of a run's model calls, in the order of their time. Answered by `CallPage`."""

    repeats = 1

    run: str
    after: datetime | None = None
    """Only those after the call with this time and, of several, this number."""
    after_number: int = 0


class CallPage(Reply, tag="calls"):
    """`more`: there are more after the last one. Calls that wait or are under way are in the last page."""

    run: RunId
    calls: list[CallInfo]
    more: bool = False
    ended: bool = False
    """The run has ended."""
    gateway: bool = False
    """The run uses the gateway."""
