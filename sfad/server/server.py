"""One task serves every connection over a nested epoll.

A task a connection is the textbook way and was measured first: a fifth of the requests a second. Everything a client can
make the daemon hold is bounded, and the bounds are shared out (see `shares`): connections, bytes of half a frame, time for a
handshake or to finish a frame, requests handled in one go, bytes it does not read, requests and watches that are open.
"""

from __future__ import annotations

import select
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from ..core.access import Peer
from ..core.events import ClientGone
from ..durable.handover import Clients
from ..host.closing import close_soon
from ..host.descriptors import Need
from ..host.socket_file import PathError, bind_socket, socket_inode
from ..launch.base import Unplaceable
from ..loop.runtime import LOOK, Runtime
from ..observe.log import Log
from ..protocol.errors import BadMessage, ErrorCode, ProtocolError
from ..protocol.messages import Error, pack_message, request_id, unpack_request
from .connection import MAX_UNSENT, Connection, DescriptorsLost
from .peers import run_of
from .shares import Group, Holder, Shares
from .verbs import Answerer, Verbs

MAX_CONNECTIONS = 2048
"""Each costs about 2 KiB and a descriptor; 64 trees of 64 runs with a client in each are far below. Where the process may open
few descriptors, half of these. Descriptors that wait for a request or for a client count like connections."""

LEAST_CONNECTIONS = 8
"""The smallest share of a run, however few descriptors there are."""

PATIENCE = 10.0
"""Seconds for the handshake, and for the rest of a frame that has begun."""

MAX_PARTIAL = 64 * 1024 * 1024
"""Bytes of requests that are not complete or wait for their turn, all connections together."""

MAX_UNREAD = 32 * 1024 * 1024
"""Bytes of replies and events that clients have not read, all connections together."""

REST = 1.0
"""Seconds before the next try when a connection could not be accepted for want of descriptors or memory."""

ACCEPTS = 64
"""Connections accepted in one go: somebody may connect and hang up in a loop, and everybody else has a turn between."""

TURN = 16
"""Requests of one client handled before the next client has a turn."""

SLICE = 0.01
"""Seconds of requests of one tree, or of one user outside any run, before the next one has a turn."""


