"""One task serves every connection over a nested epoll.

One task for each connection is the textbook way; measured, it served a fifth of the requests a second. Everything that a client
can make the daemon hold has a bound: see `shares`. The bounds of time are here.
"""

import select
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from ..core.access import Peer
from ..core.events import ClientGone
from ..durable.handover import Clients
from ..host.descriptors import close_soon
from ..launch.launcher import Unplaceable
from ..loop.runtime import Runtime
from ..observe.log import Log
from ..protocol.framing import BadMessage, ProtocolError
from ..protocol.messages import Error, pack_message, request_id, unpack_request
from ..protocol.types import ErrorCode
from .call import Call
from .connection import MAX_UNSENT, Connection, DescriptorsLost
from .dispatch import Dispatcher
from .listening import Listener
from .peers import run_of
from .shares import ClientBounds, Holder, ShareGroup
from .turns import Turns

PATIENCE = 10.0
"""Seconds for the handshake, and for the rest of a frame that has begun."""

TURN = 16
"""Requests of one client handled before the next client has a turn."""


class Server:
    """Speaks the protocol with every client."""

    def __init__(
        self,
        listener: socket.socket,
        runtime: Runtime,
        identify: Callable[[socket.socket], Peer],
        log: Log,
        inode: tuple[int, int] | None = None,
    ) -> None:
        """`inode`: the listener's in the file system, if another than the one that is at its path now."""
        self._runtime = runtime
        self._identify = identify
        self._log = log
        self._epoll = select.epoll()
        self.listener = Listener(listener, self._epoll, runtime, log, inode)
        self._connections: dict[int, Connection] = {}
        self._number = 0
        self._turns = Turns(self._turn)
        self._bounds = ClientBounds(runtime.descriptors)
        self._dispatcher = Dispatcher(runtime, self._bounds, connections=lambda: len(self._connections))
        self._awake = trio.Event()
        self._awake.set()

    # ---- re-execution

    def hand_over(self) -> Clients:
        """Return what `take_over` needs in the process that this one executes itself as. Raises `OSError`."""
        now = trio.current_time()
        for connection in list(self._connections.values()):
            self._dispatcher.give_up(connection)
        answers = {
            token: [
                (asker.connection.number, asker.id) for asker in askers if isinstance(asker, Call) and not asker.connection.closed
            ]
            for token, askers in self._runtime.requests.askers().items()
        }
        connections = [connection.hand_over(now) for connection in self._connections.values()]
        return Clients(connections, self._number, answers)

    def take_over(self, clients: Clients, last_token: int) -> None:
        """Adopt the clients of the process that this one was before. Call this before anything is answered."""
        self._number = clients.last_number
        numbered: dict[int, Connection] = {}
        for handed in clients.connections:
            sock = socket.socket(fileno=handed.fd)
            sock.setblocking(False)
            connection = self._add(sock, handed.number, handed.peer or self._identified(sock))
            connection.resume(handed)
            numbered[handed.number] = connection
            self._update_epoll(connection)
            self._bounds.count(connection.holder, connection.count())
            if connection.bodies or connection.ended:
                self._turns.add(connection)
            if not connection.greeted or (connection.decoder.pending and not connection.bodies):
                self._give_time(connection, "the rest of a frame" if connection.greeted else "a handshake")
        askers = {
            token: [self._dispatcher.open(numbered[number], request) for number, request in waiting]
            for token, waiting in clients.answers.items()
        }
        self._runtime.requests.restore(askers, last_token=last_token)

    def go_on(self, clients: Clients) -> None:
        """Continue the requests that wait for runs, once the runs are adopted."""
        for handed in clients.connections:
            connection = self._connections.get(handed.fd)
            if connection is not None:
                self._dispatcher.take_over(connection, handed.pending)

    def rest(self, *, resting: bool) -> None:
        """Accept no connection and handle no request while resting."""
        if resting:
            self._awake = trio.Event()
        else:
            self._awake.set()

    # ---- the task

    async def serve(self) -> None:
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
            self._turns.take()

    async def look_after_socket(self) -> None:
        """Bind the socket again when another process has removed or replaced it, until cancelled."""
        await self.listener.look_after(self._accept)

    async def drained(self) -> None:
        """Return when every reply has been taken by its client."""
        for connection in list(self._connections.values()):
            while connection.unsent and not connection.closed:
                await trio.lowlevel.wait_writable(connection.sock)
                connection.flush()

    def close(self) -> None:
        self.listener.close()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._epoll.close()

    def _ready(self, fd: int, mask: int) -> None:
        if fd == self.listener.fileno():
            self._accept()
            return
        connection = self._connections.get(fd)
        if connection is None:
            return
        with self._blaming(connection):
            if mask & select.EPOLLOUT:
                connection.flush()
                self._watch_output(connection)
            if mask & ~select.EPOLLOUT and not connection.bodies:
                self._read(connection)

    @contextmanager
    def _blaming(self, connection: Connection) -> Iterator[None]:
        """End the connection that the daemon cannot handle: a bug in one must not end the others."""
        try:
            yield
        except Exception:  # noqa: BLE001 - see above
            self._log.error("internal error while serving a client", traceback=traceback.format_exc())
            self._drop(connection)

    # ---- new connections

    def _accept(self) -> None:
        for sock in self.listener.accept():
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        """Take a connection, or say why not. A client that never says hello counts as well, so it is identified first."""
        peer = self._identified(sock)
        refusal = self._bounds.refusal(self._holder(peer), uncounted=1)
        if refusal is not None:
            with suppress(OSError):
                sock.send(pack_message(Error(id=0, code=ErrorCode.UNAVAILABLE, message=refusal)))
            close_soon([sock.detach()])
            return
        self._number += 1
        connection = self._add(sock, self._number, peer)
        self._bounds.count(connection.holder, connection.count())
        self._give_time(connection, "a handshake")

    def _add(self, sock: socket.socket, number: int, peer: Peer) -> Connection:
        connection = Connection(sock, number, peer, self._holder(peer), self._watch_output)
        self._connections[connection.fd] = connection
        self._epoll.register(sock, select.EPOLLIN)
        return connection

    def _identified(self, sock: socket.socket) -> Peer:
        try:
            return self._identify(sock)
        except Exception as error:  # noqa: BLE001 - a peer with odd data in /proc must not crash the daemon
            self._log.error("a peer could not be identified", traceback=traceback.format_exc())
            return Peer(-1, "unknown", owner=False, unplaced=f"it could not be identified: {error}")

    def _holder(self, peer: Peer) -> Holder:
        return Holder.of(peer, self._runtime.catalogue.root(peer.run) if peer.run is not None else None)

    # ---- input

    def _read(self, connection: Connection) -> None:
        before, received = connection.holding.input, len(connection.received)
        try:
            connection.read()
        except ProtocolError as error:
            self._refuse(connection, ErrorCode.BAD_REQUEST, str(error))
            return
        except DescriptorsLost as lost:
            self._refuse(connection, ErrorCode.UNAVAILABLE, str(lost))
            return
        self._bounds.count(connection.holder, connection.count())
        if connection.sender != connection.maker and (refusal := self._passed_on(connection)) is not None:
            self._refuse(connection, ErrorCode.NOT_PERMITTED, refusal)
            return
        self._time_frame(connection, before)
        if len(connection.received) > received and (refusal := self._bounds.refusal(connection.holder)) is not None:
            self._refuse(connection, ErrorCode.UNAVAILABLE, refusal)
        self._relieve_input(connection)
        if connection.ended and not connection.bodies:
            self._drop(connection)

    def _passed_on(self, connection: Connection) -> str | None:
        """Say why the sender may not use a connection that another process made: it would have that one's rights."""
        try:
            run = run_of(connection.sender, self._runtime.launcher)
        except (Unplaceable, OSError) as error:
            return f"process {connection.sender}, which did not make this connection, could not be placed: {error}"
        if run == connection.peer.run:
            return None
        made_in, sent_in = (f"run {each}" if each is not None else "no run" for each in (connection.peer.run, run))
        return (
            f"this connection was made by a process in {made_in} and used by process {connection.sender} in {sent_in}; "
            "each process must make its own"
        )

    def _time_frame(self, connection: Connection, before: int) -> None:
        if connection.bodies:
            # the rest of a frame is read after these; until then its time does not run
            self._turns.add(connection)
            self._runtime.timers.disarm(("connection", connection.number))
        elif connection.decoder.pending and not before:
            self._give_time(connection, "the rest of a frame")

    def _relieve_input(self, connection: Connection) -> None:
        """Drop the clients with the largest unfinished requests until each group is within its share."""
        for group in self._bounds.input.over(connection.holder):
            while self._bounds.input.held(group) > (share := self._bounds.input.share(group)):
                largest = max(self._members(group), key=lambda each: each.counted.input)
                message = f"{group} left {self._bounds.input.held(group)} bytes of requests unfinished; at most {share} are held"
                self._refuse(largest, ErrorCode.UNAVAILABLE, message)

    def _relieve_output(self, connection: Connection) -> None:
        """Drop the clients with the most unread bytes until each group is within its share, which a single reply may exceed."""
        for group in self._bounds.output.over(connection.holder):
            while (held := self._bounds.output.held(group)) > (share := self._bounds.output.share(group)):
                largest = max(self._members(group), key=lambda each: each.counted.output)
                if largest.messages == 1 and held - largest.counted.output <= share:
                    break
                self._drop_slow(
                    largest, f"{group} left {held} bytes unread, at most {share} are held, and this client has the most"
                )

    def _members(self, group: ShareGroup) -> list[Connection]:
        return [connection for connection in self._connections.values() if group in connection.holder.groups]

    def _turn(self, connection: Connection) -> None:
        with self._blaming(connection):
            self._requests(connection)

    def _requests(self, connection: Connection) -> None:
        if connection.peer.run is not None and connection.peer.run not in self._runtime.catalogue.live:
            # no process of an ended run is alive to read the answers, and its requests may take minutes
            self._drop(connection)
            return
        for _ in range(min(TURN, len(connection.bodies))):
            if connection.closed:
                return
            self._request(connection, connection.next_body())
        self._bounds.count(connection.holder, connection.count())
        if connection.bodies:
            self._turns.add(connection)
        elif connection.ended:
            self._drop(connection)
        elif connection.decoder.pending and not connection.closed:
            self._give_time(connection, "the rest of a frame")

    def _request(self, connection: Connection, body: bytes) -> None:
        try:
            request = unpack_request(body)
        except BadMessage as error:
            connection.send(Error(id=request_id(body), code=ErrorCode.BAD_REQUEST, message=str(error)))
            if not connection.greeted or connection.received:
                # which of the descriptors belong to this request is unknown: the next one would be given the wrong ones
                self._drop(connection)
            return
        if connection.greeted:
            self._dispatcher.handle(connection, request)
            return
        self._dispatcher.greet(connection, request)
        if not connection.greeted:
            self._drop(connection)

    def _watch_output(self, connection: Connection) -> None:
        self._bounds.count(connection.holder, connection.count())
        if connection.unsent_size > MAX_UNSENT and connection.messages > 1:
            self._drop_slow(connection, f"it left {connection.unsent_size} bytes unread, at most {MAX_UNSENT} are held")
        self._relieve_output(connection)
        if not connection.closed:
            self._update_epoll(connection)

    def _update_epoll(self, connection: Connection) -> None:
        self._epoll.modify(connection.fd, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0))

    def _drop_slow(self, connection: Connection, why: str) -> None:
        peer = connection.peer
        self._log.warning(f"dropped a slow client: {why}", connection=connection.number, user=peer.user, run=peer.run)
        self._drop(connection)

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
        with suppress(OSError):  # the kernel has dropped a socket that was reset
            self._epoll.unregister(connection.fd)
        del self._connections[connection.fd]
        connection.close()
        self._bounds.count(connection.holder, connection.count())
        self._runtime.feed(ClientGone(trio.current_time(), connection.number))
