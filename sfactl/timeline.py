"""What has happened to a run, from the recorded events."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from sfad.protocol.requests.records import EventPage, Events
from sfad.protocol.types import Event, RunInfo

from . import output
from .connection import Client

PAGE = 1000

_WORDS = {
    "limit_nearing": "near a limit",
    "limit_exceeded": "limit exceeded",
    "run_progress": "progress",
    "run_rejected": "refused",
}


def timeline_of(client: Client, run: RunInfo) -> Iterator[Event]:
    """Yield the events of the run itself, the oldest first. Raises `DaemonError`."""
    after: int | None = 0
    while after is not None:
        page = client.call(Events(id=0, runs=[run.id], after=after, rows=PAGE), EventPage)
        yield from (event for event in page.events if event.run_id == run.id)
        after = page.reached if page.more else None


def moments(run: RunInfo, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each event: when it happened, how long after the run was asked for, and what."""
    for event in events:
        time = event.time if isinstance(event.time, datetime) else run.created_at
        after = output.seconds(max(0.0, (time - run.created_at).total_seconds()))
        what = output.plain(_WORDS.get(event.type, event.type.removeprefix("run_").replace("_", " ")))
        said = f": {output.plain(event.message)}" if event.message else ""
        by = f" (by {output.plain(event.by)})" if event.by and not event.is_milestone and event.by not in event.message else ""
        yield f"{output.local(time)}  {f'+{after}':>8}  {'milestone' if event.is_milestone else what}{said}{by}"