class Server:
    """Listens on a bound socket and speaks the protocol."""

    def __init__(
        self,
        listener: socket.socket,
        runtime: Runtime,
        identify: Callable[[socket.socket], Peer],
        log: Log,
        inode: tuple[int, int] | None = None,
    ) -> None:
        """`inode`: the listener's in the file system, if another than the one that is at its path now."""
        self._listener = listener
        self._path = Path(runtime.socket)
        self.inode = inode or socket_inode(self._path)
        self._unbound: str | None = None
        """Why no socket could be made in place of the one that is gone."""
        self._runtime = runtime
        self._identify = identify
        self._log = log
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._turns: dict[Group, deque[Connection]] = {}
        self._number = 0
        connections = min(MAX_CONNECTIONS, runtime.descriptors.limit // 2)
        self._descriptors = Shares("connections and descriptors", connections, least=LEAST_CONNECTIONS)
        self._input = Shares("bytes of unfinished requests", MAX_PARTIAL)
        self._output = Shares("bytes of unread replies and events", MAX_UNREAD)
        self._awake = trio.Event()
        self._awake.set()
        self._verbs = Verbs(runtime, self._descriptors, connections=lambda: len(self._connections))
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
            sock = socket.socket(fileno=handed.fd)
            sock.setblocking(False)
            peer = handed.peer or self._identified(sock)
            connection = Connection(sock, handed.number, peer, self._holder(peer), self._watch_output)
            connection.resume(handed)
            numbered[handed.number] = self._connections[connection.fd] = connection
            self._epoll.register(sock, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0))
            self._count(connection)
            if connection.bodies or connection.ended:
                self._await_turn(connection)
            if not connection.greeted or (connection.decoder.pending and not connection.bodies):
                self._give_time(connection, "the rest of a frame" if connection.greeted else "a handshake")
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
            for lane in list(self._turns):
                self._lane_turn(lane)

    async def look_after_socket(self) -> None:
        """Binds the socket again when another process has removed or replaced it, until cancelled."""
        while True:
            await trio.sleep(LOOK)
            try:
                # in a thread: a file system may take its time, and anybody can keep the directory's lock for half a second
                bound = await trio.to_thread.run_sync(self._bound_again, abandon_on_cancel=True)
            except (PathError, OSError) as error:
                self._tell_unbound(str(error))
            else:
                self._unbound = None
                if bound is not None:
                    self._listen_on(*bound)

    def _bound_again(self) -> tuple[socket.socket, tuple[int, int] | None] | None:
        if self._listener.fileno() < 0 or socket_inode(self._path) == self.inode:
            return None
        return bind_socket(self._path, held=Path(self._runtime.state_dir)), socket_inode(self._path)

    def _listen_on(self, listener: socket.socket, inode: tuple[int, int] | None) -> None:
        if self._listener.fileno() < 0:  # the daemon is ending, and has stopped accepting meanwhile
            listener.close()
            return
        self._accept()  # who has connected to the old one
        self.stop_accepting()
        self._listener, self.inode = listener, inode
        self._epoll.register(listener, select.EPOLLIN)
        what = f"another process removed or replaced the socket {self._path}; the daemon has made it again"
        self._log.warning(what)
        self._runtime.tell("daemon_socket_renewed", what, "medium")

    def _tell_unbound(self, why: str) -> None:
        if why != self._unbound:
            self._log.error(f"another process removed or replaced the socket {self._path}, and it cannot be made again: {why}")
        self._unbound = why

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
        except Exception:  # noqa: BLE001 - whatever it is
            self._log.error("internal error while serving a client", traceback=traceback.format_exc())
            self._drop(connection)

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
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        """Take a connection, or say why not. A client that never says hello counts as well, so it is identified first."""
        peer = self._identified(sock)
        holder = self._holder(peer)
        refusal = self._descriptors.refusal(holder, 1) or self._runtime.descriptors.refusal(_need(holder))
        if refusal is not None:
            with suppress(OSError):
                sock.send(pack_message(Error(id=0, code=ErrorCode.UNAVAILABLE, message=refusal)))
            close_soon([sock.detach()])
            return
        self._number += 1
        connection = self._connections[sock.fileno()] = Connection(sock, self._number, peer, holder, self._watch_output)
        self._epoll.register(sock, select.EPOLLIN)
        self._count(connection)
        self._give_time(connection, "a handshake")

    def _identified(self, sock: socket.socket) -> Peer:
        try:
            return self._identify(sock)
        except Exception as error:  # noqa: BLE001 - a peer with odd data in /proc must not crash the daemon
            self._log.error("a peer could not be identified", traceback=traceback.format_exc())
            return Peer(-1, "unknown", owner=False, unplaced=f"it could not be identified: {error}")

    def _holder(self, peer: Peer) -> Holder:
        return Holder.of(peer, self._runtime.root(peer.run) if peer.run is not None else None)

    def _count(self, connection: Connection) -> None:
        """Bring the shares up to date with what the connection holds."""
        load = connection.load
        for shares, now, before in zip((self._descriptors, self._input, self._output), load, connection.counted, strict=True):
            if now != before:
                shares.add(connection.holder, now - before)
        connection.counted = load

    def _rest(self, error: OSError) -> None:
        # EMFILE, ENFILE, ENOBUFS, ENOMEM: the listener stays readable, and trying at once would be a busy loop
        self._log.warning(f"cannot accept a connection: {error}; trying again in {REST:g} s")
        self._epoll.modify(self._listener, 0)

        def again() -> None:
            if self._listener.fileno() >= 0:
                self._epoll.modify(self._listener, select.EPOLLIN)

        self._runtime.timers.arm("listener", trio.current_time() + REST, again)

    def _read(self, connection: Connection) -> None:
        before, received = connection.load.input, len(connection.received)
        try:
            going_on = connection.read()
        except ProtocolError as error:
            self._refuse(connection, ErrorCode.BAD_REQUEST, str(error))
            return
        except DescriptorsLost as lost:
            self._refuse(connection, ErrorCode.UNAVAILABLE, str(lost))
            return
        except OSError:
            going_on = False
        self._count(connection)
        if connection.sender != connection.maker and (refusal := self._passed_on(connection)) is not None:
            self._refuse(connection, ErrorCode.NOT_PERMITTED, refusal)
            return
        self._time_frame(connection, before)
        if len(connection.received) > received:
            self._check_descriptors(connection)
        self._relieve_input(connection)
        if not going_on and not connection.closed:
            connection.ended = True
            if not connection.bodies:
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
            "each has to make its own"
        )

    def _time_frame(self, connection: Connection, before: int) -> None:
        if connection.bodies:
            # what is left of a frame is read after these; until then its time does not run
            self._await_turn(connection)
            self._runtime.timers.disarm(("connection", connection.number))
        elif connection.decoder.pending and not before:
            self._give_time(connection, "the rest of a frame")

    def _check_descriptors(self, connection: Connection) -> None:
        holder = connection.holder
        refusal = self._descriptors.refusal(holder, 0) or self._runtime.descriptors.refusal(_need(holder))
        if refusal is not None:
            self._refuse(connection, ErrorCode.UNAVAILABLE, refusal)

    def _relieve_input(self, connection: Connection) -> None:
        """Drop the clients with the largest unfinished requests until each group is within its share."""
        for group in self._input.over(connection.holder):
            while self._input.held(group) > (share := self._input.share(group)):
                largest = max(self._members(group), key=lambda each: each.counted.input)
                message = f"{group} left {self._input.held(group)} bytes of requests unfinished; at most {share} are held"
                self._refuse(largest, ErrorCode.UNAVAILABLE, message)

    def _relieve_output(self, connection: Connection) -> None:
        """Drop the clients with the most unread bytes until each group is within its share, which a single reply may exceed."""
        for group in self._output.over(connection.holder):
            while (held := self._output.held(group)) > (share := self._output.share(group)):
                largest = max(self._members(group), key=lambda each: each.counted.output)
                if largest.messages == 1 and held - largest.counted.output <= share:
                    break
                self._drop_slow(
                    largest, f"{group} left {held} bytes unread, at most {share} are held, and this client has the most"
                )

    def _members(self, group: Group) -> list[Connection]:
        return [connection for connection in self._connections.values() if group in connection.holder.groups]

    def _await_turn(self, connection: Connection) -> None:
        self._turns.setdefault(connection.holder.lane, deque()).append(connection)

    def _lane_turn(self, lane: Group) -> None:
        """Handle requests of one tree or user for a while. One that has many clients waits as long as one that has few."""
        waiting = self._turns.pop(lane)
        until = time.perf_counter() + SLICE
        while waiting:
            connection = waiting.popleft()
            with self._blaming(connection):
                self._turn(connection)
            if time.perf_counter() > until:
                break
        if waiting:
            # in front of those that have had a turn now
            waiting.extend(self._turns.pop(lane, ()))
            self._turns[lane] = waiting

    def _turn(self, connection: Connection) -> None:
        if connection.peer.run is not None and connection.peer.run not in self._runtime.live:
            # No process of an ended run is alive to read the answers, and there may be minutes of its requests.
            self._drop(connection)
            return
        for _ in range(min(TURN, len(connection.bodies))):
            if connection.closed:
                return
            self._request(connection, connection.next_body())
        self._count(connection)
        if connection.bodies:
            self._await_turn(connection)
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
                # nobody knows which of the descriptors were its own: the next request would be given the wrong ones
                self._drop(connection)
            return
        if connection.greeted:
            self._verbs.handle(connection, request)
        elif self._verbs.greet(connection, request):
            connection.greeted = True
        else:
            self._drop(connection)

    def _watch_output(self, connection: Connection) -> None:
        self._count(connection)
        if connection.unsent_size > MAX_UNSENT and connection.messages > 1:
            self._drop_slow(connection, f"it left {connection.unsent_size} bytes unread, at most {MAX_UNSENT} are held")
        self._relieve_output(connection)
        if not connection.closed:
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
        self._count(connection)
        self._runtime.feed(ClientGone(trio.current_time(), connection.number))


def _need(holder: Holder) -> Need:
    return Need.OWNER if holder.owner else Need.CLIENT
