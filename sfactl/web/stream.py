"""Server-sent events: what an open page is told, on one connection.

Each message's id has the version of the runs, the number of the last event and the position in the
output that the page has then. A browser sends the last id when it connects again, so a page that
sleeps catches up without a gap.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sfad.protocol import messages as m
from sfad.protocol.types import SEVERITIES, RunId, Severity

from ..connecting.connection import Client, check
from ..exits import Quit
from . import tail, views
from .feed import AGAIN, Feed
from .source import Source

PACE = 0.1
"""Seconds between two messages about runs at least: what changes meanwhile is told together."""
BEAT = 10.0
"""Seconds without a message after which the page is told that the connection lives."""
EVENTS = 100
"""Events that a page begins with."""
_encode = msgspec.json.encode


class EventStream(Response):
    """Tells a page of runs (`runs`: `all`, or the id of one, with the tree below it), of events
    (`events`), and of the output of a run (`output`: its id; `stderr`), as its query says."""

    def __init__(self, request: Request, source: Source, feed: Feed) -> None:
        query = request.query_params
        self._source, self._feed = source, feed
        self._runs = query.get("runs", "")
        self._output, self._stderr = query.get("output", ""), "stderr" in query
        self._events = "events" in query
        self._of: RunId = query.get("run", "")
        self._types = [each for each in query.get("type", "").split(",") if each]
        severity = query.get("severity", "low")
        self._severity: Severity = severity if severity in SEVERITIES else "low"
        self._version, self._seq, self._cursor = 0, 0, ""
        self._left_out: int | None = None
        """Queued runs that are only counted, as the page was told."""
        self._resume(request.headers.get("last-event-id") or query.get("last", ""))
        self._lock = trio.Lock()
        self._beat_due = 0.0

    def _resume(self, last: str) -> None:
        """Take up where the page is, as it says in the id of its last message."""
        epoch, *rest = last.split(".")
        if len(rest) == 3:
            version, seq = views.number(rest[0]), views.number(rest[1])
            if version is not None and seq is not None:
                self._version = version if epoch == self._feed.epoch else 0
                self._seq, self._cursor = seq, rest[2]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._send = send
        async with trio.open_nursery() as nursery:
            self._feed.enter()
            try:
                nursery.start_soon(self._tell_runs)
                nursery.start_soon(self._beat)
                if self._events:
                    nursery.start_soon(self._follow_events)
                if self._output:
                    nursery.start_soon(self._follow_output)
                while (await receive())["type"] != "http.disconnect":
                    pass
            finally:
                self._feed.leave()
                nursery.cancel_scope.cancel()

    async def _tell(
        self, name: str, data: bytes, change: Callable[[], object] = lambda: None
    ) -> None:
        """Send a message. `change` moves the position that its id names."""
        async with self._lock:
            change()
            id_ = f"{self._feed.epoch}.{self._version}.{self._seq}.{self._cursor}"
            body = b"event: %s\nid: %s\ndata: %s\n\n" % (name.encode(), id_.encode(), data)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._beat_due = trio.current_time() + BEAT

    async def _beat(self) -> None:
        while True:
            await trio.sleep_until(max(self._beat_due, trio.current_time() + 0.5))
            if trio.current_time() >= self._beat_due:
                await self._tell("beat", b"0")

    def _at(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    # ---- runs

    async def _tell_runs(self) -> None:
        feed, away, trouble, status, first = self._feed, "", "", -1, True
        while True:
            seen, pause = feed.changes, trio.current_time() + PACE
            if feed.away is not None and feed.away != away:
                away = feed.away
                await self._tell("away", _encode(away))
            elif feed.away is None and feed.ready:
                if away or first or feed.trouble != trouble:
                    away, first, trouble = "", False, feed.trouble
                    await self._tell("here", b"0")
                    if trouble:
                        await self._tell("trouble", _encode(trouble))
                if self._runs:
                    await self._tell_changed()
                if feed.status is not None and feed.status_version != status:
                    status = feed.status_version
                    await self._tell(
                        "daemon", _encode(views.daemon(feed.status, feed.table, self._source.own))
                    )
            if feed.changes == seen:
                await feed.change()
            await trio.sleep_until(pause)

    async def _tell_changed(self) -> None:
        version, feed = self._version, self._feed
        now = feed.version
        fresh, rows, gone = feed.since(version, None if self._runs == "all" else self._runs)
        if not (fresh or rows or gone or feed.table.left_out != self._left_out):
            self._version = now
            return
        self._left_out = feed.table.left_out
        data = b'{"fresh":%s,"now":%.3f,"rows":[%s],"gone":%s,"left_out":%d}' % (
            b"true" if fresh else b"false",
            views.now(),
            b",".join(rows),
            _encode(gone),
            self._left_out,
        )
        await self._tell("runs", data, partial(self._at, "_version", now))

    # ---- events

    async def _follow_events(self) -> None:
        while True:
            try:
                # the numbers of events are those of one node
                reach = self._source.connect if self._of else self._source.connect_here
                with await trio.to_thread.run_sync(reach) as client:
                    await self._pass_events_on(client)
            except Quit as error:
                if self._feed.away is None:
                    await self._tell("trouble", _encode(error.message))
            await trio.sleep(AGAIN)

    async def _pass_events_on(self, client: Client) -> None:
        """Pass on what a node tells until the connection ends. Raise `Quit`."""
        request = m.Events(
            id=0,
            after=self._seq or None,
            rows=EVENTS,
            follow=True,
            types=self._types,
            severity=self._severity,
        )
        request.runs = [self._of] if self._of else []
        client.send(request)
        name = str if self._of else self._source.name
        while True:
            await trio.lowlevel.wait_readable(client.fileno())
            for answer in client.arrived():
                reply = answer.reply
                check(reply)
                events = (
                    reply.events
                    if isinstance(reply, m.EventPage)
                    else [reply.event]
                    if isinstance(reply, m.EventPush)
                    else []
                )
                reached = max([self._seq, *(event.number for event in events)])
                if events:
                    await self._tell(
                        "events",
                        _encode([views.event(each, name) for each in events]),
                        partial(self._at, "_seq", reached),
                    )
                if isinstance(reply, m.EventPage) and reply.more:
                    request.after = reply.reached
                    client.send(request)

    # ---- output

    async def _follow_output(self) -> None:
        async def tell(text: str, cursor: str) -> None:
            change: Callable[[], object] = (
                partial(self._at, "_cursor", cursor) if cursor else lambda: None
            )
            await self._tell("output", _encode(text), change)

        async def show(piece: dict[str, Any]) -> None:
            await self._tell("terminal", _encode(piece))

        await tail.follow(
            self._source,
            self._output,
            stderr=self._stderr,
            cursor=self._cursor,
            tell=tell,
            show=show,
        )
