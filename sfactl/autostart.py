"""A connection for `spawn` and `run`, which may start a daemon for the person who has none (SPEC section 14).

Only outside any run, and never for a socket that was named by `--socket`: who names one means the daemon that is there.
"""

from __future__ import annotations

import os

from . import connection, environment
from .connection import ABSENT, Client, Unreachable


def connect(flag: str | None) -> Client:
    """A connection to the daemon, which is started if there is none and that is allowed. Raises `Unreachable`, `Quit`."""
    try:
        return connection.connect(flag)
    except Unreachable as error:
        why_not = _forbidden(flag, error)
        if why_not is not None:
            error.message += why_not
            raise
    # How daemons are started takes modules that no connection needs.
    from .start_daemon import start

    return start()


def _forbidden(flag: str | None, error: Unreachable) -> str | None:
    """Why no daemon may be started here; empty where that goes without saying."""
    if error.kind not in ABSENT or flag is not None:
        return ""
    inside = environment.inside_run()
    if inside is not None:
        return f"; none is started from inside a run ({inside})"
    if not environment.flag("SFAD_AUTOSTART", {"SFAD_AUTOSTART": "1", **os.environ}):
        return "; SFAD_AUTOSTART=0 keeps one from being started"
    return None
