"""Where the socket and the state are: one rule for daemon and client, a function of environment and uid.

A socket address holds a path of at most 107 bytes. Longer ones are reached through an open descriptor of their directory,
by `/proc/self/fd/N/NAME`; `connect_path` and `bind_path` do that where it is needed.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOCKET = "sfad.sock"
LEDGER = "ledger.db"
SYSTEM_SOCKET = Path("/run/sfad") / SOCKET
SYSTEM_STATE = Path("/var/lib/sfad")
SYSTEM_SHIMS = Path("/usr/local/lib/sfad/shims")
SUN_PATH = 107
"""Bytes of a path in a socket address: `sun_path` of unix(7), less the closing zero."""
_MAX_NAME = SUN_PATH - len("/proc/self/fd/") - 11
Exists = Callable[[Path], bool]


def state_dir(env: Mapping[str, str], uid: int, flag: str | None = None) -> Path:
    """The state directory: `flag`, SFAD_STATE_DIR, /var/lib/sfad for root, else sfad below XDG_STATE_HOME."""
    chosen = flag or env.get("SFAD_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    return SYSTEM_STATE if uid == 0 else xdg(env, "XDG_STATE_HOME", ".local/state") / "sfad"


def shim_dir(state: Path) -> Path:
    """The directory of the shims that the runs of a daemon find first in their PATH, given its state directory.

    The system's state is open to root only, but its runs have other users."""
    return SYSTEM_SHIMS if state == SYSTEM_STATE else state / "shims"


def xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    """A base directory of the XDG specification, which says that a relative value is to be ignored.

    Raises `ValueError` where neither it nor HOME is known."""
    value = env.get(name, "")
    if os.path.isabs(value):
        return Path(value)
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        raise ValueError(f"neither {name} nor HOME is set to an absolute path")
    return Path(home) / default


def client_sockets(env: Mapping[str, str], uid: int, flag: str | None = None, *, exists: Exists = Path.is_dir) -> list[Path]:
    """Sockets a client tries, in order. A socket that was chosen (`flag`, SFA_SOCKET, SFAD_SOCKET) is the only one: falling
    back from it would talk to another daemon than the one that was named."""
    chosen = flag or env.get("SFA_SOCKET") or env.get("SFAD_SOCKET")
    if chosen:
        return [Path(chosen).absolute()]
    return list(dict.fromkeys([*user_sockets(env, uid, exists=exists), SYSTEM_SOCKET]))


def daemon_socket(env: Mapping[str, str], uid: int, flag: str | None = None, *, exists: Exists = Path.is_dir) -> Path:
    """The socket a daemon serves: `flag`, SFAD_SOCKET, the system's for root without a login session, else the user's.

    SFA_SOCKET is not asked: it names the daemon that a run belongs to, and a daemon started inside a run is not that one."""
    chosen = flag or env.get("SFAD_SOCKET")
    if chosen:
        return Path(chosen).absolute()
    if uid == 0 and not _runtime_dir(env):
        return SYSTEM_SOCKET
    return user_sockets(env, uid, exists=exists)[0]


def user_sockets(env: Mapping[str, str], uid: int, *, exists: Exists = Path.is_dir) -> list[Path]:
    """Where a user's daemon may listen, best first. A client tries them all, because the daemon may have been started with
    more or less of a session around it (cron, ssh) than the client has."""
    found = []
    if runtime := _runtime_dir(env):
        found.append(runtime / "sfad" / SOCKET)
    if exists(login := Path(f"/run/user/{uid}")):
        found.append(login / "sfad" / SOCKET)
    if uid == 0 or any(env.get(name) for name in ("SFAD_STATE_DIR", "XDG_STATE_HOME", "HOME")):
        found.append(state_dir(env, uid) / SOCKET)
    if not found:
        raise ValueError("no place for a socket: XDG_RUNTIME_DIR, HOME and SFAD_STATE_DIR are all unset")
    return list(dict.fromkeys(found))


def _runtime_dir(env: Mapping[str, str]) -> Path | None:
    value = env.get("XDG_RUNTIME_DIR", "")
    return Path(value) if os.path.isabs(value) else None


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for `path` that fits a socket address, valid within the block.

    Raises `OSError` where the directory cannot be opened, `ValueError` for a file name that no address can hold."""
    if len(os.fsencode(path)) <= SUN_PATH:
        yield os.fspath(path)
        return
    if len(os.fsencode(path.name)) > _MAX_NAME:
        raise ValueError(f"the socket's file name {path.name!r} is longer than {_MAX_NAME} bytes")
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connect_path(sock: socket.socket, path: Path) -> None:
    with short_path(path) as address:
        sock.connect(address)


def bind_path(sock: socket.socket, path: Path) -> None:
    with short_path(path) as address:
        sock.bind(address)
