"""Requests in flight: several on one connection, repeated after a death of the daemon."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec import structs

from sfad.protocol import messages as m
from sfad.protocol.types import CallInfo, Event

from .connection import Client, ConnectionLost, again, check, unanswered

Answered = Callable[[m.Reply, Sequence[int]], None]
"""Takes a reply and its descriptors."""


class OpenRequest(NamedTuple):
    """A request without a reply, and the function that takes the reply."""

    request: m.Request
    answered: Answered
    descriptors: Sequence[int]
    sent: bool

    def repeatable(self) -> bool:
        """Whether to send it again on a new connection. `Watch` and `Info` are not, because the foreground makes new ones."""
        signalled_in_vain = isinstance(self.request, m.Signal) and not self.sent
        return signalled_in_vain or isinstance(self.request, m.Spawn | m.Logs | m.Text | m.Wait | m.Stop | m.Resume)


class RequestsInFlight:
    """The requests without a reply. `tie` is whether a repeated `Wait` ties the run to the new connection."""

    def __init__(self, client: Client, note: Callable[[str], None], *, tie: bool = False) -> None:
        self._client = client
        self._note = note
        self._tie = tie
        self._open: dict[int, OpenRequest] = {}
        self._respawned = 0

    def ask(self, request: m.Request, answered: Answered, descriptors: Sequence[int] = ()) -> None:
        """Send a request without waiting; `answered` is called with its reply."""
        sent = False
        # `receive` raises it as well, after the replies that came before the end.
        with suppress(ConnectionLost):
            self._client.send(request, descriptors)
            sent = True
        self._open[request.id] = OpenRequest(request, answered, descriptors, sent)

    @property
    def connected(self) -> bool:
        """Whether there is a connection; without one, requests are sent by `repeat`."""
        return not self._client.closed

    def __bool__(self) -> bool:
        return bool(self._open)

    def receive(self, pushed: Callable[[Event], None], called: Callable[[CallInfo], None] = lambda _call: None) -> None:
        """Read from the connection, and hand over what has arrived, to `pushed` events, to `called` calls. Raise
        `ConnectionLost`, and `DaemonError` for an error that belongs to no request."""
        for reply, descriptors in self._client.arrived():
            if isinstance(reply, m.EventPush):
                pushed(reply.event)
            elif isinstance(reply, m.CallPush):
                called(reply.call)
            elif (asked := self._open.pop(reply.id, None)) is not None:
                asked.answered(reply, descriptors)
            else:
                check(reply)  # id 0: the daemon could not read which request it refuses

    def reconnect(self, advice: str, pause: Callable[[], None]) -> list[OpenRequest]:
        """Connect again as `Client.reconnect` does. Return the requests that get no reply any more, for `repeat`."""
        self._client.reconnect(advice, pause)
        lost = list(self._open.values())
        self._open.clear()
        return lost

    def repeat(self, lost: Sequence[OpenRequest]) -> None:
        """Send again what may be sent again. Raise `ConnectionLost` for a `Spawn` that took the daemon down too often."""
        for asked in lost:
            if asked.repeatable():
                self.ask(self._repeated(asked.request), asked.answered, asked.descriptors)
            elif isinstance(asked.request, m.Signal):
                self._note("sfactl: the signal may have been lost with the connection; it was not sent again")

    def _repeated(self, request: m.Request) -> m.Request:
        if isinstance(request, m.Spawn):
            self._respawned += 1
            if self._respawned > request.repeats:
                raise ConnectionLost(self._client.path, unanswered(request))
        if isinstance(request, m.Wait):
            request = structs.replace(request, tie=self._tie)
        return again(request, 0.0)
