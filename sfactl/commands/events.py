"""Print events, and follow them.

Without an option: the last 50. With --since, all from that event or time on. Each line has the time, the event's number, its type,
the run and a message. With -f, each further event is printed once the ledger has it, until Ctrl-C. A daemon that goes away, or is
not there yet, is waited for; nothing is missed and nothing comes twice. To resume later, give the last number to --since.

With --json, one object for each event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sfad.protocol.encoding import to_json
from sfad.protocol.event_types import EVENT_TYPES, unknown_pattern
from sfad.protocol.requests.following import EventPush
from sfad.protocol.requests.records import EventPage, Events
from sfad.protocol.types import SEVERITIES, ErrorCode, Event
from sfad.protocol.units import MOST_WHOLE

from .. import connection, history, output
from ..connection import ABSENT, AGAIN, Client, ConnectionLost, DaemonError, Unreachable, check
from ..exits import ExitCode, UsageError
from ..options import COMMON, FLEET, Option, Parameter, whole
from .list import moment

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    FLEET,
    Option(("--follow", "-f"), "follow_", "Print further events until Ctrl-C"),
    Option(
        ("--since",),
        "since",
        "Events after this number (4711), or since then: 12h (ago), 22:00, yesterday, 2026-01-31T22:00",
        "SEQ|TIME",
    ),
    Option(("--tail", "-n"), "tail", "At most the last N events (default without --since: 50)", "N"),
    Option(("--run",), "run", "Only events of this run and its descendants", "RUN", many=True, complete="run"),
    Option(("--type",), "type_", "Only these types; * matches any text: 'alert_*'", "TYPE", many=True),
    Option(("--all", "-a"), "all_", "Also milestones: what runs write about their progress (also: --type run_progress)"),
    Option(("--severity",), "severity", "Only events of at least this severity: low, medium, high", "SEVERITY"),
)

LAST = 50
PAGE = 1000
MAX_AGAIN = 20
"""Times in a row that a request is sent again which the daemon could not answer, because it was executing itself again."""


def main(
    *,
    follow_: bool = False,
    since: str | None = None,
    tail: str | None = None,
    run: Sequence[str] = (),
    type_: Sequence[str] = (),
    severity: str = "low",
    all_: bool = False,
    socket: str | None = None,
    json: bool = False,
    tell: Callable[[str], None] | None = None,
    node: str | None = None,
) -> int:
    """`tell`: is given each line instead of stdout, with the name of the `node`."""
    if severity not in SEVERITIES:
        raise UsageError(f"--severity: unknown severity {severity!r}; choose from: {', '.join(SEVERITIES)}")
    if (unknown := unknown_pattern(type_)) is not None:
        raise UsageError(f"--type: {unknown!r} matches no type of event; choose from: {', '.join(EVENT_TYPES)}")
    wanted = Events(id=0, runs=list(run), types=list(type_), severity=severity, follow=follow_, rows=PAGE, milestones=all_)
    if since is not None and tail is not None:
        raise UsageError("--since gives all events from there on, and --tail the last ones: leave one out")
    if since is None:
        wanted.rows = LAST if tail is None else whole("--tail", tail, 1, PAGE)
    elif since.isascii() and since.isdecimal():
        wanted.after = whole("--since", since, 0, MOST_WHOLE)
    else:
        wanted.after, wanted.since = 0, _moment(since)
    found, own = False, output.own_user()
    # without a daemon there is a history, but nothing to follow
    with _connect_when_there(socket) if follow_ else history.connect(socket) as client:
        for event in _Events(client, wanted):
            found = True
            if tell is not None and json:
                tell(f'{{"node":{to_json(node).decode()},{to_json(event).decode()[1:]}')
            elif tell is not None:
                tell(f"{node}  {_line(event, own)}")
            elif json:
                output.print_json(event)
            else:
                print(_line(event, own), flush=follow_)
    if not found:
        output.note("no event matches")
    return ExitCode.DONE


def _connect_when_there(socket: str | None) -> Client:
    said = False
    while True:
        try:
            return connection.connect(socket)
        except Unreachable as error:
            if error.kind not in (*ABSENT, "gone"):  # it may also be starting or stopping
                raise
            if not said:
                output.note(f"sfactl: {error.message}; waiting for it")
                said = True
        time.sleep(AGAIN)


def _moment(text: str) -> float:
    try:
        return moment(text)
    except UsageError as error:
        raise UsageError(f"{error.message}, nor the number of an event (4711)") from None


def _line(event: Event, own: str) -> str:
    """Return an event as people read it. `own`: the user who reads it."""
    time_ = output.local(event.time) if event.time else "-"
    severity = "" if event.severity == SEVERITIES[0] else f" [{event.severity}]"
    whose = f" of {output.plain(event.user)}" if event.user not in (None, own) else ""
    run = f" {event.run_id} ({output.plain(event.agent_name or '-')}{whose})" if event.run_id else ""
    message = f": {output.plain(event.message)}" if event.message else ""
    return f"{time_} #{event.seq} {output.plain(event.type)}{severity}{run}{message}"


@dataclass
class _Events:
    """The events that match, each once, across restarts of the daemon."""

    client: Client
    wanted: Events
    failures: int = 0

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                self.client.send(self.wanted)
                yield from self._answered()
                return
            except ConnectionLost as lost:
                advice = f"resume with --since {self.wanted.after}" if self.wanted.after is not None else "try again later"
                if not self.wanted.follow:
                    self.client.reconnect(advice)
                    continue
                output.note(f"sfactl: {lost.message}; waiting for it")
                self.client.reconnect(advice, patience=math.inf)
                output.note("sfactl: the daemon is back")
            except DaemonError as error:
                self.failures += 1
                if error.error is not ErrorCode.UNAVAILABLE or self.failures > MAX_AGAIN:
                    raise
                time.sleep(AGAIN)

    def _answered(self) -> Iterator[Event]:
        """Yield the events of one request. Return after the last page; if it follows, at the end of the connection only."""
        while True:
            for answer in self.client.arrived():
                check(answer.reply)
                self.failures = 0
                match answer.reply:
                    case EventPush(event=event):
                        self._reached(event.number)
                        yield event
                    case EventPage(events=events, reached=reached, more=more):
                        yield from events
                        self._reached(reached)
                        if more:
                            self.client.send(self.wanted)
                        elif not self.wanted.follow:
                            return
                    case _:
                        raise Unreachable(self.client.path, "gone", f"it answered {type(answer.reply).__name__}")

    def _reached(self, number: int) -> None:
        self.wanted = replace(self.wanted, after=number, rows=PAGE)
