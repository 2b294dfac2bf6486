"""The process at the other end of a socket, as the kernel knows it. What a client says of itself
does not count."""

import ctypes
import errno
import os
import re
import socket
import struct
import sys
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from ...core.state.access import Peer
from ...host.probe import SO_PEERPIDFD, UCRED, user_name
from ...processes import kernel
from ...processes.credentials import LIMIT_KINDS, MAX_GROUPS, UNLIMITED, Credentials, Rlimits
from ...processes.launcher import Launcher, Unidentifiable
from ...protocol.errors import RequestError
from ...protocol.types import ErrorCode, RunId
from .connection import Connection

SO_PEERGROUPS = 59
"""From asm-generic/socket.h; Python has no name for it."""

_libc = ctypes.CDLL(None, use_errno=True)

MOST_GROUPS = 65536
"""Supplementary groups of a process (NGROUPS_MAX)."""


class Gateway(Protocol):
    @property
    def uid(self) -> int | None:
        """The user whose runs alone it leads."""


def identify(
    connection: socket.socket,
    launcher: Launcher,
    gateway_at: Callable[[int], Gateway | None] = lambda _pid: None,
    is_own: Callable[[int], bool] = lambda _pid: False,
) -> Peer:
    """Return the peer and the run that it is in. A peer that cannot be identified says why, and is
    refused everything. `gateway_at` returns the gateway that is a process, and `is_own` whether
    a process is a feature's.

    The credentials are those of the time when it connected. Takes less than 0.1 ms, because names
    of users are cached."""
    try:
        pid, uid, gid = UCRED.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
        )
    except OSError as error:
        return Peer(
            uid=-1,
            user="unknown",
            owner=False,
            unidentified=f"the kernel does not name the process: {error.strerror}",
        )
    user, owner, gids = user_name(uid), uid in (0, os.geteuid()), all_groups(connection, gid)
    if (gateway := gateway_at(pid)) is not None and _lives(connection):
        return Peer(uid=uid, user=user, owner=owner, gateway=True, gateway_uid=gateway.uid)
    if is_own(pid) and _lives(connection):  # a child of the daemon that is in no run
        return Peer(uid=uid, user=user, owner=owner, gids=gids)
    try:
        run = _place(pid, peer_pidfd(connection), launcher)
    except Unidentifiable as why:
        return Peer(uid=uid, user=user, owner=owner, unidentified=str(why))
    except (OSError, ValueError) as error:  # as when no descriptor is free
        what = error.strerror if isinstance(error, OSError) else type(error).__name__
        return Peer(
            uid=uid,
            user=user,
            owner=owner,
            unidentified=f"the process could not be looked at: {what}",
        )
    return Peer(uid=uid, user=user, owner=owner, run=run, gids=gids)


def all_groups(connection: socket.socket, gid: int) -> frozenset[int]:
    """Return the groups of the process that connected, as the kernel knows them: the group database
    is not asked."""
    try:
        return frozenset({gid, *peer_groups(connection)})
    except OSError:  # before Linux 4.13
        return frozenset({gid})


def peer_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups of the process that connected. Raises `OSError`."""
    # Python's own getsockopt takes at most 1024 bytes
    for most in (256, MOST_GROUPS):
        found, size = array("I", bytes(4 * most)), ctypes.c_uint32(4 * most)
        address, _ = found.buffer_info()
        if not _libc.getsockopt(
            connection.fileno(),
            socket.SOL_SOCKET,
            SO_PEERGROUPS,
            ctypes.c_void_p(address),
            ctypes.byref(size),
        ):
            return tuple(found[: size.value // 4])
        if ctypes.get_errno() != errno.ERANGE:
            break
    number = ctypes.get_errno()
    raise OSError(number, f"its groups: {os.strerror(number)}")


def _lives(connection: socket.socket) -> bool:
    """Return whether the process that connected is alive still, so that no other process has its
    pid."""
    try:
        held = peer_pidfd(connection)
    except Unidentifiable:
        return False
    if held is None:  # before Linux 6.5 its pid is all that is known
        return True
    try:
        return not kernel.ended(held)
    finally:
        os.close(held)


def run_of(pid: int, launcher: Launcher) -> RunId | None:
    """Return the run that a process is in now; `None` if it is in none. Raises `Unidentifiable` and
    `OSError`."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise Unidentifiable("it ended before it could be identified") from error
    return _place(pid, pidfd, launcher)


