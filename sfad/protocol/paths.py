"""Where the socket and the state are: one rule for daemon and client, a function of environment and
uid.

A socket address holds a path of at most 107 bytes. Longer ones are reached through an open
descriptor of their directory, by `/proc/self/fd/N/NAME`; `connect_path` and `bind_path` do that
where it is needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from errno import ENOTCONN
from pathlib import Path

Exists = Callable[[str], bool]

LEDGER = "ledger.db"
SOCKET = "sfad.sock"
SYSTEM_SOCKET = Path("/run/sfad", SOCKET)
SYSTEM_STATE = Path("/var/lib/sfad")
SUN_PATH = 107
"""Bytes of a path in a socket address: `sun_path` of unix(7), less the closing zero."""
_MAX_NAME = SUN_PATH - len("/proc/self/fd/") - 11


def state_dir(env: Mapping[str, str], uid: int, flag: str | None = None) -> Path:
    """The state directory: `flag`, SFAD_STATE_DIR, /var/lib/sfad for root, else sfad below
    XDG_STATE_HOME."""
    if chosen := flag or env.get("SFAD_STATE_DIR"):
        return Path(chosen).absolute()
    return SYSTEM_STATE if uid == 0 else xdg(env, "XDG_STATE_HOME", ".local/state") / "sfad"


def is_systems(state: Path) -> bool:
    """Return whether the daemon with this state directory is the system's, and not a user's own.
    Root has no other by default."""
    return state == SYSTEM_STATE


def xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    """A base directory of the XDG specification, which says that a relative value is to be ignored.

    Raises `ValueError` where neither it nor HOME is known."""
    value, home = env.get(name, ""), env.get("HOME", "")
    if os.path.isabs(value):
        return Path(value)
    if not os.path.isabs(home):
        raise ValueError(f"neither {name} nor HOME is set to an absolute path; set one of them")
    return Path(home, default)


def client_sockets(
    env: Mapping[str, str], uid: int, flag: str | None = None, *, exists: Exists = os.path.isdir
) -> list[Path]:
    """Sockets a client tries, in order. A socket that was chosen (`flag`, SFA_SOCKET, SFAD_SOCKET)
    is the only one: falling back from it would talk to another daemon than the one that was
    named."""
    if chosen := flag or env.get("SFA_SOCKET") or env.get("SFAD_SOCKET"):
        return [Path(chosen).absolute()]
    return list(dict.fromkeys([*_user_sockets(env, uid, exists), SYSTEM_SOCKET]))


def daemon_socket(
    env: Mapping[str, str], uid: int, flag: str | None = None, *, exists: Exists = os.path.isdir
) -> Path:
    """The socket a daemon serves: `flag`, SFAD_SOCKET, the system's for root without a login
    session, else the user's.

    SFA_SOCKET is not asked: it names the daemon that a run belongs to, and a daemon started inside
    a run is not that one."""
    if chosen := flag or env.get("SFAD_SOCKET"):
        return Path(chosen).absolute()
    if uid == 0 and not _has_runtime_dir(env):
        return SYSTEM_SOCKET
    return _user_sockets(env, uid, exists)[0]


def _user_sockets(env: Mapping[str, str], uid: int, exists: Exists) -> list[Path]:
    """Where a user's daemon may listen, best first. A client tries them all, because the daemon may
    have been started with more or less of a session around it (cron, ssh) than the client has."""
    found = []
    if _has_runtime_dir(env):
        found.append(Path(env["XDG_RUNTIME_DIR"], "sfad", SOCKET))
    if exists(login := f"/run/user/{uid}"):
        found.append(Path(login, "sfad", SOCKET))
    if uid == 0 or any(env.get(name) for name in ("SFAD_STATE_DIR", "XDG_STATE_HOME", "HOME")):
        found.append(state_dir(env, uid) / SOCKET)
    if not found:
        raise ValueError(
            "no place for a socket: XDG_RUNTIME_DIR, HOME and SFAD_STATE_DIR are all unset; "
            "set one of them"
        )
    return list(dict.fromkeys(found))


def _has_runtime_dir(env: Mapping[str, str]) -> bool:
    return os.path.isabs(env.get("XDG_RUNTIME_DIR", ""))


def make_private(path: Path) -> None:
    """Make a directory that only this user can look into, and those above it that are missing:
    `mkdir(parents=True)` would make these as open as the umask allows. What is there stays as it
    is. Raises `OSError`."""
    missing = [each for each in path.parents if not each.exists()]
    for each in (*reversed(missing), path):
        each.mkdir(mode=0o700, exist_ok=True)


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
