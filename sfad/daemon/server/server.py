"""One task serves every connection over a nested epoll.

One task for each connection is the textbook way; measured, it served a fifth of the requests a
second.
"""

import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import trio
from msgspec import Struct

from ...core.state.access import Peer
from ...durable.handover import Clients, Handover
from ...host import systemd
from ...host.files import identity
from ...host.linux.displacement import Displacement
from ...host.socket_file import (
    PathError,
    Users,
    bind_socket,
    directory_mode,
    socket_mode,
    unbind_socket,
)
from ...protocol.event_types import EventType
from ...protocol.messages import Events, Wait, Watch, WatchRuns
from ...protocol.types import ErrorCode, Severity
from ..loop.resources import Resources
from ..loop.runtime import Runtime
from .asker import Asker, Services, withdraw_calls
from .clients import ClientTable
from .connection import Connection, Looks
from .dispatch import Dispatcher, Receiver
from .shares import ClientBounds
from .verbs.following import push

# ---- The listening socket: it accepts connections, is bound again when another process removes or
# replaces it, and is removed
# at the end, unless systemd bound it.


ACCEPT_PAUSE = 1.0
"""Seconds before the next try when a connection could not be accepted for want of descriptors or
memory."""

MAX_ACCEPTS = 64
"""Connections accepted in one go. A client may connect and hang up in a loop; the others have their
turns in between."""


