"""The process at the other end of a socket, as the kernel knows it. What a client says of itself does not count."""

import ctypes
import errno
import os
import socket
import sys
from array import array
from collections.abc import Callable
from typing import Protocol

from ..core.access import Peer
from ..host.probe import SO_PEERPIDFD, UCRED, user_name
from ..launch import pidfd
from ..launch.launcher import Launcher, Unplaceable
from ..protocol.types import RunId

SO_PEERGROUPS = 59
"""From asm-generic/socket.h; Python has no name for it."""

_libc = ctypes.CDLL(None, use_errno=True)

MAX_GROUPS = 65536
"""Supplementary groups of a process (NGROUPS_MAX)."""


class Gateway(Protocol):
    @property
    def uid(self) -> int | None:
        """The user whose runs alone it leads."""


def identify(
    connection: socket.socket,
    launcher: Launcher,
    gateway_at: Callable[[int], Gateway | None] = lambda _pid: None,
    exporter: int | None = None,
) -> Peer:
    """Return the peer and the run that it is in. A peer that cannot be placed says why, and is refused everything. `gateway_at`
    returns the gateway that is a process, `exporter` is a process, too.

    The credentials are those of the time when it connected. Takes less than 0.1 ms, because names of users are cached."""
    try:
        pid, uid, gid = UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    except OSError as error:
        return Peer(uid=-1, user="unknown", owner=False, unplaced=f"the kernel does not name the process: {error.strerror}")
    user, owner, gids = user_name(uid), uid in (0, os.geteuid()), _gids(connection, gid)
    if (gateway := gateway_at(pid)) is not None and _lives(connection):
        return Peer(uid=uid, user=user, owner=owner, gateway=True, gateway_of=gateway.uid)
    if pid == exporter and _lives(connection):  # a child of the daemon that is in no run
        return Peer(uid=uid, user=user, owner=owner, gids=gids)
    try:
        run = _place(pid, peer_pidfd(connection), launcher)
    except Unplaceable as why:
        return Peer(uid=uid, user=user, owner=owner, unplaced=str(why))
    except (OSError, ValueError) as error:  # as when no descriptor is free
        what = error.strerror if isinstance(error, OSError) else type(error).__name__
        return Peer(uid=uid, user=user, owner=owner, unplaced=f"the process could not be looked at: {what}")
    return Peer(uid=uid, user=user, owner=owner, run=run, gids=gids)


def _gids(connection: socket.socket, gid: int) -> frozenset[int]:
    """Return the groups of the process that connected, as the kernel knows them: the group database is not asked."""
    try:
        return frozenset({gid, *peer_groups(connection)})
    except OSError:  # before Linux 4.13
        return frozenset({gid})


def peer_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups of the process that connected. Raises `OSError`."""
    # Python's own getsockopt takes at most 1024 bytes
    for most in (256, MAX_GROUPS):
        found, size = array("I", bytes(4 * most)), ctypes.c_uint32(4 * most)
        address, _ = found.buffer_info()
        if not _libc.getsockopt(
            connection.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, ctypes.c_void_p(address), ctypes.byref(size)
        ):
            return tuple(found[: size.value // 4])
        if ctypes.get_errno() != errno.ERANGE:
            break
    number = ctypes.get_errno()
    raise OSError(number, f"its groups: {os.strerror(number)}")


def _lives(connection: socket.socket) -> bool:
    """Return whether the process that connected is alive still, so that no other process has its pid."""
    try:
        held = peer_pidfd(connection)
    except Unplaceable:
        return False
    if held is None:  # before Linux 6.5 its pid is all that is known
        return True
    try:
        return not pidfd.ended(held)
    finally:
        os.close(held)


def run_of(pid: int, launcher: Launcher) -> RunId | None:
    """Return the run that a process is in now; `None` if it is in none. Raises `Unplaceable` and `OSError`."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise Unplaceable("it ended before it could be placed") from error
    return _place(pid, pidfd, launcher)


def _place(pid: int, pidfd: int | None, launcher: Launcher) -> RunId | None:
    try:
        return launcher.run_of(pid, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def peer_pidfd(connection: socket.socket) -> int | None:
    """Return the peer's pidfd; `None` on a kernel before Linux 6.5. Raises `Unplaceable`."""
    # a recycled pid may be another process by now; the pidfd is always the one that connected
    try:
        answer = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except ProcessLookupError as error:
        raise Unplaceable("the process ended before it could be placed") from error
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise Unplaceable(f"the kernel does not name the process: {error.strerror}") from error
    return int.from_bytes(answer, sys.byteorder, signed=True)
