"""Tells when agents hang up. One epoll(7) for all their connections: a task for each call that
waits for it costs a tenth of the call."""

import select
from contextlib import closing

import trio

from ....host.http_connection import HttpConnection


class HangupWatch:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, HttpConnection] = {}
        """By descriptor."""

    def add(self, connection: HttpConnection) -> None:
        """Watch a connection until it is removed. Raises `OSError`."""
        if self._epoll.closed:
            return  # the gateway ends
        descriptor = connection.stream.socket.fileno()
        self._epoll.register(descriptor, select.EPOLLRDHUP)
        self._connections[descriptor] = connection

    def remove(self, connection: HttpConnection) -> None:
        """Watch it no more, before it is closed."""
        descriptor = connection.stream.socket.fileno()
        if self._connections.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    async def serve(self) -> None:
        """Tell of each, until cancelled."""
        with closing(self._epoll):
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0):
                    self._epoll.unregister(descriptor)
                    self._connections.pop(descriptor).hang_up()