class Listener:
    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        resources: Resources,
        users: Users,
        admit: Callable[[socket.socket], None],
        tell: Callable[[EventType, str, Severity], object],
        inode: tuple[int, int] | None = None,
    ) -> None:
        """`users`: of `[access]`. `admit` takes each connection. `tell` announces an event of the
        daemon. `inode`: the socket's in the file system, if not the one at its path now."""
        self._path = Path(resources.socket)
        self._epoll = epoll
        self._resources = resources
        self._users = users
        self._admit = admit
        self._tell = tell
        self._log = resources.log
        self._bound_here = not systemd.listens(sock)
        """Whether this daemon has bound what is at the path: else systemd did, which also removes
        it."""
        self._unbound: str | None = None
        """Why no socket could be made in place of the one that is gone."""
        self._listen_on(sock, inode or identity(self._path))
        if self._bound_here and self.inode == identity(self._path):
            # that of the program which this process was before may have served others
            os.chmod(self._path, socket_mode(everyone=resources.everyone))

    def _listen_on(self, sock: socket.socket, inode: tuple[int, int] | None) -> None:
        sock.setblocking(False)
        # accept(2) passes it on to connections, so no message comes without its sender
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._epoll.register(sock, select.EPOLLIN)
        # no other file gets this number while the listener is open: the kernel keeps the inode of a
        # bound socket
        self._sock, self.inode = sock, inode

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 once it is closed."""
        return self._sock.fileno()

    def accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                sock, _address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(error)
                return
            sock.setblocking(False)
            self._admit(sock)

    def _pause(self, error: OSError) -> None:
        # EMFILE, ENFILE, ENOBUFS, ENOMEM: the socket stays readable, and trying again at once would
        # be a busy loop
        self._log.warning(
            f"cannot accept a connection: {error}; trying again in {ACCEPT_PAUSE:g} s"
        )
        self._epoll.modify(self._sock, 0)

        def again() -> None:
            if self._sock.fileno() >= 0:
                self._epoll.modify(self._sock, select.EPOLLIN)

        self._resources.timers.arm("listener", trio.current_time() + ACCEPT_PAUSE, again)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._epoll.unregister(self._sock)
            self._sock.close()

    def remove(self) -> None:
        """Remove the socket that this daemon has bound, once it is closed. Another listener's
        stays."""
        # to look whether a socket of systemd is stale would make it start the service again
        if not self._bound_here or identity(self._path) != self.inode:
            return
        try:
            unbind_socket(self._path, held=Path(self._resources.state_dir))
        except PathError as error:
            self._log.warning(str(error))  # the next daemon finds it stale and replaces it

    async def look_after(self) -> None:
        """Bind the socket again when another process has removed or replaced it, until
        cancelled."""
        settled = False
        while True:
            with Displacement([self._path]) as displacement:
                await self._stay()
                settled = await displacement.wait(settled=settled)

    async def _stay(self) -> None:
        if identity(self._path) == self.inode:
            self._unbound = None
            return
        try:
            # in a thread: any process can keep the directory's lock for half a second
            bound = await trio.to_thread.run_sync(self._bound_again, abandon_on_cancel=True)
        except (PathError, OSError) as error:
            self._tell_unbound(str(error))
            return
        if bound is None:
            return
        self._bound_here = True
        if self._sock.fileno() < 0:  # the daemon is ending, and has stopped accepting meanwhile
            bound[0].close()
            self.inode = bound[1]
            return
        self.accept()  # what has connected to the old one
        self.close()
        self._listen_on(*bound)
        what = (
            f"another process removed or replaced the socket {self._path}; "
            "the daemon has made it again"
        )
        self._log.warning(what)
        self._tell(EventType.DAEMON_SOCKET_RENEWED, what, "medium")

    def _bound_again(self) -> tuple[socket.socket, tuple[int, int] | None] | None:
        if self._sock.fileno() < 0 or identity(self._path) == self.inode:
            return None
        mode = socket_mode(everyone=self._resources.everyone)
        bound = bind_socket(
            self._path,
            held=Path(self._resources.state_dir),
            mode=mode,
            directory_mode=directory_mode(self._users, self._path),
        )
        return bound, identity(self._path)

    def _tell_unbound(self, why: str) -> None:
        if why != self._unbound:
            self._log.error(
                f"another process removed or replaced the socket {self._path}, "
                f"and it cannot be made again: {why}"
            )
        self._unbound = why


# ---- Re-execution: the clients are handed to the program that this process becomes, which takes
# them over


class ClientHandover(Struct, frozen=True):
    """Hands over every connection with its requests, and continues them after execve(2)."""

    services: Services
    clients: ClientTable
    receiver: Receiver
    dispatcher: Dispatcher

    def hand_over(self) -> Clients:
        """Return what `take_over` needs in the next program. Raises `OSError`."""
        now = trio.current_time()
        for connection in list(self.clients.by_fd.values()):
            if connection.peer.gateway:
                withdraw_calls(self.services.runtime.requests, connection, None, why=None)
                # it connects again, and asks again what is not answered
                self.clients.drop(connection)
            else:
                self._give_up(connection)
        answers = {
            token: [
                (asker.connection.number, asker.id)
                for asker in askers
                if isinstance(asker, Asker) and not asker.connection.closed
            ]
            for token, askers in self.services.runtime.requests.askers.items()
        }
        # these connect again by themselves
        connections = [
            each.hand_over(now) for each in self.clients.by_fd.values() if each.on_close is None
        ]
        return Clients(connections, self.clients.last_number, answers)

    def _give_up(self, connection: Connection) -> None:
        """Fail the requests that another thread works on."""
        for request in sorted(connection.deferred):
            message = "the daemon restarted itself before this was done; try again"
            Asker(self.services, connection, request, waits=True).fail(
                ErrorCode.UNAVAILABLE, message
            )
        connection.deferred.clear()

    def take_over(self, handed: Clients, last_token: int) -> None:
        """Take the connections over, and expect the core's answers to their requests. Call this
        before anything is answered."""
        numbered: dict[int, Connection] = {}
        for each in handed.connections:
            numbered[each.number] = connection = self.clients.take_over(each)
            if connection.bodies or connection.ended:
                self.receiver.turns.add(connection)
            if not connection.greeted or (connection.decoder.pending and not connection.bodies):
                self.clients.give_time(connection)
        askers = {
            token: [self.dispatcher.open(numbered[number], request) for number, request in waiting]
            for token, waiting in handed.answers.items()
        }
        self.services.runtime.requests.restore(askers, last_token=last_token)

    def continue_watching(self, handed: Clients) -> None:
        """Push events to the clients that watch runs."""
        for connection, request in self._pending(handed):
            if isinstance(request, Watch):
                push(Asker(self.services, connection, request.id), request.run, calls=request.calls)

    def continue_waiting(self, handed: Clients) -> None:
        """Continue the requests that wait for runs, once the core knows the runs."""
        for connection, request in self._pending(handed):
            if not isinstance(request, Watch):
                self.dispatcher.handle(connection, request)

    def _pending(
        self, handed: Clients
    ) -> Iterator[tuple[Connection, Wait | Watch | WatchRuns | Events]]:
        for each in handed.connections:
            connection = self.clients.by_fd.get(each.fd)
            if connection is not None:
                yield from ((connection, request) for request in each.pending)


# ---- The task that serves every connection


class Server:
    """Waits until a client connects, sends or reads, and has the part handle it whose job that
    is."""

    def __init__(
        self,
        listener: socket.socket,
        runtime: Runtime,
        identify: Callable[[socket.socket], Peer],
        handed: Handover | None = None,
    ) -> None:
        """`handed`: this process was re-executed. Make the server before anything is answered: it
        takes the clients over."""
        self._epoll = select.epoll()
        bounds = ClientBounds(runtime.descriptors)
        resources, live = runtime.resources, runtime.catalogue.live
        last_number = handed.clients.last_number if handed is not None else 0
        self._clients = ClientTable(
            self._epoll,
            resources,
            runtime.requests,
            runtime.feed,
            runtime.catalogue.root,
            bounds,
            identify,
            last_number,
        )
        runtime.connections = self._clients.by_fd.__len__
        self._looks = Looks()
        services = Services(runtime, bounds, self._clients.by_fd, self._looks)
        dispatcher = Dispatcher(services)
        self._receiver = Receiver(resources, live, bounds, self._clients, dispatcher)
        self.handover = ClientHandover(services, self._clients, self._receiver, dispatcher)
        if handed is not None:
            self.handover.take_over(handed.clients, handed.last_token)
        inode = handed.inode if handed is not None else None
        self.listener = Listener(
            listener,
            self._epoll,
            resources,
            runtime.in_force.config.access.users,
            self._clients.admit,
            runtime.announcer.tell,
            inode,
        )
        self._rests = False
        self._goes_on = trio.Event()
        self._ledger = runtime.resources.ledger

    async def serve(self) -> None:
        turns = self._receiver.turns
        while True:
            # else it would let trio look around once more for each request
            if self._rests:
                await self._goes_on.wait()
            if turns.waiting:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            if self._rests:
                continue
            with self._ledger:
                for fd, mask in self._epoll.poll(0, 256):
                    self._ready(fd, mask)
                turns.take()
            self._looks.forget()

    def _ready(self, fd: int, mask: int) -> None:
        connection = self._clients.by_fd.get(fd)
        if connection is None:
            if fd == self.listener.fileno():
                self.listener.accept()
            return
        try:
            if mask & select.EPOLLOUT:
                connection.flush()
                self._clients.watch_output(connection)
            if mask & ~select.EPOLLOUT and not connection.bodies:
                self._receiver.read(connection)
        except Exception:  # noqa: BLE001 - a bug in one connection must not end the others
            self._clients.drop_for_bug(connection)

    def rest(self, *, resting: bool) -> None:
        """Accept no connection and handle no request while resting."""
        self._rests = resting
        if resting:
            self._goes_on = trio.Event()
        else:
            self._goes_on.set()

    async def drained(self) -> None:
        """Return when every reply has been taken by its client."""
        for connection in list(self._clients.by_fd.values()):
            while connection.unsent and not connection.closed:
                await trio.lowlevel.wait_writable(connection.sock)
                connection.flush()

    def close(self) -> None:
        self.listener.close()
        for connection in list(self._clients.by_fd.values()):
            self._clients.drop(connection)
        self._epoll.close()
        self.listener.remove()
