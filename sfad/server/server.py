"""One task serves every connection over a nested epoll.

A task a connection is the textbook way and was measured first: a fifth of the requests a second. Everything a client can
make the daemon hold is bounded: connections, bytes of half a frame (each and in all), time for a handshake or to finish a
frame, requests handled in one go, bytes it does not read.
"""

from __future__ import annotations

import select
import socket
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from ..core.access import Peer
from ..core.events import ClientGone
from ..observe.log import Log
from ..protocol.errors import BadMessage, ErrorCode, ProtocolError
from ..protocol.messages import AnyRequest, Error, request_id, unpack_request
from ..runtime.handover import Clients
from ..runtime.runtime import Runtime
from .connection import MAX_UNSENT, Connection
from .verbs import Answerer, Verbs

MAX_CONNECTIONS = 2048
"""Each costs about 2 KiB and a descriptor; 64 trees of 64 runs with a client in each are far below."""

PATIENCE = 10.0
"""Seconds for the handshake, and for the rest of a frame that has begun."""

MAX_PARTIAL = 64 * 1024 * 1024
"""Bytes of unfinished frames, all connections together."""

REST = 1.0
"""Seconds before the next try when a connection could not be accepted for want of descriptors or memory."""

ACCEPTS = 64
"""Connections accepted in one go: somebody may connect and hang up in a loop, and everybody else has a turn between."""

TURN = 16
"""Requests of one client handled before the next client has a turn."""


