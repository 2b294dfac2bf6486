"""Why a command cannot be started."""

from __future__ import annotations

import errno
import os
from typing import Literal

from .start.trampoline import ATTACH, ENTER, INTERPRET, REPORT

_HINTS = {errno.EAGAIN: " (no more processes or threads: RLIMIT_NPROC, pids.max, or kernel.pid_max)"}
"""What the system's message does not say."""

ITS_COMMAND, ITS_DIRECTORY = b"its command", b"its directory"
"""How an error names the command and the directory of an adopted run: their names are not saved."""


class LaunchError(Exception):
    """A command cannot be started: the system's error, and a text that names the command or directory."""

    def __init__(
        self,
        number: int,
        doing: str,
        what: bytes,
        note: str = "",
        *,
        kind: Literal["launch", "output"] = "launch",
        about: Literal["command", "directory"] = "command",
    ) -> None:
        self.errno = number
        self.kind = kind
        self.about = about
        named = what.decode("utf-8", "backslashreplace") or "''"
        self.text = f"{doing} {named}: {os.strerror(number)}{note}"
        super().__init__(self.text)


def shortage(error: OSError, name: bytes) -> LaunchError:
    """Return the error for a command that the system had no resources to start."""
    return LaunchError(error.errno or errno.EIO, "cannot start", name, _HINTS.get(error.errno or 0, ""))


def reported(report: bytes, name: bytes = ITS_COMMAND, cwd: bytes = ITS_DIRECTORY) -> LaunchError:
    """Return the error that a trampoline reported of a command and its working directory."""
    stage, number = REPORT.unpack(report)
    if stage == ATTACH:
        return LaunchError(-number, "cannot contain", name)
    if stage == ENTER:
        return LaunchError(-number, "cannot enter directory", cwd, about="directory")
    missing = stage == INTERPRET and number == -errno.ENOENT
    return LaunchError(-number, "cannot execute", name, " (its interpreter is missing)" if missing else "")
