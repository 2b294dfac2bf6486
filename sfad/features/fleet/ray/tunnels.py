"""Sockets whose bytes go to the daemon of another node, through its actor and this one.

Each byte that a client writes goes in a call of the other node's actor, and what that node's daemon
answers comes back in calls of this one. One thread waits for all sockets; calls of one node are
made in their order, a few at a time."""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from ....protocol.messages import Error, pack_message
from ....protocol.types import ErrorCode
from ..messages import FLEET_VERSION, VERSIONS_DIFFER

OPEN, DATA, CLOSE = range(3)
Message = tuple[str, int, bytes]
"""The tunnel's name, what is said of it, and bytes: for `OPEN` the version of these messages."""

PIECE = 256 * 1024
"""Bytes of one message. Ray passes longer ones through its object store."""
IN_FLIGHT = 8
"""Calls of one node that are not answered. A slow node must not make this one keep all that is sent
to it."""

Call = Callable[[str, list[Message], Callable[[list[str] | None], None]], None]
"""Calls a node with messages. The last argument is called, in any thread, with the tunnels that it
does not know, or `None` if it cannot be reached."""


MAX_UNSENT = 8 << 20
"""Bytes that may wait for a client, or a daemon, that does not read. Then its tunnel is closed:
others must not wait for it."""
_READ = select.EPOLLIN | select.EPOLLRDHUP


class Tunnel(Struct, eq=False):
    name: str
    node: str
    sock: socket.socket
    unsent: bytearray = field(default_factory=bytearray)
    resting: bool = False
    """It is not read, because its node has calls enough."""
    ends: bool = False
    """The other end is closed: so is this one, once all is written."""


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
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._number = 0
        self._nonce = os.urandom(4).hex()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all tunnels, and end the thread."""
        self._closed = True
        self._notify()
        self._thread.join()
        with self._lock:
            for tunnel in list(self._tunnels.values()):
                self._close(tunnel, tell=False)
            self._poll.close()
            if self._wake >= 0:
                os.close(self._wake)
            # calls that are under way still return, and its number may soon be another file's
            self._wake = -1

    def open(self, node: str, sock: socket.socket) -> None:
        """Pass on what comes through a socket to the daemon of a node, and what that answers."""
        with self._lock:
            if self._wake < 0:
                sock.close()
                return
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
                if self._wake < 0:
                    unknown.append(name)
                elif kind == OPEN and tunnel is None:
                    self._opened(node, name, data)
                elif tunnel is None and kind == DATA:
                    unknown.append(name)
                elif tunnel is not None and kind == CLOSE:
                    tunnel.ends = True
                    self._flush(tunnel)
                elif tunnel is not None:
                    tunnel.unsent += data
                    self._flush(tunnel)
        self._notify()
        return unknown

    def _opened(self, node: str, name: str, version: bytes) -> None:
        if version != str(FLEET_VERSION).encode():
            message = (
                f"node {self._node} has version {FLEET_VERSION} of the fleet's messages, "
                f"and node {node} version {version.decode()}: {VERSIONS_DIFFER}"
            )
            error = Error(id=0, code=ErrorCode.UNSUPPORTED_VERSION, message=message)
            self._say(node, (name, DATA, bytes(pack_message(error))))
            self._say(node, (name, CLOSE, b""))
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # where too many wait for the daemon, the others must not wait for this one
        sock.setblocking(False)
        try:
            sock.connect(self._daemon)
        except OSError as error:
            sock.close()
            refusal = Error(
                id=0,
                code=ErrorCode.UNAVAILABLE,
                message=f"the daemon of node {self._node}: {error.strerror}",
            )
            self._say(node, (name, DATA, bytes(pack_message(refusal))))
            self._say(node, (name, CLOSE, b""))
            return
        self._add(Tunnel(name, node, sock))

    # ---- with the lock held

    def _add(self, tunnel: Tunnel) -> None:
        self._tunnels[tunnel.name] = self._by_fd[tunnel.sock.fileno()] = tunnel
        self._poll.register(tunnel.sock.fileno(), _READ)

    def _watch(self, tunnel: Tunnel) -> None:
        reading = 0 if tunnel.resting else _READ
        self._poll.modify(tunnel.sock.fileno(), reading | (select.EPOLLOUT if tunnel.unsent else 0))

    def _flush(self, tunnel: Tunnel) -> None:
        """Write what the socket takes now."""
        try:
            while tunnel.unsent:
                del tunnel.unsent[: tunnel.sock.send(tunnel.unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            if len(tunnel.unsent) > MAX_UNSENT:
                self._close(tunnel, tell=True)
                return
        except OSError:
            self._close(tunnel, tell=True)
            return
        if tunnel.ends and not tunnel.unsent:
            self._close(tunnel, tell=False)
        else:
            self._watch(tunnel)

    def _close(self, tunnel: Tunnel, *, tell: bool) -> None:
        if self._tunnels.pop(tunnel.name, None) is None:
            return
        fd = tunnel.sock.fileno()
        self._by_fd.pop(fd, None)
        with suppress(OSError):
            self._poll.unregister(fd)
        tunnel.sock.close()
        if tell:
            self._say(tunnel.node, (tunnel.name, CLOSE, b""))

    def _say(self, node: str, message: Message) -> None:
        self._out.setdefault(node, []).append(message)

    # ---- the thread

    def _notify(self) -> None:
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._closed:
            for fd, events in self._poll.poll():
                if fd == self._wake:
                    with suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                    continue
                with self._lock:
                    tunnel = self._by_fd.get(fd)
                    if tunnel is not None and events & select.EPOLLOUT:
                        self._flush(tunnel)
                    if tunnel is None or self._by_fd.get(fd) is not tunnel:
                        continue
                    if tunnel.resting and events & (select.EPOLLHUP | select.EPOLLERR):
                        self._close(tunnel, tell=True)  # it would be told again and again
                    elif events & ~select.EPOLLOUT:
                        self._read(tunnel)
            self._send()

    def _read(self, tunnel: Tunnel) -> None:
        if self._in_flight.get(tunnel.node, 0) >= IN_FLIGHT:
            tunnel.resting = True
            self._watch(tunnel)
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
            ready = {
                node: out
                for node, out in self._out.items()
                if out and self._in_flight.get(node, 0) < IN_FLIGHT
            }
            for node in ready:
                del self._out[node]
                self._in_flight[node] = self._in_flight.get(node, 0) + 1
        for node, messages in ready.items():
            self._call(node, messages, lambda unknown, node=node: self._answered(node, unknown))  # type: ignore[misc]

    def _answered(self, node: str, unknown: list[str] | None) -> None:
        with self._lock:
            self._in_flight[node] -= 1
            for tunnel in self._tunnels.values():
                if tunnel.node == node and tunnel.resting:
                    tunnel.resting = False
                    self._watch(tunnel)
            if unknown is None:
                self._out.pop(node, None)
            lost = [
                each
                for each in self._tunnels.values()
                if each.node == node and (unknown is None or each.name in unknown)
            ]
            for tunnel in lost:
                self._close(tunnel, tell=False)
        self._notify()
