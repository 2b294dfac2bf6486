"""One client's connection: frames in, frames out, descriptors both ways; never blocks."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from ..core.access import Peer
from ..protocol.framing import MAX_REQUEST, FrameDecoder
from ..protocol.messages import MAX_DESCRIPTORS, Reply, Wait, Watch, pack_message
from ..runtime.handover import Connected

READ = 256 * 1024
"""Bytes read at once."""

MAX_UNSENT = 8 * 1024 * 1024
"""Bytes of replies and events that may wait for a client which does not read; then it is dropped. A reply larger than this
is still sent to a client that had nothing else waiting."""

_ANCILLARY = socket.CMSG_SPACE(4 * 16)


@dataclass(slots=True)
class Pending:
    """A request that waits for something to happen."""

    request: Wait | Watch
    forget: Callable[[], None]
    """Does so."""
    until: float | None = None
    """When it gives up waiting, on the core's clock."""


class Connection:
    """State of one client. `number` is never used twice; descriptors in `received` are owned until taken."""

    __slots__ = (
        "bodies",
        "closed",
        "decoder",
        "elsewhere",
        "ended",
        "fd",
        "number",
        "on_unsent",
        "peer",
        "pending",
        "received",
        "sock",
        "unsent",
        "unsent_size",
    )

    def __init__(self, sock: socket.socket, number: int, on_unsent: Callable[[Connection], None]) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.number = number
        self.decoder = FrameDecoder(MAX_REQUEST)
        self.bodies: deque[bytes] = deque()
        self.received: deque[int] = deque()
        self.unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self.unsent_size = 0
        self.peer: Peer | None = None
        self.on_unsent = on_unsent
        self.closed = False
        self.ended = False
        """The client will send nothing more; what it asked before is still handled, and answered if that takes no time."""
        self.elsewhere: set[int] = set()
        """Ids of requests that another thread was asked about."""
        self.pending: dict[int, Pending] = {}
        """By request id: what waits for this client."""

    def hand_over(self, now: float) -> Connected:
        """What it takes to go on with this client in a process that has executed itself anew."""
        return Connected(
            fd=self.fd,
            number=self.number,
            peer=self.peer,
            partial=self.decoder.rest,
            bodies=list(self.bodies),
            received=list(self.received),
            unsent=[(bytes(data), list(descriptors)) for data, descriptors in self.unsent],
            pending=[_as_of(pending, now) for pending in self.pending.values()],
            ended=self.ended,
        )

    @classmethod
    def resumed(cls, handed: Connected, on_unsent: Callable[[Connection], None]) -> Connection:
        """The same connection. What waits for the client is not part of it yet."""
        connection = cls(socket.socket(fileno=handed.fd), handed.number, on_unsent)
        connection.sock.setblocking(False)
        connection.peer = handed.peer
        connection.bodies.extend([*handed.bodies, *connection.decoder.feed(handed.partial)])
        connection.received.extend(handed.received)
        connection.unsent.extend((memoryview(data), descriptors) for data, descriptors in handed.unsent)
        connection.unsent_size = sum(len(data) for data, _ in handed.unsent)
        connection.ended = handed.ended
        return connection

    def read(self) -> bool:
        """Takes what has arrived. False at the end. Raises `ProtocolError` and `OSError`."""
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(READ, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.received.extend(_descriptors(payload))
        if flags & socket.MSG_CTRUNC or len(self.received) > 4 * MAX_DESCRIPTORS:
            raise OSError("more descriptors than any request carries")
        self.bodies.extend(self.decoder.feed(data))
        return bool(data)

    def take(self, count: int) -> list[int] | None:
        """The next `count` received descriptors, or `None` if they did not come with the message."""
        if len(self.received) < count:
            return None
        return [self.received.popleft() for _ in range(count)]

    def send(self, reply: Reply, descriptors: Sequence[int] = ()) -> None:
        """Sends now what the socket takes and keeps the rest. `descriptors` are duplicated by the kernel or kept, as needed."""
        if self.closed:
            return
        data = memoryview(pack_message(reply))
        sent = 0 if self.unsent else self._send_some(data, descriptors)
        if sent < len(data):
            # descriptors went with the first byte
            kept = [] if sent else [os.dup(fd) for fd in descriptors]
            self.unsent.append((data[sent:], kept))
            self.unsent_size += len(data) - sent
            self.on_unsent(self)

    def flush(self) -> None:
        """Sends more of what is kept. Raises `OSError` if the client is gone."""
        while self.unsent:
            data, descriptors = self.unsent[0]
            sent = self._send_some(data, descriptors)
            if not sent:
                return
            for descriptor in descriptors:
                os.close(descriptor)
            self.unsent_size -= sent
            if sent < len(data):
                self.unsent[0] = (data[sent:], ())
                return
            self.unsent.popleft()

    def _send_some(self, data: memoryview, descriptors: Sequence[int]) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            return self.sock.sendmsg([data], rights) if rights else self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # the client is gone; reading tells the server so, and it ends the connection there
            return len(data)

    def close(self) -> None:
        """Gives back everything. The caller has unregistered the socket."""
        self.closed = True
        for descriptor in self.received:
            os.close(descriptor)
        for _, descriptors in self.unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self.received.clear()
        self.unsent.clear()
        self.sock.close()
        for pending in list(self.pending.values()):
            pending.forget()
        self.pending.clear()


def _as_of(pending: Pending, now: float) -> Wait | Watch:
    request = pending.request
    if not isinstance(request, Wait):
        return request
    # it was tied long ago, and perhaps to somebody else since
    timeout = max(0.001, pending.until - now) if pending.until is not None else None
    return structs.replace(request, tie=False, timeout=timeout)


def _descriptors(payload: bytes) -> list[int]:
    fds = array.array("i")
    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return list(fds)
