"""The user that a client's run executes as, where root's daemon serves another user, by what the kernel says of the client.

User and groups are those of the moment when the client connected (SO_PEERCRED, SO_PEERGROUPS). Limits and no_new_privs are those
that the process which sent the request has now. It must still be that user's in every respect: a setuid program has limits that
its caller has not.
"""

import errno
import os
import re
import socket
import struct
from contextlib import ExitStack

from ..core.access import Peer
from ..launch import pidfd, procfs
from ..launch.credentials import LIMIT_KINDS, MAX_GROUPS, UNLIMITED, Credentials, Rlimits
from ..launch.launcher import Unplaceable
from ..protocol.types import ErrorCode
from .checks import RequestError
from .connection import Connection
from .peers import peer_groups, peer_pidfd

_NO_UID = 0xFFFFFFFF
"""-1, which setresuid(2) takes for "leave it as it is"."""
_LIMIT = re.compile(rb"^Max .{21} (\d+|unlimited) +(\d+|unlimited) ", re.MULTILINE)
"""A line of /proc/PID/limits. They come in the order of their numbers."""


def submitter(connection: Connection, containment: str) -> Credentials | None:
    """Return the user that executes what the client submits; `None` is the daemon's own user. Raise `RequestError`."""
    peer = connection.peer
    if os.geteuid() != 0 or peer.uid == 0 or peer.unplaced:  # the guard refuses who is not placed
        return None
    if containment != "cgroup":
        raise _refused(peer, "runs of several users need cgroups: by tags their orphans cannot be told apart")
    try:
        return _credentials(connection)
    except (OSError, ValueError, KeyError, Unplaceable) as error:
        raise _refused(peer, f"the kernel does not tell what process {connection.sender} is: {error}") from error


def _credentials(connection: Connection) -> Credentials:
    peer, pid = connection.peer, connection.sender
    with ExitStack() as stack:
        held = peer_pidfd(connection.sock) if pid == connection.maker else os.pidfd_open(pid)
        held = os.pidfd_open(pid) if held is None else held  # before Linux 6.5
        stack.callback(os.close, held)
        limits, status = _limits_of(pid), _status_of(pid)
        strange = _strange(peer, pid, status)
        if pidfd.ended(held):  # until now it held its pid, so that all of this was its own
            raise _refused(peer, f"process {pid} ended before the daemon could look at it")
    if strange is not None:
        raise _refused(peer, f"process {pid} {strange}")
    uid, gid, groups = peer.uid, _gid(connection.sock), peer_groups(connection.sock)
    if len(groups) > MAX_GROUPS:
        raise _refused(peer, f"it has {len(groups)} supplementary groups; at most {MAX_GROUPS} can be kept")
    if _NO_UID in (uid, gid, *groups):
        raise _refused(peer, "one of its ids is no id")
    return Credentials(uid, gid, groups, limits, no_new_privs=status[b"NoNewPrivs"] == b"1")


def _strange(peer: Peer, pid: int, status: dict[bytes, bytes]) -> str | None:
    """Return why the process cannot stand for the peer's user."""
    uids = {int(word) for word in status[b"Uid"].split()}
    if uids != {peer.uid}:
        return f"has the uids {sorted(uids)} by now, and connected as {peer.uid}; connect again"
    if peer.run is None:
        for kind in ("user", "pid"):
            if os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
                return f"is in another {kind} namespace, which its run would leave; submit it from outside"
    return None


def _status_of(pid: int) -> dict[bytes, bytes]:
    content = procfs.read(f"/proc/{pid}/status", whole=True)
    if content is None:
        raise OSError(errno.EACCES, f"/proc/{pid}/status is gone or hidden")
    return dict(line.split(b":\t", 1) for line in content.splitlines() if b":\t" in line)


def _limits_of(pid: int) -> Rlimits:
    # not prlimit(2), for which root needs CAP_SYS_RESOURCE
    found = _LIMIT.findall(procfs.read(f"/proc/{pid}/limits", whole=True) or b"")
    if len(found) != LIMIT_KINDS:
        raise OSError(errno.EIO, f"/proc/{pid}/limits has {len(found)} limits instead of {LIMIT_KINDS}")
    return tuple((_number(soft), _number(hard)) for soft, hard in found)


def _number(limit: bytes) -> int:
    return UNLIMITED if limit == b"unlimited" else int(limit)


def _gid(sock: socket.socket) -> int:
    _pid, _uid, gid = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(gid)


def _refused(peer: Peer, why: str) -> RequestError:
    return RequestError(ErrorCode.NOT_PERMITTED, f"nothing is started for user {peer.user}: {why}")
