"""Sockets whose bytes go to the daemon of another node, through its actor and this one.

Each byte that a client writes goes in a call of the other node's actor, and what that node's daemon answers comes back in calls of
this one. One thread waits for all sockets; calls of one node are made in their order, a few at a time."""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ..protocol.messages import FLEET_VERSION, Error, pack_message
from ..protocol.types import ErrorCode

OPEN, DATA, CLOSE = range(3)
Message = tuple[str, int, bytes]
"""The tunnel's name, what is said of it, and bytes: for `OPEN` the version of these messages."""

PIECE = 256 * 1024
"""Bytes of one message. Ray passes longer ones through its object store."""
IN_FLIGHT = 8
"""Calls of one node that are not answered. A slow node must not make this one keep all that is sent to it."""

Call = Callable[[str, list[Message], Callable[[list[str] | None], None]], None]
"""Calls a node with messages. The last argument is called, in any thread, with the tunnels that it does not know, or `None` if it
cannot be reached."""


class Tunnel(NamedTuple):
    name: str
    node: str
    sock: socket.socket


class Tunnels:
    def __init__(self, daemon: str, node: str, call: Call) -> None:
        self._daemon = daemon
        self._node = node
        self._call = call
        self._lock = threading.Lock()
        self._tunnels: dict[str, Tunnel] = {}
        self._by_fd: dict[int, Tunnel] = {}
        self._out: dict[str, list[Message]] = {}
        """Messages for each node that no call has taken."""
        self._in_flight: dict[str, int] = {}
        self._resting: dict[str, set[int]] = {}
        """Sockets that are not read, because their node has calls enough."""
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._number = 0
        self._nonce = os.urandom(4).hex()
        threading.Thread(target=self._run, name="tunnels", daemon=True).start()

    def open(self, node: str, sock: socket.socket) -> None:
        """Pass on what comes through a socket to the daemon of a node, and what that answers."""
        with self._lock:
            self._number += 1
            name = f"{self._node}.{self._nonce}.{self._number}"
            self._say(node, (name, OPEN, str(FLEET_VERSION).encode()))
            self._add(Tunnel(name, node, sock))
        self._notify()

    def deliver(self, node: str, messages: list[Message]) -> list[str]:
        """Take messages of another node's actor. Return the tunnels that are not known here."""
        unknown = []
        for name, kind, data in messages:
            with self._lock:
                tunnel = self._tunnels.get(name)
                if kind == OPEN and tunnel is None:
                    self._opened(node, name, data)
                elif tunnel is None and kind == DATA:
                    unknown.append(name)
                elif tunnel is not None and kind == CLOSE:
                    self._close(tunnel, tell=False)
            if tunnel is not None and kind == DATA:
                self._write(tunnel, data)
        self._notify()
        return unknown

    def _opened(self, node: str, name: str, version: bytes) -> None:
        if version != str(FLEET_VERSION).encode():
            message = (
                f"node {self._node} has version {FLEET_VERSION} of the fleet's messages, and node {node} version "
                f"{version.decode()}: install one version of sfad on both"
            )
            error = Error(id=0, code=ErrorCode.UNSUPPORTED_VERSION, message=message)
            self._say(node, (name, DATA, bytes(pack_message(error))))
            self._say(node, (name, CLOSE, b""))
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(self._daemon)
        except OSError as error:
            sock.close()
            refusal = Error(id=0, code=ErrorCode.UNAVAILABLE, message=f"the daemon of node {self._node}: {error.strerror}")
            self._say(node, (name, DATA, bytes(pack_message(refusal))))
            self._say(node, (name, CLOSE, b""))
            return
        self._add(Tunnel(name, node, sock))

    def _write(self, tunnel: Tunnel, data: bytes) -> None:
        try:
            tunnel.sock.settimeout(30.0)  # the daemon drops clients that do not read, and a client that does not may stay away
            tunnel.sock.sendall(data)
        except OSError:
            with self._lock:
                self._close(tunnel, tell=True)

    # ---- with the lock held

    def _add(self, tunnel: Tunnel) -> None:
        self._tunnels[tunnel.name] = self._by_fd[tunnel.sock.fileno()] = tunnel
        self._poll.register(tunnel.sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP)

    def _close(self, tunnel: Tunnel, *, tell: bool) -> None:
        if self._tunnels.pop(tunnel.name, None) is None:
            return
        fd = tunnel.sock.fileno()
        self._by_fd.pop(fd, None)
        resting = fd in self._resting.get(tunnel.node, ())
        if resting:
            self._resting[tunnel.node].discard(fd)
        else:
            with suppress(OSError):
                self._poll.unregister(fd)
        tunnel.sock.close()
        if tell:
            self._say(tunnel.node, (tunnel.name, CLOSE, b""))

    def _say(self, node: str, message: Message) -> None:
        self._out.setdefault(node, []).append(message)

    # ---- the thread

    def _notify(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake:
                    with suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                else:
                    self._read(fd)
            self._send()

    def _read(self, fd: int) -> None:
        with self._lock:
            tunnel = self._by_fd.get(fd)
            if tunnel is None:
                return
            if self._in_flight.get(tunnel.node, 0) >= IN_FLIGHT:
                self._poll.unregister(fd)
                self._resting.setdefault(tunnel.node, set()).add(fd)
                return
            try:
                data = tunnel.sock.recv(PIECE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._say(tunnel.node, (tunnel.name, DATA, data))
            else:
                self._close(tunnel, tell=True)

    def _send(self) -> None:
        with self._lock:
            ready = {node: out for node, out in self._out.items() if out and self._in_flight.get(node, 0) < IN_FLIGHT}
            for node in ready:
                del self._out[node]
                self._in_flight[node] = self._in_flight.get(node, 0) + 1
        for node, messages in ready.items():
            self._call(node, messages, lambda unknown, node=node: self._answered(node, unknown))  # type: ignore[misc]

    def _answered(self, node: str, unknown: list[str] | None) -> None:
        with self._lock:
            self._in_flight[node] -= 1
            for fd in self._resting.pop(node, ()):
                self._poll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)
            if unknown is None:
                self._out.pop(node, None)
            lost = [each for each in self._tunnels.values() if each.node == node and (unknown is None or each.name in unknown)]
            for tunnel in lost:
                self._close(tunnel, tell=False)
        self._notify()
