"""Orphans: what a run left behind is reparented to this process, a subreaper, and has to be reaped by it.

A status has one owner. A main process is reaped through its pidfd by the launcher that started it; here go the children
that nobody owns, one `waitpid(pid, WNOHANG)` each. Never `waitpid(-1)`: it takes whatever ended first, and of 50
children that exited 7 up to 15 were then reported as 0. So a program that serves a launcher starts its other children
through it, or in a thread that outlives them.
"""

from __future__ import annotations

import os
from contextlib import suppress

import trio

from ..protocol.types import RunId
from . import procfs

_APART = 0.05
"""Seconds between two looks: SIGCHLD comes once for each of the thousands of orphans of a killed tree."""
_EVERY = 5.0
"""Seconds after which to look without a SIGCHLD: signals coalesce, and a zombie costs little meanwhile."""


class Orphans:
    """Reaps the children that are not in `owned`."""

    def __init__(self) -> None:
        self.owned: dict[int, RunId] = {}
        """Main processes, and the run each is of."""
        self._noticed = trio.Event()

    def notice(self) -> None:
        """There may be some."""
        self._noticed.set()

    async def serve(self) -> None:
        """Looks when told and every few seconds."""
        while True:
            with trio.move_on_after(_EVERY):
                await self._noticed.wait()
            self._noticed = trio.Event()
            self.reap()
            await trio.sleep(_APART)

    def reap(self) -> None:
        """Reaps every orphan that has ended."""
        for pid in procfs.children():
            if pid not in self.owned:
                reap_orphan(pid)


def reap_orphan(pid: int) -> None:
    """Reaps a child that nobody owns, if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # noqa: TID251 - an orphan, by pid: no owner's status is taken
