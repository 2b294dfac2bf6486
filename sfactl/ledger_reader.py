"""A connection to a process that reads a ledger. Imported when no daemon is running."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from sfad.protocol.paths import LEDGER, state_dir

from .connection import HANDSHAKE_TIMEOUT, Client, Unreachable
from .exits import ExitCode, Quit


def readable(missing: Unreachable) -> Path:
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
                "sfad.history",
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
