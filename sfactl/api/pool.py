"""Connections that threads take turns with. A thread that waits for a reply has one to itself, so
one `Daemon` serves any number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..connecting import connection
from ..connecting.connection import Client
from ..connecting.start_daemon import connect_or_start
from ..errors import of_quit
from ..exits import Quit
from .asking import Call

R = TypeVar("R")

KEPT = 8
"""Connections without a request that are kept for the next one."""


def opener(socket: str | None, *, start: bool, fleet: bool) -> Callable[[], Client]:
    """Return what opens a connection: to the daemon that `sfactl` would speak to, which is started
    if there is none."""
    place = f"{connection.FLEET}{socket or ''}" if fleet else socket
    return lambda: connect_or_start(place) if start else connection.connect(place)


class Pool:
    def __init__(self, opened: Callable[[], Client]) -> None:
        self._opened = opened
        self._lock = threading.Lock()
        self._idle: list[Client] = []
        self._closed = False
        self._process = os.getpid()

    def carry_out(self, call: Call[R], patience: float | None = None) -> R:
        """Ask, and return what is made of the reply. `patience`: seconds to wait for it. Raise
        `SfadError`, and `ValueError` for a wrong argument."""
        try:
            with self.client() as client:
                client.be_patient(patience)
                reply = client.call(call.request, call.expected)
        except Quit as error:
            raise of_quit(error) from None
        return call.result(reply)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Have a connection to oneself. It is closed after an exception, because its reply may
        still come. Raise `Quit`."""
        client = self._take()
        try:
            if client.closed_by_daemon():
                client.reconnect("nothing was sent")
            yield client
        except connection.DaemonError:
            self._give_back(client)
            raise
        except BaseException:
            client.close()
            raise
        self._give_back(client)

    @contextmanager
    def alone(self) -> Iterator[Client]:
        """Have a connection that no other request uses afterwards. Raise `Quit`."""
        client = self._opened()
        try:
            yield client
        finally:
            client.close()

    def _take(self) -> Client:
        with self._lock:
            if self._process != os.getpid():
                # a child of fork() has our sockets, and would read our replies
                self._process, self._idle = os.getpid(), []
            if self._idle:
                return self._idle.pop()
        return self._opened()

    def _give_back(self, client: Client) -> None:
        with self._lock:
            if not (self._closed or client.closed or len(self._idle) >= KEPT):
                self._idle.append(client)
                return
        client.close()

    def close(self) -> None:
        """Close the connections, and each that is in use once it is not any more."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for client in idle:
            client.close()
