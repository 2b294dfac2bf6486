"""Runs as they are shown."""

from __future__ import annotations

from ..types import RunId, RunInfo, Status
from .base import ALWAYS, Reply, Request


class Info(Request, tag="info"):
    """Return one run, with its live processes and memory. Answered by `RunReply`."""

    repeats = 1

    run: str


class List(Request, tag="list"):
    """Return a page of runs, oldest first: every matching live run, and the newest `rows` matching
    ended ones; or with `after` the oldest `rows` of all. Answered by `RunList`.

    A page that is not the last may hold fewer runs than `rows`, even none. A run that ends between
    two pages may be in both, unless they are read with `after`.
    """

    repeats = 1

    status: list[Status] = []
    """Only these."""
    name: str | list[str] | None = None
    user: str | None = None
    root: str | None = None
    """Only this run and those below it."""
    since: float | None = None
    """Only runs created at or after this Unix time."""
    labels: dict[str, str | list[str]] = {}
    rows: int = 50
    """Ended runs, 0 to 1 000."""
    live: bool = False
    """Fill in `processes` and `memory_bytes`."""
    before: RunId | None = None
    """Only ended runs with lower ids."""
    group: str | None = None
    """Only trees of this group."""
    sessions: bool = False
    """Only sessions; in a session, those below it."""
    run_type: str | list[str] | None = None
    """Only runs of this type, as `type` of `RunInfo`."""
    channel: str | list[str] | None = None
    model: str | list[str] | None = None
    """Only runs whose `model` is this; `*` stands for any characters."""
    limits: bool = True
    """False: ended runs come without limits, and without what is `None` or as its default."""
    after: RunId | None = None
    """Only runs with higher ids, live or ended, the oldest `rows` of them; empty: from the first
    run on."""
    queued: int | None = None
    """Of live runs, at most so many queued ones, those that were queued first."""


class RunList(Reply, tag="runs"):
    runs: list[RunInfo]
    next: RunId | None = None
    """`before`, or `after`, of the next page; `None`: this is the last."""
    queued: int = 0
    """Queued runs that were left out; see `List.queued`."""


class WatchRuns(Request, tag="watch_runs"):
    """Return runs as `List` does, in one page, with `processes`, `memory_bytes`, `cpu_cores` and
    totals of live ones. Then push those that change, at most four times a second. It needs the
    permission for `list`.

    Answered by `RunList`, then by `RunsPush` with the same id, or by a `RunList` that replaces
    everything before it. A client that leaves a push unread gets the next one when it has read it,
    and after 30 s an `Error` (`unavailable`) as the last message.
    """

    repeats = ALWAYS

    name: str | list[str] | None = None
    user: str | None = None
    root: str | None = None
    """Only this run and those below it."""
    labels: dict[str, str | list[str]] = {}
    rows: int = 50
    """Ended runs, 0 to 1 000."""
    queued: int | None = None
    """Of live runs, at most so many queued ones, those that were queued first. When one of them
    starts, the next one is pushed."""


class RunsPush(Reply, tag="runs_changed"):
    """Runs that have changed since they were sent last, or are new."""

    runs: list[RunInfo]
    """Passing time does not count as a change."""
    queued: int = 0
    """Queued runs that are left out now; see `WatchRuns.queued`."""
