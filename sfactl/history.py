"""The connection of the verbs that only read: to the daemon, or if none is running, to a process
that reads its ledger.

That process is `sfad.history`, a separate program like the daemon, so this package imports nothing
of it.
"""

from __future__ import annotations

import os

from sfad.protocol.places import SYSTEM_SOCKET, SYSTEM_STATE

from . import connection, output
from .connection import ABSENT, Client, DaemonError, Unreachable
from .exits import ExitCode, Quit
from .inside import inside_run


def connect(flag: str | None) -> Client:
    """Connect to the daemon, or if it is not running, to the history in the state directory of the
    user's daemon, with a note on stderr. Raise `Unreachable`, and `Quit` for a history that cannot
    be read.

    There is no history for a socket that `--socket` or SFA_SOCKET names, because that daemon may
    have any state directory; nor of the system's daemon for a user that SFAD_SOCKET leads to it;
    nor inside a run, which may read only its own subtree."""
    try:
        return connection.connect(flag)
    except Unreachable as error:
        if error.kind not in ABSENT or flag is not None or inside_run() is not None:
            raise
        from .ledger_reader import LedgerReader, readable

        state = readable(error)
        if (
            error.path == SYSTEM_SOCKET
            and str(state) != SYSTEM_STATE
            and not os.environ.get("SFAD_STATE_DIR")
        ):
            raise  # what there is would be the history of the user's own daemon
        try:
            found = LedgerReader(state)
        except DaemonError as unreadable:
            raise Quit(
                ExitCode.UNREACHABLE, f"no daemon is running, and {unreadable.message}"
            ) from None
        output.note(
            f"sfactl: no daemon is running ({error.path}); this is its history, from {state}"
        )
        return found
