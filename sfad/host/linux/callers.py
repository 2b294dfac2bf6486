"""What the kernel says of TCP connections (sock_diag(7)): who is at the other end of one on
loopback, and where others lead.

An agent can choose neither its user nor its cgroup. A socket keeps the cgroup in which it was made,
wherever its process moves.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
NLM_F_DUMP = 0x300
NLMSG_ERROR = 2
NLMSG_DONE = 3
INET_DIAG_INFO, INET_DIAG_CGROUP_ID = 2, 21
"""linux/inet_diag.h. The second since Linux 5.8."""
_ANY = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_ACKED_AND_RECEIVED = struct.Struct("=QQ")
_CARRIED_AT, _SEGMENTS, _SEGMENTS_AT = 120, struct.Struct("=I"), 156
"""Of tcp_info (linux/tcp.h): tcpi_bytes_acked and tcpi_bytes_received, and tcpi_data_segs_out."""
_NUMBER, _NUMBER_AT = struct.Struct("=Q"), 44
"""Of inet_diag_msg: what tells a socket from others that have its addresses later."""
_ID = struct.Struct("!HH16s16s")
_INTERFACE_COOKIE = struct.Struct("=III")
_MESSAGE_SIZE = 72
"""Of inet_diag_msg; attributes follow."""
_UID_AND_INODE = struct.Struct("=II")
_UID_AT = 64
_PORT, _PORT_AT = struct.Struct("!H"), 6
_PEER_AT = 24
"""Of the port and the address of the other end."""
_ESTABLISHED = 1 << 1
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address in an IPv6 socket."""
_ATTRIBUTE = struct.Struct("=HH")
_DUMP_SIZE = 64 << 10
"""Bytes: the kernel fills a message of a dump up to 32 KiB."""


@dataclass(frozen=True)
class Caller:
    uid: int
    cgroup: int | None
    """The inode of the cgroup's directory; `None` if the kernel does not say."""
    inode: int = field(default=0, compare=False)
    """Of its socket, as /proc/PID/fd names it."""


class Opened(NamedTuple):
    """A TCP connection, as its opener has it."""

    cgroup: int
    """The inode of the directory of the cgroup in which its socket was made."""
    host: bytes
    """The address of its other end, packed."""
    port: int
    number: int = 0
    """The kernel's, which no other connection has."""
    sent: int = 0
    """Bytes that the other end has acknowledged."""
    received: int = 0
    segments: int = 0
    """The pieces in which it was sent."""
    inode: int = 0
    """As /proc/PID/fd names it."""

    @property
    def before(self) -> "Opened":
        """The same when nothing had been sent."""
        return self._replace(sent=0, received=0, segments=0)


class Accepted(Protocol):
    """A `socket.socket` or trio's."""

    @property
    def family(self) -> int: ...
    def getsockname(self) -> Any: ...
    def getpeername(self) -> Any: ...


class ConnectionTable:
    """Asks the kernel about connections."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
        )
        self._socket.settimeout(1.0)
        self._asked = 0

    def caller(self, connection: Accepted) -> Caller | None:
        """Return who opened an accepted connection, or `None` if its other end is closed already.
        Raises `OSError`."""
        try:
            self._ask(connection)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                return None
            raise
        while True:
            answer = self._socket.recv(8192)
            # and not the answer to a question that took too long
            if _HEADER.unpack_from(answer)[3] == self._asked:
                return _read(answer)

    def connections(self, ports: Collection[int]) -> set[Opened]:
        """Return the established TCP connections to these ports, of all processes in this network
        namespace. Raises `OSError`."""
        found = set()
        for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
            self._send(
                _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), _ESTABLISHED)
                + bytes(_ID.size + _INTERFACE_COOKIE.size),
                NLM_F_DUMP,
            )
            for body in self._dumped():
                (port,) = _PORT.unpack_from(body, _PORT_AT)
                cgroup = _cgroup(body) if port in ports else None
                if cgroup is not None:
                    host = bytes(body[_PEER_AT : _PEER_AT + size]).removeprefix(_MAPPED)
                    (number,) = _NUMBER.unpack_from(body, _NUMBER_AT)
                    _, inode = _UID_AND_INODE.unpack_from(body, _UID_AT)
                    found.add(Opened(cgroup, host, port, number, *_carried(body), inode))
        return found

    def _dumped(self) -> Iterator[memoryview]:
        """Yield the messages of an answer that has several."""
        while True:
            answer, at = memoryview(self._socket.recv(_DUMP_SIZE)), 0
            while at + _HEADER.size <= len(answer):
                size, kind, _, asked, _ = _HEADER.unpack_from(answer, at)
                if asked == self._asked and kind == NLMSG_DONE:
                    return
                if asked == self._asked and kind == NLMSG_ERROR:
                    (error,) = struct.unpack_from("=i", answer, at + _HEADER.size)
                    raise OSError(-error, os.strerror(-error))
                if asked == self._asked:
                    yield answer[at + _HEADER.size : at + size]
                at += (size + 3) & ~3

    def _ask(self, connection: Accepted) -> None:
        here, there = connection.getsockname(), connection.getpeername()
        body = _REQUEST.pack(connection.family, socket.IPPROTO_TCP, 0, _ANY)
        # from the caller's side: its own address is the source
        body += _ID.pack(
            there[1],
            here[1],
            _packed(connection.family, there[0]),
            _packed(connection.family, here[0]),
        )
        body += _INTERFACE_COOKIE.pack(0, _ANY, _ANY)
        self._send(body)

    def _send(self, body: bytes, more: int = 0) -> None:
        self._asked = (self._asked + 1) % _ANY
        self._socket.send(
            _HEADER.pack(
                _HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | more, self._asked, 0
            )
            + body
        )

    def close(self) -> None:
        self._socket.close()


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address).ljust(16, b"\0")


def _read(answer: bytes) -> Caller | None:
    size, kind, *_ = _HEADER.unpack_from(answer)
    if kind == NLMSG_ERROR:
        return None
    body = answer[_HEADER.size : size]
    uid, inode = _UID_AND_INODE.unpack_from(body, _UID_AT)
    if not inode:  # no process has it open
        return None
    return Caller(uid, _cgroup(body), inode)


def _cgroup(body: bytes | memoryview) -> int | None:
    value = _attribute(body, INET_DIAG_CGROUP_ID)
    return int.from_bytes(value, sys.byteorder) if value is not None else None


def _carried(body: memoryview) -> tuple[int, int, int]:
    """Return the bytes that a connection has sent and received, and the pieces of the first."""
    info = _attribute(body, INET_DIAG_INFO)
    if info is None or len(info) < _SEGMENTS_AT + _SEGMENTS.size:  # before Linux 4.6
        return 0, 0, 0
    acked, received = _ACKED_AND_RECEIVED.unpack_from(info, _CARRIED_AT)
    return acked, received, *_SEGMENTS.unpack_from(info, _SEGMENTS_AT)


def _attribute(body: bytes | memoryview, wanted: int) -> bytes | None:
    at = _MESSAGE_SIZE
    while at + _ATTRIBUTE.size <= len(body):
        length, name = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        if name == wanted:
            return bytes(body[at + _ATTRIBUTE.size : at + length])
        at += (length + 3) & ~3
    return None
