"""The kernel's events of execve(2) and fork(2), for all processes of the machine: the proc
connector (linux/cn_proc.h).

Linux 6.6 and later tells every user, earlier ones only root; not in a container's pid or user
namespace. So an attempt says whether it can be had.
"""

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Self

_NETLINK_CONNECTOR = 11
_CN_IDX_PROC = _CN_VAL_PROC = 1
_PROC_CN_MCAST_LISTEN = 1
_NLMSG_DONE = 3
_SO_ATTACH_FILTER = 26
_HEADERS = struct.Struct("=IHHIIIIIIHH")
"""`nlmsghdr` and `cn_msg`."""
_EVENT = struct.Struct("=IIQII")
"""The beginning of `proc_event`: what, cpu, time; for an exec the thread and the process; for the
answer its error."""
_ANSWER, _FORK, _EXEC = 0, 1, 2
_CHILD = _HEADERS.size + 16 + 8
"""Where the event of a fork has the pid of the new thread."""
_INSTRUCTION = struct.Struct("HBBI")
_LOAD_WORD, _LOAD_BYTE, _RETURN = (0x20, 0, 0), (0x30, 0, 0), (0x06, 0, 0)
_EQUAL, _AT_LEAST, _SUBTRACT, _SHIFT, _OR_X, _TO_X = (
    0x15,
    0x35,
    (0x14, 0, 0),
    (0x64, 0, 0),
    (0x4C, 0, 0),
    (0x07, 0, 0),
)
_DROP, _PASS = (*_RETURN, 0), (*_RETURN, 0xFFFFFFFF)
_Code = Iterable[tuple[int, int, int, int]]
"""A program of bpf(2), classic: the kernel drops the events that no one needs."""
_BUFFER = 1 << 20
"""Bytes, of which the kernel gives no more than net.core.rmem_max: 200 KiB hold 270 events."""
_READ_AT_ONCE = 1000


def _passing(kind: int, condition: _Code, *, answers: bool) -> _Code:
    """Return the code that passes the events of a kind if the condition does not drop them, and
    perhaps answers."""
    yield (*_LOAD_WORD, _HEADERS.size)  # `what`, in network order
    if answers:
        yield (_EQUAL, 0, 1, socket.htonl(_ANSWER))
        yield _PASS
    yield (_EQUAL, 1, 0, socket.htonl(kind))
    yield _DROP
    yield from condition
    yield _PASS


def _child_from(first: int, count: int) -> _Code:
    """Return the code that drops forks before a pid has been given out `count` pids after `first`.
    A lower pid, given out when the numbers had begun again, counts as far after it."""
    offsets = [
        _CHILD + place for place in (range(3, -1, -1) if sys.byteorder == "little" else range(4))
    ]
    yield (*_LOAD_BYTE, offsets[0])
    for offset in offsets[1:]:
        yield (*_SHIFT, 8)
        yield (*_TO_X, 0)
        yield (*_LOAD_BYTE, offset)
        yield (*_OR_X, 0)
    yield (*_SUBTRACT, first)
    yield (_AT_LEAST, 1, 0, count)
    yield _DROP


class _ProcessEvents:
    """A socket that becomes readable when the kernel tells an event of a kind that `condition` does
    not drop. Raises `OSError` if it tells none."""

    def __init__(self, kind: int, condition: Iterable[tuple[int, int, int, int]] = ()) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            _NETLINK_CONNECTOR,
        )
        condition = list(condition)
        try:
            self._filter(_passing(kind, condition, answers=True))
            self._subscribe()
            # every listener of the machine hears the answer to each new one
            self._filter(_passing(kind, condition, answers=False))
        except BaseException:
            self._socket.close()
            raise

    def _filter(self, code: _Code) -> None:
        instructions = [_INSTRUCTION.pack(*each) for each in code]
        packed = ctypes.create_string_buffer(b"".join(instructions))
        program = struct.pack("HP", len(instructions), ctypes.addressof(packed))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _subscribe(self) -> None:
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


class ExecEvents(_ProcessEvents):
    """Readable when a process has executed a program."""

    def __init__(self) -> None:
        super().__init__(_EXEC)

    def pids(self) -> set[int] | None:
        """Return the processes that have executed a program since the last call. `None`: some
        events were lost."""
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


class ForkAlarm(_ProcessEvents):
    """Readable when the machine has given out `count` pids after the pid `last`, to processes or
    threads, and some more was forked since this was made."""

    def __init__(self, last: int, count: int) -> None:
        super().__init__(_FORK, _child_from(last, count))
