"""Connects to the daemon, and starts one if none is running."""

import os

from . import connection, environment
from .connection import ABSENT, Client, Unreachable
from .inside import inside_run


def connect_or_start(flag: str | None) -> Client:
    """Connect to the daemon. Start one if none is running, except inside a run, or for a socket
    that `--socket` names: the user means the daemon that listens there. Raise `Unreachable`,
    `Quit`."""
    try:
        return connection.connect(flag)
    except Unreachable as error:
        if error.kind not in ABSENT or flag is not None:
            raise
        inside = inside_run()
        if inside is not None:
            error.message += f"; no daemon is started inside a run ({inside})"
            raise
        if not environment.flag("SFAD_AUTOSTART", {"SFAD_AUTOSTART": "1", **os.environ}):
            error.message += "; SFAD_AUTOSTART=0 forbids starting one"
            raise
    # Imported here because it loads modules that a connection does not need.
    from .start_daemon import start

    return start()
