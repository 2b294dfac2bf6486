"""Where the socket and the state are: one rule for daemon and client, a function of environment and
uid. `places` has it as text."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from . import places

LEDGER = "ledger.db"
SYSTEM_SOCKET = Path(places.SYSTEM_SOCKET)
SYSTEM_STATE = Path(places.SYSTEM_STATE)
SYSTEM_SHIMS = Path("/usr/local/lib/sfad/shims")
SYSTEM_AUTOMATIC_SHIMS = Path("/var/cache/sfad/shims")


def state_dir(env: Mapping[str, str], uid: int, flag: str | None = None) -> Path:
    """The state directory: `flag`, SFAD_STATE_DIR, /var/lib/sfad for root, else sfad below
    XDG_STATE_HOME."""
    return Path(places.state_directory(env, uid, flag))


def is_systems(state: Path) -> bool:
    """Return whether the daemon with this state directory is the system's, and not a user's own.
    Root has no other by default."""
    return state == SYSTEM_STATE


def shim_dir(state: Path) -> Path:
    """The directory of the shims that the runs of a daemon find first in their PATH, given its
    state directory.

    The system's state is open to root only, but its runs have other users."""
    return SYSTEM_SHIMS if is_systems(state) else state / "shims"


def automatic_shim_dir(state: Path) -> Path:
    """The directory with the shims that a daemon makes by itself, given its state directory. As for
    `shim_dir`, the system's runs could not enter its state."""
    return SYSTEM_AUTOMATIC_SHIMS if is_systems(state) else state / "automatic"


def xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    """A base directory of the XDG specification, which says that a relative value is to be ignored.

    Raises `ValueError` where neither it nor HOME is known."""
    return Path(places.xdg_directory(env, name, default))


def daemon_socket(
    env: Mapping[str, str],
    uid: int,
    flag: str | None = None,
    *,
    exists: Callable[[str], bool] = os.path.isdir,
) -> Path:
    """The socket a daemon serves: `flag`, SFAD_SOCKET, the system's for root without a login
    session, else the user's.

    SFA_SOCKET is not asked: it names the daemon that a run belongs to, and a daemon started inside
    a run is not that one."""
    chosen = flag or env.get("SFAD_SOCKET")
    if chosen:
        return Path(chosen).absolute()
    if uid == 0 and not places.runtime_dir(env):
        return SYSTEM_SOCKET
    return Path(places.user_sockets(env, uid, exists=exists)[0])
