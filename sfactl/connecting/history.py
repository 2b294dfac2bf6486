"""The connection of the verbs that only read: to the daemon, or if none is running, to a process
that reads its ledger.

That process is `sfad.daemon.history`, a separate program like the daemon, so this package imports
nothing of it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from sfad.protocol.paths import LEDGER, SYSTEM_SOCKET, SYSTEM_STATE, state_dir

from .. import output
from ..exits import ExitCode, Quit
from . import connection
from .connection import ABSENT, HANDSHAKE_TIMEOUT, Client, DaemonError, Unreachable
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
        state = _readable(error)
        if (
            Path(error.path) == SYSTEM_SOCKET
            and state != SYSTEM_STATE
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


def _readable(missing: Unreachable) -> Path:
    """Return the state directory of the user's daemon, if it has a ledger that this user may
    read."""
    try:
        state = state_dir(os.environ, os.getuid())
    except ValueError:
        raise missing from None
    ledger = state / LEDGER
    try:
        owner = ledger.stat().st_uid
    except PermissionError:
        raise Quit(
            ExitCode.NOT_PERMITTED, f"{missing.message}. You may not read its history {ledger}"
        ) from None
    except OSError:
        missing.message += f". There is no history either: {ledger} does not exist"
        raise missing from None
    if not os.access(ledger, os.R_OK):
        raise Quit(
            ExitCode.NOT_PERMITTED,
            (
                f"{missing.message}. You may not read its history {ledger}, "
                f"which belongs to uid {owner}"
            ),
        )
    return state


class LedgerReader(Client):
    """A connection to a child process that reads a state directory."""

    _pid: int | None = None

    def _reach(self, seconds: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: do not import sfad from the working directory
            command = [
                sys.executable,
                "-P",
                "-X",
                "utf8",
                "-m",
                "sfad.daemon.history",
                os.fspath(self.path),
            ]
            as_stdin = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            # in its own process group, because Ctrl-C is for this process; the child ends with the
            # connection
            self._pid = os.posix_spawn(
                command[0], command, os.environ, file_actions=as_stdin, setpgroup=0
            )
        ours.settimeout(max(seconds, HANDSHAKE_TIMEOUT))
        return ours

    def close(self) -> None:
        """Close the connection and kill the process: it only reads, and a damaged ledger may keep
        it busy without end."""
        super().close()
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitid(os.P_PID, self._pid, os.WEXITED)
            self._pid = None
