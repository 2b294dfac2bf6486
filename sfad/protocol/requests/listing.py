"""Runs as they are shown."""

from __future__ import annotations

from ..types import RunId, RunInfo, Status
from .base import ALWAYS, Reply, Request


class Info(Request, tag="info"):
    """Return one run, with its live processes and memory. Answered by `RunReply`."""

    repeats = 1

    run: str


class List(Request, tag="list"):
    """Return a page of runs: the live ones, and the newest `rows` of the ended ones. Answered by `RunList`."""

    repeats = 1

    status: list[Status] = []
    name: str | list[str] | None = None
    user: str | None = None
    root: str | None = None
    since: float | None = None
    labels: dict[str, str | list[str]] = {}
    rows: int = 50
    live: bool = False
    before: RunId | None = None
    group: str | None = None
    sessions: bool = False
    """Only sessions; in a session, those below it."""
    limits: bool = True
    """Whether rows are whole. Else ended runs have no limits, which are half of a row and bind nothing any more, and what is nil or
    as its default is left out."""


class RunList(Reply, tag="runs"):
    runs: list[RunInfo]
    next: RunId | None = None


class WatchRuns(Request, tag="watch_runs"):
    """Return runs as `List` does, with their processes, memory and cores, and then push those that change. It needs the permission
    for `list`. Answered by `RunList`, then by `RunsPush` with the same id; by `RunList` again where all runs must be read again;
    and by `Error` at the end, if the client does not read."""

    repeats = ALWAYS

    name: str | list[str] | None = None
    user: str | None = None
    root: str | None = None
    labels: dict[str, str | list[str]] = {}
    rows: int = 50


class RunsPush(Reply, tag="runs_changed"):
    """Runs that have changed since they were sent last, or are new."""

    runs: list[RunInfo]
