"""Asks the kernel which user has a TCP connection (sock_diag(7))."""

import os
import socket
import struct

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
NO_PEER: Address = ("0.0.0.0", 0)  # noqa: S104
"""The remote end of a listener."""


def user_of(local: Address, remote: Address) -> int | None:
    """Return the uid that has the IPv4 socket between these addresses; `None` if no process has it any more. It takes some
    microseconds, however many connections the machine has. Raise `OSError` if the kernel does not tell."""
    ends = _ENDS.pack(local[1], remote[1], *(socket.inet_aton(host) for host, _ in (local, remote)), _ANY_INTERFACE, _NO_COOKIE)
    wanted = _WANTED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
        answer = kernel.recv(4096)  # the kernel has answered within send(2)
    if _HEADER.unpack_from(answer)[1] == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    uid, inode = _FOUND.unpack_from(answer, _HEADER.size)
    return int(uid) if inode else None
