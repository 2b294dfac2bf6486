"""What is kept of runs: results, events and model calls."""

from __future__ import annotations

from datetime import datetime

from ..types import CallInfo, Event, RunId, Severity, Usage
from .base import ALWAYS, Reply, Request


class Result(Request, tag="result"):
    """Return a finished run's final answer, or its stdout if it has no meter or no answer is found.
    Answered by `ResultText`; `wrong_state` if the run has not ended, or its output is missing or
    was replaced by another process."""

    repeats = 1
    answered_there = True

    run: str
    max_bytes: int = 64 * 1024
    """Bytes of the text, and of stdout if that is returned, cut to 1 to 1 048 576. The newest part
    is kept."""
    raw: bool = False
    """Always stdout."""
    wrapped: bool = True
    """Made safe for a language model."""


class ResultText(Reply, tag="result"):
    run: RunId
    text: str
    """With `wrapped`, a `<subagent_result>` block."""
    truncated: bool
    """Older output was cut."""


class Events(Request, tag="events"):
    """Return the oldest `rows` events (at most 1 000) with a higher number than `after`, or without
    it the newest ones. Answered by `EventPage`, which may have fewer, even none, and not be the
    last: a search looks at 100 000 events at once. With `follow`, after a page that is the last,
    each later event comes as `EventPush`. A client that is cut off asks again with the last number
    that it has seen."""

    repeats = ALWAYS

    after: int | None = None
    before: int | None = None
    """Without `after`: only events with lower numbers."""
    cursor: str = ""
    """Of several nodes, in place of `after`: where the last answer has ended."""
    rows: int = 50
    runs: list[str] = []
    """Only events of these runs and their descendants."""
    types: list[str] = []
    """Patterns as of a shell: `limit_*`."""
    severity: Severity = "low"
    """The least."""
    since: float | None = None
    """Unix seconds."""
    follow: bool = False
    milestones: bool = True
    """Also what runs tell of their progress themselves, unless `types` names `run_progress`."""


class EventPage(Reply, tag="events"):
    events: list[Event]
    """The oldest first."""
    reached: int
    """`after` for the next page, or to resume later."""
    more: bool = False
    """There are further pages."""
    older: int | None = None
    """Of a request without `after`: `before` for the page of older events; `None`: there are
    none."""
    cursor: str = ""
    """As `Events.cursor`."""


class ListCalls(Request, tag="calls"):
    """Return a page of the model calls that a run has made through the gateway (docs/gateway.md),
    in the order of their time. To follow them, first send `Watch` with `calls`. Answered by
    `CallPage`. Calls that wait or are under way are in the last page."""

    repeats = 1

    run: str
    after: datetime | None = None
    """Only calls after this time."""
    after_number: int = 0
    """With `after`: of the calls at this very time, only those with a higher number."""


class CallPage(Reply, tag="calls"):
    run: RunId
    calls: list[CallInfo]
    more: bool = False
    """There are more after the last one."""
    ended: bool = False
    """The run has ended."""
    gateway: bool = False
    """The run uses the gateway."""
    usage: Usage | None = None
    """What counts for the run, if another source tells of a higher cost than its calls
    (docs/metering.md)."""


class Transcript(Request, tag="transcript"):
    """Return a run's events and the newest lines of its output, made safe for a language model. It
    needs the permission for `logs`. Answered by `TranscriptText`."""

    repeats = 1

    run: str
    tail: int = 100
    """Lines, 1 to 2 000."""


class TranscriptText(Reply, tag="transcript_text"):
    run: RunId
    text: str
    """A block that marks it as data; at most 64 KiB of lines."""
    truncated: bool
    """Only the newest part is there."""
