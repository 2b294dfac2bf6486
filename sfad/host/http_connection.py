"""One client's connection: requests in, replies out (HTTP/1.1, by h11)."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import h11
import trio

from . import streams

HEAD_TIMEOUT = 30.0
"""Seconds for a request's head, from its first byte."""
IDLE_TIMEOUT = 300.0
"""Seconds that a connection may wait for its next request. Clients keep theirs for some minutes."""
BODY_TIMEOUT, WHOLE_BODY_TIMEOUT = 60.0, 600.0
"""Seconds without any byte of a request's body, and for all of it. It takes memory, of which there
is not enough for all."""
SEND_TIMEOUT = 86400.0
"""Seconds that a client may take no byte of a reply. An agent that is paused takes none, and by
default may be paused for a day."""
DISCARD_TIMEOUT = 30.0
MAX_DISCARDED = 128 << 20
"""Seconds and bytes of a request's body that are taken after it was answered."""
MAX_HEAD = 64 << 10
_PIECE = 64 << 10

Headers = Sequence[tuple[bytes, bytes]]


class ClientGoneError(Exception):
    """The client closed the connection, sent what is not HTTP, or was too slow."""


class _MalformedError(ClientGoneError):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HttpConnection:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self.answering = False
        """The head of a reply was sent."""
        self.known: Any = None
        """What the exchanges of this connection know of its caller."""
        self._unsent = bytearray()
        """What the client has not taken."""
        self.hung_up = False
        """The client was seen to have closed the connection."""
        self.working: trio.CancelScope | None = None
        """Cancelled when the client hangs up."""
        self._sending = trio.Lock()
        self._asked_for_head = False
        self._body_until: float | None = None

    @property
    def wants_request(self) -> bool:
        """Whether no whole request has come since the last reply."""
        return self._http.their_state in {h11.IDLE, h11.SEND_BODY}

    async def request(self) -> h11.Request | None:
        """Return the next request, or `None` if the client has closed the connection. Raises
        `ClientGoneError`."""
        self.answering, self._body_until = False, None
        try:
            with trio.move_on_after(IDLE_TIMEOUT) as waiting:
                while (event := self._next()) is h11.NEED_DATA:
                    await self._receive()
                    waiting.deadline = min(waiting.deadline, trio.current_time() + HEAD_TIMEOUT)
                if isinstance(event, h11.Request):
                    self._asked_for_head = event.method == b"HEAD"
                    return event
        except _MalformedError as error:
            await self._answer_malformed(error)
            raise
        return None

    async def body(self) -> bytes:
        """Return the next piece of the request's body, `b""` at its end. Raises
        `ClientGoneError`."""
        self._body_until = self._body_until or trio.current_time() + WHOLE_BODY_TIMEOUT
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while True:
            try:
                event = self._next()
            except _MalformedError as error:
                await self._answer_malformed(error)
                raise
            if event is h11.NEED_DATA:
                with trio.move_on_at(
                    min(self._body_until, trio.current_time() + BODY_TIMEOUT)
                ) as waiting:
                    await self._receive()
                if waiting.cancelled_caught:
                    raise ClientGoneError("its request's body came too slowly")
            elif isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return b""
            elif not isinstance(event, h11.Data):
                raise ClientGoneError("it closed the connection in its request")

    async def _answer_malformed(self, error: _MalformedError) -> None:
        if not self.answering:
            await self.answer(
                error.status, [(b"content-type", b"text/plain")], f"{error}\n".encode()
            )

    async def answer(self, status: int, headers: Headers, body: bytes, reason: bytes = b"") -> None:
        """Send a reply of the gateway's own, before or after the request's body has come."""
        waits = self._http.they_are_waiting_for_100_continue
        length = b"content-length", b"%d" % len(body)
        await self.head(status, [*headers, length], reason or HTTPStatus(status).phrase.encode())
        if not self._asked_for_head:
            await self.piece(body)
        await self.end()
        if not waits:
            await self.discard()

    async def discard(self) -> None:
        """Take the rest of a request that is answered already: closing the connection before would
        reset it, and lose the reply."""
        size = 0
        if self._http.their_state is not h11.SEND_BODY:
            return
        with trio.move_on_after(DISCARD_TIMEOUT):
            while size <= MAX_DISCARDED and (piece := await self.body()):
                size += len(piece)

    async def head(self, status: int, headers: Headers, reason: bytes = b"") -> None:
        self.answering = True
        await self._send(h11.Response(status_code=status, headers=list(headers), reason=reason))

    async def piece(self, data: bytes) -> None:
        self.put(data)
        await self.flush()

    def put(self, data: bytes) -> None:
        """Send of a piece of the reply what the client takes at once, and leave the rest to
        `flush`."""
        if data:
            self._put(h11.Data(data=data))

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        return len(self._unsent)

    async def flush(self) -> None:
        """Send what was put. Raises `ClientGoneError`."""
        if not self._unsent:
            return
        async with self._sending:
            while self._unsent:
                try:
                    with trio.fail_after(SEND_TIMEOUT):
                        sent = await self.stream.socket.send(self._unsent[:_PIECE])
                except (OSError, trio.TooSlowError, trio.ClosedResourceError) as error:
                    raise ClientGoneError(str(error) or "it took nothing of the reply") from error
                del self._unsent[:sent]

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def switch(self) -> bytes:
        """Agree to a CONNECT. From now on `stream` is the caller's alone; return what has been read
        of it already."""
        while await self.body():
            pass
        await self.head(200, [], b"Connection established")
        return self._http.trailing_data[0]

    def next(self) -> bool:
        """Get ready for the next request of this connection. Return whether there can be one."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def hang_up(self) -> None:
        """Note that the client has closed the connection, and cancel what is done for it."""
        self.hung_up = True
        if self.working is not None:
            self.working.cancel()

    def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise _MalformedError(
                f"what you sent is not HTTP: {error}", error.error_status_hint
            ) from error

    async def _receive(self) -> None:
        try:
            self._http.receive_data(await streams.read(self.stream.socket, _PIECE))
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            raise ClientGoneError(str(error)) from error

    async def _send(self, event: h11.Event) -> None:
        self._put(event)
        await self.flush()

    def _put(self, event: h11.Event) -> None:
        data = self._http.send(event) or b""
        if data and not self._unsent:
            data = data[streams.write(self.stream.socket, data) :]
        self._unsent += data