class Server:
    """Listens on a bound socket and speaks the protocol."""

    def __init__(self, listener: socket.socket, runtime: Runtime, identify: Callable[[socket.socket], Peer], log: Log) -> None:
        self._listener = listener
        self._runtime = runtime
        self._identify = identify
        self._log = log
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._turns: deque[Connection] = deque()
        self._number = 0
        self._partial = 0
        self._awake = trio.Event()
        self._awake.set()
        self._verbs = Verbs(runtime, connections=lambda: len(self._connections))
        listener.setblocking(False)
        self._epoll.register(listener, select.EPOLLIN)

    @property
    def listener(self) -> int:
        """The listening socket's descriptor."""
        return self._listener.fileno()

    def hand_over(self) -> Clients:
        """What `take_over` needs, once this process has executed itself anew. Raises `OSError`."""
        now = trio.current_time()
        for connection in list(self._connections.values()):
            self._verbs.give_up(connection)
        answers = {
            token: [
                (answerer.connection.number, answerer.request)
                for answerer in answerers
                if isinstance(answerer, Answerer) and not answerer.connection.closed
            ]
            for token, answerers in self._runtime.answerers().items()
        }
        connections = [connection.hand_over(now) for connection in self._connections.values()]
        return Clients(connections, self._number, answers)

    def take_over(self, clients: Clients, last_token: int) -> None:
        """Goes on with the clients of the process that this one was before. To be called before anything is answered."""
        self._number = clients.last_number
        numbered: dict[int, Connection] = {}
        for handed in clients.connections:
            connection = numbered[handed.number] = Connection.resumed(handed, self._watch_output)
            self._connections[connection.fd] = connection
            self._epoll.register(connection.sock, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0))
            self._partial += connection.decoder.pending
            if connection.bodies or connection.ended:
                self._turns.append(connection)
            if connection.peer is None or (connection.decoder.pending and not connection.bodies):
                self._give_time(connection, "a handshake" if connection.peer is None else "the rest of a frame")
        answerers = {
            token: [self._verbs.answerer(numbered[number], request) for number, request in waiting]
            for token, waiting in clients.answers.items()
        }
        self._runtime.expect_answers(answerers, last_token=last_token)

    def go_on(self, clients: Clients) -> None:
        """Goes on with what they wait for, once the runs are there."""
        for handed in clients.connections:
            connection = self._connections.get(handed.fd)
            if connection is not None:
                self._verbs.take_over(connection, handed.pending)

    def rest(self, *, resting: bool) -> None:
        """Takes no new connection and no request while it rests."""
        if resting:
            self._awake = trio.Event()
        else:
            self._awake.set()

    async def serve(self) -> None:
        """Serves until cancelled."""
        while True:
            await self._awake.wait()
            if self._turns:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            if not self._awake.is_set():
                continue
            for fd, mask in self._epoll.poll(0, 256):
                self._ready(fd, mask)
            for _ in range(len(self._turns)):
                self._turn(self._turns.popleft())

    def stop_accepting(self) -> None:
        """Closes the listening socket; connections go on."""
        if self._listener.fileno() >= 0:
            self._epoll.unregister(self._listener)
            self._listener.close()

    async def drained(self) -> None:
        """Returns when every reply has been taken by its client."""
        for connection in list(self._connections.values()):
            while connection.unsent and not connection.closed:
                await trio.lowlevel.wait_writable(connection.sock)
                connection.flush()

    def close(self) -> None:
        """Ends every connection."""
        self.stop_accepting()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._epoll.close()

    def _ready(self, fd: int, mask: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
            return
        connection = self._connections.get(fd)
        if connection is None:
            return
        if mask & select.EPOLLOUT:
            connection.flush()
            self._watch_output(connection)
        if mask & ~select.EPOLLOUT and not connection.bodies:
            self._read(connection)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._rest(error)
                return
            sock.setblocking(False)
            self._number += 1
            connection = Connection(sock, self._number, self._watch_output)
            self._connections[sock.fileno()] = connection
            self._epoll.register(sock, select.EPOLLIN)
            if len(self._connections) > MAX_CONNECTIONS:
                self._refuse(connection, ErrorCode.UNAVAILABLE, f"{MAX_CONNECTIONS} connections are open already; try again later")
                continue
            self._give_time(connection, "a handshake")

    def _rest(self, error: OSError) -> None:
        # EMFILE, ENFILE, ENOBUFS, ENOMEM: the listener stays readable, and trying at once would be a busy loop
        self._log.warning(f"cannot accept a connection: {error}; trying again in {REST:g} s")
        self._epoll.modify(self._listener, 0)

        def again() -> None:
            if self._listener.fileno() >= 0:
                self._epoll.modify(self._listener, select.EPOLLIN)

        self._runtime.timers.arm("listener", trio.current_time() + REST, again)

    def _read(self, connection: Connection) -> None:
        before = connection.decoder.pending
        broken = ""
        try:
            going_on = connection.read()
        except ProtocolError as error:
            broken = str(error)
        except OSError:
            going_on = False
        after = connection.decoder.pending
        self._partial += after - before
        if broken:
            self._refuse(connection, ErrorCode.BAD_REQUEST, broken)
            return
        if connection.bodies:
            self._turns.append(connection)
        if connection.bodies:
            # what is left of a frame is read after these; until then its time does not run
            self._runtime.timers.disarm(("connection", connection.number))
        elif after and not before:
            self._give_time(connection, "the rest of a frame")
        if self._partial > MAX_PARTIAL:
            self._refuse(connection, ErrorCode.UNAVAILABLE, f"{MAX_PARTIAL} bytes of unfinished requests are held already")
        elif not going_on:
            connection.ended = True
            if not connection.bodies:
                self._drop(connection)

    def _turn(self, connection: Connection) -> None:
        for _ in range(min(TURN, len(connection.bodies))):
            if connection.closed:
                return
            self._request(connection, connection.bodies.popleft())
        if connection.bodies:
            self._turns.append(connection)
        elif connection.ended:
            self._drop(connection)
        elif connection.decoder.pending and not connection.closed:
            self._give_time(connection, "the rest of a frame")

    def _request(self, connection: Connection, body: bytes) -> None:
        try:
            request = unpack_request(body)
        except BadMessage as error:
            connection.send(Error(id=request_id(body), code=ErrorCode.BAD_REQUEST, message=str(error)))
            if connection.peer is None or connection.received:
                # nobody knows which of the descriptors were its own: the next request would be given the wrong ones
                self._drop(connection)
            return
        if connection.peer is None:
            self._greet(connection, request)
        else:
            self._verbs.handle(connection, request)

    def _greet(self, connection: Connection, request: AnyRequest) -> None:
        try:
            peer = self._identify(connection.sock)
        except Exception as error:  # noqa: BLE001 - what a stranger's process looks like must not end the daemon
            self._log.error("a peer could not be identified", traceback=traceback.format_exc())
            peer = Peer(-1, "unknown", owner=False, unplaced=f"it could not be identified: {error}")
        if self._verbs.greet(connection, request, peer):
            connection.peer = peer
        else:
            self._drop(connection)

    def _watch_output(self, connection: Connection) -> None:
        if connection.unsent_size > MAX_UNSENT and len(connection.unsent) > 1:
            self._log.warning(f"dropped a client that left {connection.unsent_size} bytes unread", connection=connection.number)
            self._drop(connection)
        elif not connection.closed:
            self._epoll.modify(connection.fd, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0))

    def _give_time(self, connection: Connection, what: str) -> None:
        def over() -> None:
            self._refuse(connection, ErrorCode.BAD_REQUEST, f"{what} did not come within {PATIENCE:g} s")

        self._runtime.timers.arm(("connection", connection.number), trio.current_time() + PATIENCE, over)

    def _refuse(self, connection: Connection, code: ErrorCode, message: str) -> None:
        connection.send(Error(id=0, code=code, message=message))
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.closed:
            return
        self._runtime.timers.disarm(("connection", connection.number))
        self._partial -= connection.decoder.pending
        with suppress(OSError):  # the kernel has dropped a socket that was reset
            self._epoll.unregister(connection.fd)
        del self._connections[connection.fd]
        connection.close()
        self._runtime.feed(ClientGone(trio.current_time(), connection.number))
