"""One task serves every connection over a nested epoll.

One task for each connection is the textbook way; measured, it served a fifth of the requests a second.
"""

import select
import socket
from collections.abc import Callable

import trio

from ..core.access import Peer
from ..durable.handover import Handover
from ..loop.runtime import Runtime
from .call import Services
from .client_handover import ClientHandover
from .clients import ClientTable
from .dispatch import Dispatcher
from .encoded import Looks
from .listening import Listener
from .receiving import Receiver
from .shares import ClientBounds


class Server:
    """Waits until a client connects, sends or reads, and has the part handle it whose job that is."""

    def __init__(
        self,
        listener: socket.socket,
        runtime: Runtime,
        identify: Callable[[socket.socket], Peer],
        handed: Handover | None = None,
    ) -> None:
        """`handed`: this process was re-executed. Make the server before anything is answered: it takes the clients over."""
        self._epoll = select.epoll()
        bounds = ClientBounds(runtime.descriptors)
        self._clients = ClientTable(self._epoll, runtime, bounds, identify, handed.clients.last_number if handed is not None else 0)
        runtime.measuring.connections = self._clients.by_fd.__len__
        self._looks = Looks()
        services = Services(runtime, bounds, self._clients.by_fd, self._looks)
        dispatcher = Dispatcher(services)
        self._receiver = Receiver(runtime, bounds, self._clients, dispatcher)
        self.handover = ClientHandover(services, self._clients, self._receiver, dispatcher)
        if handed is not None:
            self.handover.take_over(handed.clients, handed.last_token)
        inode = handed.inode if handed is not None else None
        self.listener = Listener(listener, self._epoll, runtime, self._clients.admit, inode)
        self._awake = trio.Event()
        self._awake.set()

    async def serve(self) -> None:
        turns = self._receiver.turns
        while True:
            if not self._awake.is_set():  # else it would let trio look around once more for each request
                await self._awake.wait()
            if turns:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            if not self._awake.is_set():
                continue
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
        if resting:
            self._awake = trio.Event()
        else:
            self._awake.set()

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
