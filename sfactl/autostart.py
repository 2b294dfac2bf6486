"""The connection of `spawn` and `run`, which may start a daemon if none is running.

No daemon is started inside a run, or for a socket that `--socket` names: the user means the daemon that listens there.
"""

import os

from . import connection, environment
from .connection import ABSENT, Client, Unreachable


def connect(flag: str | None) -> Client:
    """Return a connection to the daemon. Start the daemon if none is running and that is allowed. Raise
    `Unreachable`, `Quit`."""
    try:
        return connection.connect(flag)
    except Unreachable as error:
        why_not = _forbidden(flag, error)
        if why_not is not None:
            error.message += why_not
            raise
    # Imported here because it loads modules that a connection does not need.
    from .start_daemon import start

    return start()


def _forbidden(flag: str | None, error: Unreachable) -> str | None:
    """Return why no daemon may be started here: `None` if one may, empty if the error needs no explanation."""
    if error.kind not in ABSENT or flag is not None:
        return ""
    inside = environment.inside_run()
    if inside is not None:
        return f"; no daemon is started inside a run ({inside})"
    if not environment.flag("SFAD_AUTOSTART", {"SFAD_AUTOSTART": "1", **os.environ}):
        return "; SFAD_AUTOSTART=0 forbids starting one"
    return None