def _place(pid: int, pidfd: int | None, launcher: Launcher) -> RunId | None:
    try:
        return launcher.run_of(pid, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def peer_pidfd(connection: socket.socket) -> int | None:
    """Return the peer's pidfd; `None` on a kernel before Linux 6.5. Raises `Unidentifiable`."""
    # a recycled pid may be another process by now; the pidfd is always the one that connected
    try:
        answer = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except ProcessLookupError as error:
        raise Unidentifiable("the process ended before it could be identified") from error
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise Unidentifiable(f"the kernel does not name the process: {error.strerror}") from error
    return int.from_bytes(answer, sys.byteorder, signed=True)


# ---- The user that a client's run executes as, where root's daemon serves another user, by what
# the kernel says of the client
#
# User and groups are those of the moment when the client connected (SO_PEERCRED, SO_PEERGROUPS).
# Limits and no_new_privs are those that the process which sent the request has now. It must still
# be that user's in every respect: a setuid program has limits that its caller has not.


_NO_UID = 0xFFFFFFFF
"""-1, which setresuid(2) takes for "leave it as it is"."""
_LIMIT = re.compile(rb"^Max .{21} (\d+|unlimited) +(\d+|unlimited) ", re.MULTILINE)
"""A line of /proc/PID/limits. They come in the order of their numbers."""


def submitter(connection: Connection, containment: str) -> Credentials | None:
    """Return the user that executes what the client submits; `None` is the daemon's own user. Raise
    `RequestError`."""
    peer = connection.peer
    # the guard refuses who is not identified
    if peer.uid == 0 or peer.unidentified or os.geteuid() != 0:
        return None
    if containment != "cgroup":
        raise _refused(
            peer, "runs of several users need cgroups: by tags their orphans cannot be told apart"
        )
    try:
        return _credentials(connection)
    except (OSError, ValueError, KeyError, Unidentifiable) as error:
        raise _refused(
            peer, f"the kernel does not tell what process {connection.sender} is: {error}"
        ) from error


def _credentials(connection: Connection) -> Credentials:
    peer, pid = connection.peer, connection.sender
    with ExitStack() as stack:
        held = peer_pidfd(connection.sock) if pid == connection.maker else os.pidfd_open(pid)
        held = os.pidfd_open(pid) if held is None else held  # before Linux 6.5
        stack.callback(os.close, held)
        limits, status = _limits_of(pid), kernel.status(pid)
        if not status:
            raise OSError(errno.EACCES, f"/proc/{pid}/status is gone or hidden")
        strange = _strange(peer, pid, status)
        if kernel.ended(held):  # until now it held its pid, so that all of this was its own
            raise _refused(peer, f"process {pid} ended before the daemon could look at it")
    if strange is not None:
        raise _refused(peer, f"process {pid} {strange}")
    uid, gid, groups = peer.uid, _gid(connection.sock), peer_groups(connection.sock)
    if len(groups) > MAX_GROUPS:
        raise _refused(
            peer, f"it has {len(groups)} supplementary groups; at most {MAX_GROUPS} can be kept"
        )
    if _NO_UID in (uid, gid, *groups):
        raise _refused(peer, "one of its ids is no id")
    return Credentials(uid, gid, groups, limits, no_new_privs=status[b"NoNewPrivs"] == b"1")


def _strange(peer: Peer, pid: int, status: dict[bytes, bytes]) -> str | None:
    """Return why the process cannot stand for the peer's user."""
    uids = {int(word) for word in status[b"Uid"].split()}
    if uids != {peer.uid}:
        return f"has the uids {sorted(uids)} by now, and connected as {peer.uid}; connect again"
    if peer.run is None:
        for kind in ("user", "pid", "net"):
            if os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
                return (
                    f"is in another {kind} namespace, which its run would leave; "
                    "submit it from outside"
                )
        if not os.path.samefile(f"/proc/{pid}/root", "/"):
            return (
                "has another root directory (a container or chroot), which its run would leave; "
                "submit it from outside"
            )
    return None


def _limits_of(pid: int) -> Rlimits:
    # not prlimit(2), for which root needs CAP_SYS_RESOURCE
    found = _LIMIT.findall(kernel.read(f"/proc/{pid}/limits", whole=True) or b"")
    if len(found) != LIMIT_KINDS:
        raise OSError(
            errno.EIO, f"/proc/{pid}/limits has {len(found)} limits instead of {LIMIT_KINDS}"
        )
    return tuple((_number(soft), _number(hard)) for soft, hard in found)


def _number(limit: bytes) -> int:
    return UNLIMITED if limit == b"unlimited" else int(limit)


def _gid(sock: socket.socket) -> int:
    _pid, _uid, gid = struct.unpack(
        "=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return int(gid)


def _refused(peer: Peer, why: str) -> RequestError:
    return RequestError(ErrorCode.NOT_PERMITTED, f"nothing is started for user {peer.user}: {why}")
