"""Whose a TCP connection is, and a listener that accepts only connections of certain users.

The kernel tells which user has the other end of a connection on this machine (sock_diag(7)). A connection of another user is closed
before it can send anything, so that it cannot keep places occupied either.
"""

import os
import socket
import struct
from collections.abc import Callable
from weakref import WeakSet

import trio

_SOCK_DIAG = 4
"""NETLINK_SOCK_DIAG, which the socket module does not name."""
_BY_FAMILY = 20
_REQUEST = 1
_ERROR = 2
_HEADER = struct.Struct("=IHHII")
"""`nlmsghdr`."""
_WANTED = struct.Struct("=BBBBI")
"""The beginning of `inet_diag_req_v2`: family, protocol, extensions, padding, states."""
_ENDS = struct.Struct("!HH16s16sI8s")
"""`inet_diag_sockid`: ports, addresses, interface, cookie."""
_FOUND = struct.Struct("=4x48x12xII")
"""`inet_diag_msg`: of all its fields, uid and inode."""
_ALL_STATES, _ANY_INTERFACE, _NO_COOKIE = 0xFFFFFFFF, 0, b"\xff" * 8
Address = tuple[str, int]
NO_PEER: dict[socket.AddressFamily, Address] = {socket.AF_INET: ("0.0.0.0", 0), socket.AF_INET6: ("::", 0)}  # noqa: S104
"""The remote end of a listener."""

MOST_CONNECTIONS = 256
"""Connections at once. A browser makes six."""
SILENT_MS = 60_000
"""Milliseconds after which a connection is given up whose other end does not acknowledge what was sent: a telephone that sleeps."""


def user_of(family: socket.AddressFamily, local: Address, remote: Address) -> int | None:
    """Return the uid that has the socket between these addresses; `None` if no process has it any more. The kernel is asked
    (sock_diag(7)): some microseconds, however many connections the machine has. Raise `OSError` if it does not tell."""
    hosts = (socket.inet_pton(family, host) for host, _ in (local, remote))
    ends = _ENDS.pack(local[1], remote[1], *hosts, _ANY_INTERFACE, _NO_COOKIE)
    wanted = _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
        answer = kernel.recv(4096)  # the kernel has answered within send(2)
    if _HEADER.unpack_from(answer)[1] == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    uid, inode = _FOUND.unpack_from(answer, _HEADER.size)
    return int(uid) if inode else None


def of_users(uids: frozenset[int]) -> Callable[[trio.SocketStream], bool]:
    """Return a test for connections whose other end is a process of one of these users, on this machine."""

    def accepted(stream: trio.SocketStream) -> bool:
        sock = stream.socket
        try:
            return user_of(sock.family, sock.getpeername()[:2], sock.getsockname()[:2]) in uids
        except OSError:  # it has closed the connection, or no descriptor is free
            return False

    return accepted


def from_address(address: str) -> Callable[[trio.SocketStream], bool]:
    """Return a test for connections that come from this IP address."""

    def accepted(stream: trio.SocketStream) -> bool:
        try:
            return bool(stream.socket.getpeername()[0] == address)
        except OSError:
            return False

    return accepted


class PeerListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts the connections that pass a test, and closes all others at once."""

    def __init__(self, listener: trio.SocketListener, accepts: Callable[[trio.SocketStream], bool]) -> None:
        self._listener = listener
        self._accepts = accepts
        self._open: WeakSet[trio.SocketStream] = WeakSet()

    async def accept(self) -> trio.SocketStream:
        while True:
            stream = await self._listener.accept()  # a checkpoint: who connects without pause does not keep other tasks waiting
            if self._accepts(stream) and self._room():
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS)
                self._open.add(stream)
                return stream
            stream.socket.close()

    def _room(self) -> bool:
        return sum(stream.socket.fileno() >= 0 for stream in self._open) < MOST_CONNECTIONS

    async def aclose(self) -> None:
        await self._listener.aclose()

    def hang_up(self) -> None:
        """Close all connections, also where the other end does not read."""
        for stream in list(self._open):
            stream.socket.close()
