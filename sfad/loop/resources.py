"""What a daemon opens before its loop begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..durable.journal import RunJournal
from ..host.timers import Timers
from ..launch.base import Launcher
from ..ledger import Ledger
from ..observe.log import Log
from ..output.files import OutputStore
from .reports import Reports


def never_lost() -> str | None:
    """Return why `state_dir` leads elsewhere, which it never does."""
    return None


@dataclass(frozen=True, slots=True)
class Resources:
    """The daemon's files, its launcher and its timers. They are closed by the caller of the loop, but for `journal`."""

    log: Log
    timers: Timers
    journal: RunJournal
    ledger: Ledger
    output: OutputStore
    launcher: Launcher
    reports: Reports
    """What `launcher` reports."""
    socket: str
    state_dir: str
    state_dir_lost: Callable[[], str | None] = never_lost
    """Returns why `state_dir` does not lead to the directory that was opened; `None` while it does."""
