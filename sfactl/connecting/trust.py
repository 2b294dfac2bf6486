"""Whether to trust the process that listens at a daemon's socket: a client sends it its
environment, with secrets."""

from __future__ import annotations

import os
import pwd
import socket
from struct import Struct

from .. import exits
from .inside import of_a_run

SERVICE_USER = "SFAD_SERVICE_USER"
"""The name or uid of one more user whose daemon this client trusts."""
_COOKIE = b"SFA_COOKIE="
"""In the environment of a run."""
_UCRED = Struct("=iII")


def distrusted(connection: socket.socket) -> str | None:
    """Return why nothing may be sent over a connection; `None` if the listener is this user's,
    root's or the service user's.

    For a client outside any run, the listener must not be a process of a run: an agent can remove
    the daemon's socket and listen in its place.

    SO_PEERCRED gives the process that called listen(2): with socket activation that is pid 1, uid
    0. Raise `OSError`, and `UsageError` for a service user that does not exist."""
    pid, uid, _gid = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    if uid in (0, os.getuid()) or uid == _service_uid() or _shown_by_sandbox(connection, uid):
        if not _in_run(str(pid)) or _in_run("self"):
            return None
        return (
            f"pid {pid} listens there, but it is a process of a run, so nothing was sent. "
            f"End it with 'kill {pid}'; a running daemon makes its socket again within seconds"
        )
    return (
        f"pid {pid} of uid {uid} listens there, which is neither you nor root, "
        f"so nothing was sent. Set {SERVICE_USER}={uid} if you trust that user's daemon; "
        "else use another socket, or remove this one"
    )


def _shown_by_sandbox(connection: socket.socket, uid: int) -> bool:
    """Return whether this process is in a user namespace in which the listener's user has no
    number, and the socket in a mount that is read-only: the maker of the sandbox put it there, and
    no process in it can replace it."""
    try:
        with open("/proc/self/uid_map") as file:
            lines = [line.split() for line in file]
        known = any(int(first) <= uid < int(first) + int(count) for first, _, count in lines)
        return not known and bool(os.statvfs(connection.getpeername()).f_flag & os.ST_RDONLY)
    except (OSError, ValueError):
        return False


def _in_run(pid: str) -> bool:
    """Return whether a process is in a run of some daemon, by its cgroup or its cookie, as far as
    they can be read."""
    cgroup, environ = _read(f"/proc/{pid}/cgroup"), _read(f"/proc/{pid}/environ")
    directories = cgroup.decode(errors="replace").split("/")[1:-1]
    return (
        any(map(of_a_run, directories)) or environ.startswith(_COOKIE) or b"\0" + _COOKIE in environ
    )


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""


def _service_uid() -> int | None:
    name = os.environ.get(SERVICE_USER, "")
    if not name or name.isdecimal():
        return int(name) if name else None
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise exits.UsageError(f"{SERVICE_USER}: unknown user {name!r}") from None
