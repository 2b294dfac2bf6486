"""The request of `sfactl logs --check`."""

from __future__ import annotations

from msgspec import Struct

from ...protocol.requests.base import Reply, Request
from ...protocol.types import RunId


class CheckOutput(Request, tag="check_output"):
    """Open what the checks of a run, and its setup, have printed. It needs the permission for
    `logs`. Answered by `CheckFiles`; `wrong_state` if it has none, or nothing is kept."""

    repeats = 1

    run: str


class CheckFile(Struct, frozen=True, kw_only=True):
    """What a command has printed the last time that it was executed in this attempt."""

    attempt: int
    number: int
    """Of the check, from 1 on; 0 is the setup."""
    command: str
    """Of a check."""


class CheckFiles(Reply, tag="check_files"):
    """The descriptors are those of `files`, in their order."""

    run: RunId
    files: list[CheckFile] = []
    """The oldest first; at most the newest 64."""
    descriptors: int = 0
