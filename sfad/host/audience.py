"""Whom a daemon serves: its owner and root, or every user of the machine. Decided once, after the containment is chosen."""

import os
from pathlib import Path
from typing import Literal

from ..protocol.paths import SYSTEM_SOCKET
from .socket_file import PathError

Users = Literal["auto", "all", "own"]
"""`access.users` of the config."""

_OWN = 'set it to "own"'


def serves_all(users: Users, socket: Path, containment: Literal["cgroup", "tags"]) -> bool:
    """Return whether the daemon serves every user. Raise `PathError` if it is told to and cannot.

    Only root can start processes of other users. By tags, the orphans of two users' runs cannot be told apart."""
    check_owner(users)
    able = os.geteuid() == 0 and containment == "cgroup"
    if users == "all" and not able:
        raise PathError(f'access.users = "all" needs runs contained by cgroup; here they are contained by {containment}: {_OWN}')
    return able and (users == "all" or (users == "auto" and socket == SYSTEM_SOCKET))


def check_owner(users: Users) -> None:
    """Raise `PathError` if the daemon is told to serve every user and is not root's."""
    if users == "all" and os.geteuid() != 0:
        raise PathError(f'access.users = "all" needs a daemon of root; this one has uid {os.geteuid()}: {_OWN}')


def directory_mode(users: Users, socket: Path) -> int:
    """Return the mode for the directory of a socket. It is needed before the containment is chosen; the socket's own mode keeps
    other users out then."""
    meant = os.geteuid() == 0 and (users == "all" or (users == "auto" and socket == SYSTEM_SOCKET))
    return 0o755 if meant else 0o700


def socket_mode(*, everyone: bool) -> int:
    return 0o666 if everyone else 0o600
