"""Who is at the other end of a socket, from the kernel alone: nothing that a client says of itself is asked."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
import sys
from functools import lru_cache
from typing import Protocol

from ..core.access import Peer
from ..launch.base import Launcher, Unplaceable
from ..protocol.types import RunId

SO_PEERPIDFD = 77
"""Linux 6.5. A pidfd of the process that connected: its pid may be another's by now, the pidfd is not."""
_UCRED = struct.Struct("=iII")


class Connection(Protocol):
    """An accepted AF_UNIX connection: a `socket.socket` or trio's."""

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        """See getsockopt(2)."""


def identify(connection: Connection, launcher: Launcher) -> Peer:
    """The peer, and the run that it is in; one that cannot be placed says so and is refused everything.

    The credentials are those of the moment it connected. Takes less than 0.1 ms; the name of a uid is asked for once.
    """
    try:
        pid, uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError as error:
        return Peer(uid=-1, user="unknown", owner=False, unplaced=f"the kernel would not tell: {error.strerror}")
    owner = uid in (0, os.geteuid())
    try:
        run = _place(connection, launcher, pid)
    except Unplaceable as why:
        return Peer(uid=uid, user=user_name(uid), owner=owner, unplaced=str(why))
    except (OSError, ValueError) as error:  # no descriptor is free, for example
        what = error.strerror if isinstance(error, OSError) else type(error).__name__
        return Peer(uid=uid, user=user_name(uid), owner=owner, unplaced=f"the process could not be looked at: {what}")
    return Peer(uid=uid, user=user_name(uid), owner=owner, run=run)


def run_of(pid: int, launcher: Launcher) -> RunId | None:
    """The run that a process is in now; `None` if in none. Raises `Unplaceable` and `OSError`."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise Unplaceable("it ended before it could be placed") from error
    try:
        return launcher.place(pid, pidfd)
    finally:
        os.close(pidfd)


def _place(connection: Connection, launcher: Launcher, pid: int) -> str | None:
    pidfd = _pidfd(connection)
    try:
        return launcher.place(pid, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _pidfd(connection: Connection) -> int | None:
    """The peer's pidfd; `None` on a kernel without it. Raises `Unplaceable`."""
    try:
        answer = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except ProcessLookupError as error:
        raise Unplaceable("the process ended before it could be placed") from error
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise Unplaceable(f"the kernel would not tell: {error.strerror}") from error
    return int.from_bytes(answer, sys.byteorder, signed=True)


def user_name(uid: int) -> str:
    """The name of a uid, or its number."""
    try:
        return _known_name(uid)
    except (KeyError, OSError):
        return str(uid)


@lru_cache(maxsize=1024)
def _known_name(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name  # what cannot be told now is not remembered
