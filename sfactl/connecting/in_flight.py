"""Requests in flight: several on one connection, repeated after a death of the daemon."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from sfad.protocol.requests.base import Reply, Request
from sfad.protocol.requests.following import EventPush, Logs, Text, Wait
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.requests.steering import Resume, Signal, Stop
from sfad.protocol.types import Event

from .connection import Client, ConnectionLost, again, check, unanswered

Answered = Callable[[Reply, Sequence[int]], None]
"""Takes a reply and its descriptors."""


class OpenRequest(Struct, frozen=True):
    """A request without a reply, and the function that takes the reply."""

    request: Request
    answered: Answered
    descriptors: Sequence[int]
    sent: bool

    def repeatable(self) -> bool:
        """Whether to send it again on a new connection. `Watch` and `Info` are not, because the
        foreground makes new ones."""
        signalled_in_vain = isinstance(self.request, Signal) and not self.sent
        return signalled_in_vain or isinstance(
            self.request, Spawn | Logs | Text | Wait | Stop | Resume
        )


class RequestsInFlight:
    """The requests without a reply. `tie` is whether a repeated `Wait` ties the run to the new
    connection."""

    def __init__(self, client: Client, note: Callable[[str], None], *, tie: bool = False) -> None:
        self._client = client
        self._note = note
        self._tie = tie
        self._open: dict[int, OpenRequest] = {}
        self._respawned = 0

    def ask(self, request: Request, answered: Answered, descriptors: Sequence[int] = ()) -> None:
        """Send a request without waiting; `answered` is called with its reply."""
        sent = False
        try:
            self._client.send(request, descriptors)
            sent = True
        except ConnectionLost:
            pass  # `receive` raises it as well, after the replies that came before the end
        self._open[self._client.last_id] = OpenRequest(request, answered, descriptors, sent)

    @property
    def connected(self) -> bool:
        """Whether there is a connection; without one, requests are sent by `repeat`."""
        return not self._client.closed

    def __bool__(self) -> bool:
        return bool(self._open)

    def receive(self, pushed: Callable[[Event], None]) -> None:
        """Read from the connection, and hand over what has arrived, to `pushed` the events. Raise
        `ConnectionLost`, and `DaemonError` for an error that belongs to no request."""
        for answer in self._client.arrived():
            reply, descriptors = answer.reply, answer.descriptors
            if isinstance(reply, EventPush):
                pushed(reply.event)
            elif (asked := self._open.pop(reply.id, None)) is not None:
                asked.answered(reply, descriptors)
            else:
                check(reply)  # id 0: the daemon could not read which request it refuses

    def reconnect(self, advice: str, pause: Callable[[], None]) -> list[OpenRequest]:
        """Connect again as `Client.reconnect` does. Return the requests that get no reply any more,
        for `repeat`."""
        self._client.reconnect(advice, pause)
        lost = list(self._open.values())
        self._open.clear()
        return lost

    def repeat(self, lost: Sequence[OpenRequest]) -> None:
        """Send again what may be sent again. Raise `ConnectionLost` for a `Spawn` that took the
        daemon down too often."""
        for asked in lost:
            if asked.repeatable():
                self.ask(self._repeated(asked.request), asked.answered, asked.descriptors)
            elif isinstance(asked.request, Signal):
                self._note(
                    "sfactl: the signal may have been lost with the connection; "
                    "it was not sent again"
                )

    def _repeated(self, request: Request) -> Request:
        if isinstance(request, Spawn):
            self._respawned += 1
            if self._respawned > request.repeats:
                raise ConnectionLost(self._client.path, unanswered(request))
        if isinstance(request, Wait):
            request = replace(request, tie=self._tie)
        return again(request, 0.0)


# ---- What moves bytes while this process waits, and one poll over all of it


class Activity(Protocol):
    """An object that moves bytes while this process waits."""

    @property
    def timeout(self) -> float | None:
        """Seconds after which to advance even if nothing is ready."""

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""

    def advance(self, ready: dict[int, int]) -> None:
        """Move bytes without blocking."""

    def drained(self) -> bool:
        """Whether nothing is left to move once the run has ended."""

    def close(self) -> None:
        """Close its descriptors."""


def wait(
    fixed: Iterable[int], activities: Sequence[Activity], timeout: float | None = None
) -> dict[int, int]:
    """Wait until one of `fixed` is readable, an activity can advance, or `timeout` seconds are
    over. Return the poll events by descriptor."""
    poll = select.poll()
    masks = dict.fromkeys(fixed, select.POLLIN)
    for activity in activities:
        for descriptor, mask in activity.interests().items():
            masks[descriptor] = masks.get(descriptor, 0) | mask
    for descriptor, mask in masks.items():
        poll.register(descriptor, mask)
    timeouts = [
        t for t in (timeout, *(activity.timeout for activity in activities)) if t is not None
    ]
    return dict(poll.poll(min(timeouts) * 1000 if timeouts else None))


def carry_on(turn: Callable[[float], object], seconds: float) -> None:
    """Take turns for some seconds; `turn` waits for at most the seconds that are left."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        turn(left)
