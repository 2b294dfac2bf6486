"""Which processes have the two ends of a Unix socket, and which have the socket that listens on a
port: unix_diag (sock_diag(7)), /proc/net and /proc/PID/fd."""

import os
import re
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress

from msgspec import Struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_A_DUMP = 0x301
_ERROR, _DONE = 2, 3
_SHOW_NAME_AND_PEER = 1 | 4
_NAME, _PEER = 0, 2
"""linux/unix_diag.h"""
_ESTABLISHED = 1 << 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_MESSAGE = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class UnixConnection(Struct, frozen=True):
    """A connection to a Unix socket that has a path."""

    path: str
    """Where the server listens."""
    server: int
    """The inode of the server's end."""
    client: int


def unix_connections() -> list[UnixConnection]:
    """Return the connections whose server is in this network namespace. Raises `OSError`."""
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as kernel:
        kernel.settimeout(1.0)
        body = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ESTABLISHED, 0, _SHOW_NAME_AND_PEER, 0, 0)
        head = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_A_DUMP, 1, 0)
        kernel.sendto(head + body, (0, 0))
        return list(_connections(kernel))


def _connections(kernel: socket.socket) -> Iterator[UnixConnection]:
    while True:
        answer, at = kernel.recv(64 << 10), 0
        while at + _HEADER.size <= len(answer):
            size, kind, *_ = _HEADER.unpack_from(answer, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                (error,) = struct.unpack_from("=i", answer, at + _HEADER.size)
                raise OSError(-error, os.strerror(-error))
            found = _connection(answer[at + _HEADER.size : at + size])
            if found is not None:
                yield found
            at += (size + 3) & ~3


def _connection(body: bytes) -> UnixConnection | None:
    inode, at = _MESSAGE.unpack_from(body)[4], _MESSAGE.size
    path, peer = "", 0
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        value = body[at + _ATTRIBUTE.size : at + size]
        if kind == _NAME:
            path = os.fsdecode(value.rstrip(b"\0"))
        elif kind == _PEER:
            (peer,) = struct.unpack("=I", value)
        at += max((size + 3) & ~3, _ATTRIBUTE.size)
    return UnixConnection(path, inode, peer) if path.startswith("/") and peer else None


def listening(port: int, pid: int) -> set[int]:
    """Return the inodes of the sockets that listen on a TCP port, as a process sees them."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}") as file:
            for line in file.read().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[9]))
    return found


def holders(inodes: Collection[int]) -> dict[int, set[int]]:
    """Return the processes that have these sockets open, as far as this user may see, by inode."""
    found: dict[int, set[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{entry}/fd"):
                with suppress(OSError):
                    is_socket = _SOCKET.fullmatch(os.readlink(f"/proc/{entry}/fd/{descriptor}"))
                    if is_socket is not None and int(is_socket[1]) in inodes:
                        found.setdefault(int(is_socket[1]), set()).add(int(entry))
    return found
