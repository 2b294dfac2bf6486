"""The kernel's events of execve(2), for all processes of the machine: the proc connector (linux/cn_proc.h).

Linux 6.6 and later tells every user, earlier ones only root; not in a container's pid or user namespace. So an attempt says
whether it can be had.
"""

import ctypes
import os
import socket
import struct
from typing import Self

_NETLINK_CONNECTOR = 11
_CN_IDX_PROC = _CN_VAL_PROC = 1
_PROC_CN_MCAST_LISTEN = 1
_NLMSG_DONE = 3
_SO_ATTACH_FILTER = 26
_HEADERS = struct.Struct("=IHHIIIIIIHH")
"""`nlmsghdr` and `cn_msg`."""
_EVENT = struct.Struct("=IIQII")
"""The beginning of `proc_event`: what, cpu, time; for an exec the thread and the process; for the answer its error."""
_ANSWER, _EXEC = 0, 2
_INSTRUCTION = struct.Struct("HBBI")
_FILTER = (
    (0x20, 0, 0, _HEADERS.size),  # load `what`, in network order
    (0x15, 2, 0, socket.htonl(_EXEC)),
    (0x15, 1, 0, socket.htonl(_ANSWER)),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)  # fmt: skip
"""Drops forks and exits in the kernel (bpf(2), classic)."""
_BUFFER = 1 << 20
"""Bytes, of which the kernel gives no more than net.core.rmem_max: 200 KiB hold 270 events."""
_READ_AT_ONCE = 1000


class ExecEvents:
    """A socket that becomes readable when a process has executed a program. Raises `OSError` if the kernel does not tell."""

    def __init__(self) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_CONNECTOR)
        try:
            self._subscribe()
        except BaseException:
            self._socket.close()
            raise

    def _subscribe(self) -> None:
        code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*each) for each in _FILTER))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_FILTER), ctypes.addressof(code)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._socket.bind((0, _CN_IDX_PROC))
        listen = struct.pack("=I", _PROC_CN_MCAST_LISTEN)
        size = _HEADERS.size + len(listen)
        ids = (_CN_IDX_PROC, _CN_VAL_PROC, 0, 0, len(listen), 0)
        self._socket.send(_HEADERS.pack(size, _NLMSG_DONE, 0, 0, 0, *ids) + listen)
        # the kernel has answered within send(2), or does not answer at all
        for _ in range(_READ_AT_ONCE):
            what, number = self._next()
            if what == _ANSWER:
                if number:
                    raise OSError(number, os.strerror(number))
                return
        raise BlockingIOError

    def fileno(self) -> int:
        return self._socket.fileno()

    def pids(self) -> set[int] | None:
        """Return the processes that have executed a program since the last call. `None`: some events were lost."""
        found = set()
        try:
            for _ in range(_READ_AT_ONCE):
                what, pid = self._next()
                if what == _EXEC:
                    found.add(pid)
        except BlockingIOError:
            pass
        except OSError:  # ENOBUFS: there were too many for the buffer
            return None
        return found

    def _next(self) -> tuple[int, int]:
        """Return what happened, and the process, or the error of an answer."""
        message = self._socket.recv(4096)
        if len(message) < _HEADERS.size + _EVENT.size:
            return -1, 0
        what, _, _, thread_or_error, process = _EVENT.unpack_from(message, _HEADERS.size)
        return what, thread_or_error if what == _ANSWER else process

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
