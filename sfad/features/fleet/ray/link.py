"""The actor's end of the connection to its daemon."""

import os
import socket
import threading
from collections.abc import Callable

from ....protocol.conversation import Answer, Conversation, hello
from ....protocol.framing import ProtocolError
from ....protocol.messages import Done, Welcome, pack_message
from ....protocol.requests.base import Request
from ..messages import ACTOR_VERSION, FleetPush, FleetTold, ServeFleet

AGAIN = 0.3
"""Seconds between attempts to connect to the daemon."""


class Link:
    """The actor's connection to its daemon, made again whenever it is lost."""

    def __init__(
        self,
        node: str,
        daemon: str,
        way: Callable[[FleetPush, int], None],
        do: Callable[[FleetPush], None],
        displaced: Callable[[], None],
        *,
        ray: str = "",
        raylet: int = 0,
    ) -> None:
        """`ray`: its version; `raylet`: the process that has started the actor."""
        self._ray, self._raylet = ray, raylet
        self._node = node
        self._daemon = daemon
        self._way = way
        self._do = do
        self._displaced = displaced
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._last = 1
        self._conversation = Conversation()
        self._closed = threading.Event()
        self.connected = False

    def send(self, told: FleetTold) -> None:
        """Tell the daemon something, unless the connection is lost: then it asks again."""
        with self._lock:
            if self._sock is not None:
                self._last += 1
                told.id = self._last
                self._write(told)

    def _write(self, message: Request) -> None:
        assert self._sock is not None
        try:
            self._sock.sendall(pack_message(message))
        except OSError:
            self.connected = False  # the reader notices, too

    def serve(self) -> None:
        while True:
            try:
                self._connect()
                self._read()
            except (OSError, ProtocolError):
                pass
            finally:
                self.connected = False
                with self._lock:
                    if self._sock is not None:
                        self._sock.close()
                        self._sock = None
                for descriptor in self._conversation.take_unclaimed():
                    os.close(descriptor)
            if self._closed.wait(AGAIN):
                return

    def close(self) -> None:
        """End the connection, and do not make it again."""
        self._closed.set()
        with self._lock:
            if self._sock is not None:
                self._sock.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(self._daemon)
        except OSError:
            sock.close()
            raise
        with self._lock:
            self._sock, self._last = sock, 1
            sock.sendall(hello(f"fleet actor {os.getpid()}"))
            self._write(
                ServeFleet(
                    id=1,
                    node=self._node,
                    version=ACTOR_VERSION,
                    ray=self._ray,
                    raylet=self._raylet,
                )
            )

    def _read(self) -> None:
        self._conversation, sock = Conversation(), self._sock
        assert sock is not None
        while True:
            for answer in self._conversation.read(sock):
                self._take(answer)

    def _take(self, answer: Answer) -> None:
        match reply := answer.reply:
            case Welcome():
                pass
            case Done():
                self.connected = True
            case FleetPush(what="way"):
                self._way(reply, *answer.descriptors)
            case FleetPush(what="end"):
                self._displaced()
            case FleetPush():
                self._do(reply)
            case _:
                raise ConnectionAbortedError(str(reply))
