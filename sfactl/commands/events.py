import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sfad.protocol.event_types import EVENT_TYPES, unknown_pattern
from sfad.protocol.requests.following import EventPush
from sfad.protocol.requests.records import EventPage, Events
from sfad.protocol.texts.units import MOST_WHOLE, parse_whole
from sfad.protocol.types import SEVERITIES, ErrorCode, Event, Severity

from .. import output
from ..app import OverFleet, app
from ..connecting import connection, history
from ..connecting.connection import (
    ABSENT,
    AGAIN,
    Client,
    ConnectionLost,
    DaemonError,
    Unreachable,
    check,
)
from ..exits import UsageError
from ..options.shared import RUN, Json, Socket, Value, flag, moment, one_of
from ..options.spreading import spread

LAST = 50
PAGE = 1000
MAX_AGAIN = 20
"""Times in a row that a request is sent again which the daemon could not answer, because it was
executing itself again."""


class Since(NamedTuple):
    """Where the events begin: after a number, or at a time (Unix seconds)."""

    after: int
    time: float | None = None


def _since(text: str) -> Since:
    if text.isascii() and text.isdecimal():
        return Since(parse_whole(text, 0, MOST_WHOLE))
    try:
        return Since(0, moment(text))
    except ValueError as error:
        raise ValueError(f"{error}, nor the number of an event (4711)") from None


def _type(text: str) -> str:
    if unknown_pattern([text]) is not None:
        raise ValueError(
            f"{text!r} matches no type of event; choose from: {', '.join(EVENT_TYPES)}"
        )
    return text


class EventOptions(Struct, frozen=True):
    socket: Socket = None
    json: Json = False
    follow_: Annotated[bool, flag("Print further events until Ctrl-C", "--follow", "-f")] = False
    since: Annotated[
        Since | None,
        Value("SEQ|TIME", _since).option(
            "Events after this number (4711), or since then: "
            "12h (ago), 22:00, yesterday, 2026-01-31T22:00"
        ),
    ] = None
    tail: Annotated[
        int | None,
        Value("N", partial(parse_whole, least=1, most=PAGE)).option(
            "At most the last N events (default without --since: 50)", "--tail", "-n"
        ),
    ] = None
    run: Annotated[list[str], RUN.option("Only events of this run and its descendants")] = []
    type_: Annotated[
        list[str],
        Value("TYPE", _type).option("Only these types; * matches any text: 'alert_*'", "--type"),
    ] = []
    all_: Annotated[
        bool,
        flag(
            "Also milestones: what runs write about their progress (also: --type run_progress)",
            "--all",
            "-a",
        ),
    ] = False
    severity: Annotated[
        Severity,
        Value("SEVERITY", one_of(SEVERITIES, "severity")).option(
            "Only events of at least this severity: low, medium, high"
        ),
    ] = "low"

    def request(self) -> Events:
        """Raise `UsageError`."""
        if self.since is not None and self.tail is not None:
            raise UsageError(
                "--since gives all events from there on, and --tail the last ones: leave one out"
            )
        wanted = Events(
            id=0,
            runs=list(self.run),
            types=list(self.type_),
            severity=self.severity,
            follow=self.follow_,
            rows=PAGE if self.since is not None else self.tail or LAST,
            milestones=self.all_,
        )
        if self.since is not None:
            wanted.after, wanted.since = self.since
        return wanted


@app.command(cls=OverFleet)
@spread(EventOptions)
def events(wanted: EventOptions) -> None:
    """Print events, and follow them.

    Without an option: the last 50. With --since, all from that event or time on. Each line has
    the time, the event's number, its type, the run and a message. With -f, each further event
    is printed once the ledger has it, until Ctrl-C. A daemon that goes away, or is not there
    yet, is waited for; nothing is missed and nothing comes twice. To resume later, give the
    last number to --since.

    With --json, one object for each event.
    """
    show(wanted.request(), wanted.socket, json=wanted.json)


def show(wanted: Events, socket: str | None, *, json: bool) -> None:
    found, own = False, output.own_user()
    # without a daemon there is a history, but nothing to follow
    with _connect_when_there(socket) if wanted.follow else history.connect(socket) as client:
        for event in _Events(client, wanted):
            found = True
            if json:
                output.print_json(event)
            else:
                where = f"{event.node}  " if event.node is not None else ""
                print(f"{where}{_line(event, own)}", flush=wanted.follow)
    if not found:
        output.note("no event matches")


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


def _line(event: Event, own: str) -> str:
    """Return an event as people read it. `own`: the user who reads it."""
    time_ = output.local(event.time) if event.time else "-"
    severity = "" if event.severity == SEVERITIES[0] else f" [{event.severity}]"
    whose = f" of {output.plain(event.user)}" if event.user not in (None, own) else ""
    run = (
        f" {event.run_id} ({output.plain(event.agent_name or '-')}{whose})" if event.run_id else ""
    )
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
                advice = (
                    f"resume with --since {self.wanted.after}"
                    if self.wanted.after is not None
                    else "try again later"
                )
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

    def _older(self, page: EventPage) -> list[Event]:
        """Return what a page of the newest events lacks. It has those among the last events that
        the daemon looks at once, so it takes several to find rare ones."""
        lacking, found = self.wanted.rows - len(page.events), list[Event]()
        if self.wanted.after is not None or self.wanted.cursor:
            return found
        while page.older is not None and len(found) < lacking:
            rows = lacking - len(found)
            wanted = replace(self.wanted, before=page.older, rows=rows, follow=False)
            page, _ = self.client.answer(self.client.send(wanted), EventPage)
            found[:0] = page.events
        return found

    def _answered(self) -> Iterator[Event]:
        """Yield the events of one request. Return after the last page; if it follows, at the end of
        the connection only."""
        while True:
            for answer in self.client.arrived():
                check(answer.reply)
                self.failures = 0
                match answer.reply:
                    case EventPush(event=event, cursor=cursor):
                        self._reached(event.number, cursor)
                        yield event
                    case EventPage(reached=reached, more=more, cursor=cursor) as page:
                        yield from self._older(page)
                        yield from page.events
                        self._reached(reached, cursor)
                        if more:
                            self.client.send(self.wanted)
                        elif not self.wanted.follow:
                            return
                    case _:
                        raise Unreachable(
                            self.client.path, "gone", f"it answered {type(answer.reply).__name__}"
                        )

    def _reached(self, number: int, cursor: str) -> None:
        after = number if not cursor else None
        self.wanted = replace(self.wanted, after=after, cursor=cursor, rows=PAGE)
