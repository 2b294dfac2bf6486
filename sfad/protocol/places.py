"""Where a client looks for the socket, as text: a function of environment and uid. Imports nothing
that a client must wait for.

A socket address holds a path of at most 107 bytes. Longer ones are reached through an open
descriptor of their directory, by `/proc/self/fd/N/NAME`; `connect_path` and `bind_path` do that
where it is needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from errno import ENOTCONN

Exists = Callable[[str], bool]

SOCKET = "sfad.sock"
SYSTEM_SOCKET = f"/run/sfad/{SOCKET}"
SYSTEM_STATE = "/var/lib/sfad"
SUN_PATH = 107
"""Bytes of a path in a socket address: `sun_path` of unix(7), less the closing zero."""
_MAX_NAME = SUN_PATH - len("/proc/self/fd/") - 11


def state_directory(env: Mapping[str, str], uid: int, flag: str | None = None) -> str:
    """The state directory: `flag`, SFAD_STATE_DIR, /var/lib/sfad for root, else sfad below
    XDG_STATE_HOME."""
    chosen = flag or env.get("SFAD_STATE_DIR")
    if chosen:
        return absolute(chosen)
    return (
        SYSTEM_STATE if uid == 0 else f"{xdg_directory(env, 'XDG_STATE_HOME', '.local/state')}/sfad"
    )


def xdg_directory(env: Mapping[str, str], name: str, default: str) -> str:
    """A base directory of the XDG specification, which says that a relative value is to be ignored.

    Raises `ValueError` where neither it nor HOME is known."""
    value = env.get(name, "")
    if os.path.isabs(value):
        return value.rstrip("/")
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        raise ValueError(f"neither {name} nor HOME is set to an absolute path; set one of them")
    return f"{home.rstrip('/')}/{default}"


def client_sockets(
    env: Mapping[str, str], uid: int, flag: str | None = None, *, exists: Exists = os.path.isdir
) -> list[str]:
    """Sockets a client tries, in order. A socket that was chosen (`flag`, SFA_SOCKET, SFAD_SOCKET)
    is the only one: falling back from it would talk to another daemon than the one that was
    named."""
    chosen = flag or env.get("SFA_SOCKET") or env.get("SFAD_SOCKET")
    if chosen:
        return [absolute(chosen)]
    return list(dict.fromkeys([*user_sockets(env, uid, exists=exists), SYSTEM_SOCKET]))


def user_sockets(env: Mapping[str, str], uid: int, *, exists: Exists = os.path.isdir) -> list[str]:
    """Where a user's daemon may listen, best first. A client tries them all, because the daemon may
    have been started with more or less of a session around it (cron, ssh) than the client has."""
    found = []
    if runtime := runtime_dir(env):
        found.append(f"{runtime}/sfad/{SOCKET}")
    if exists(login := f"/run/user/{uid}"):
        found.append(f"{login}/sfad/{SOCKET}")
    if uid == 0 or any(env.get(name) for name in ("SFAD_STATE_DIR", "XDG_STATE_HOME", "HOME")):
        found.append(f"{state_directory(env, uid)}/{SOCKET}")
    if not found:
        raise ValueError(
            "no place for a socket: XDG_RUNTIME_DIR, HOME and SFAD_STATE_DIR are all unset; "
            "set one of them"
        )
    return list(dict.fromkeys(found))


def runtime_dir(env: Mapping[str, str]) -> str | None:
    value = env.get("XDG_RUNTIME_DIR", "")
    return value.rstrip("/") if os.path.isabs(value) else None


def absolute(path: str) -> str:
    """Return the path from the root directory, without `.`, `//` and a `/` at its end; `..` may
    lead through a link."""
    parts = os.path.join(os.getcwd() if not os.path.isabs(path) else "/", path).split("/")
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def connect_path(sock: socket.socket, path: str | os.PathLike[str]) -> None:
    """Connect a socket. While the listener's queue is full, a signal that is handled makes Python's
    connect() return without a connection, as if that were under way, which only TCP's would be."""
    while True:
        _by_short_name(sock.connect, path)
        try:
            sock.getpeername()
        except OSError as error:
            if error.errno != ENOTCONN:
                raise
        else:
            return


def bind_path(sock: socket.socket, path: str | os.PathLike[str]) -> None:
    _by_short_name(sock.bind, path)


def _by_short_name(use: Callable[[str], object], path: str | os.PathLike[str]) -> None:
    """Call `use` with a name for `path` that fits a socket address.

    Raises `OSError` where the directory cannot be opened, `ValueError` for a file name that no
    address can hold."""
    if len(os.fsencode(path)) <= SUN_PATH:
        use(os.fspath(path))
        return
    directory, name = os.path.split(path)
    if len(os.fsencode(name)) > _MAX_NAME:
        raise ValueError(f"the socket's file name {name!r} is longer than {_MAX_NAME} bytes")
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
