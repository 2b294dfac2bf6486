"""The requests of `sfactl logs --check`."""

from __future__ import annotations

from msgspec import Struct

from ...protocol.requests.base import Reply, Request
from ...protocol.types import RunId


class CheckOutput(Request, tag="check_output"):
    """List what the checks of a run, and its setup, have printed. It needs the permission for
    `logs`. Answered by `CheckFiles`; `wrong_state` if the run has ended, and there is nothing, or
    it is not kept."""

    repeats = 1
    answered_there = True

    run: str


class CheckFile(Struct, frozen=True, kw_only=True):
    """What a command has printed the last time that it was executed in this attempt."""

    attempt: int
    number: int
    """Of the check, from 1 on; 0 is the setup."""
    command: str
    """Of a check."""


class CheckFiles(Reply, tag="check_files"):
    run: RunId
    files: list[CheckFile] = []
    """The oldest first."""
    ended: bool = False
    """The run has ended: there will be no more."""


class ReadCheck(Request, tag="read_check"):
    """Read a piece of that. It needs the permission for `logs`. Answered by `OutputPart`, which is
    empty at the end."""

    repeats = 1
    answered_there = True

    run: str
    attempt: int
    number: int
    """As in `CheckFile`."""
    offset: int = 0
    """From here on; below 0: so many bytes before the end."""
