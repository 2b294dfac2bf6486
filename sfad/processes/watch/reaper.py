"""Orphans: what a run left behind is reparented to this process, a subreaper, which has to reap it.

A status has one owner. `Mains` reaps a main process through its pidfd; all other children are reaped here, by one
`waitpid(pid, WNOHANG)` each. Never `waitpid(-1)`: it takes the status of any child, and of 50 children that exited with 7
up to 15 were then reported as 0 (measured). So a program that serves a launcher starts its other children through it, or in
a thread that outlives them.
"""

import os
from contextlib import suppress

import trio

from ...protocol.types import RunId
from .. import procfs

NO_RUN: RunId = "-"
"""The run of a child that is in none: the daemon's own."""
_LOOKS_APART = 0.05
"""Seconds between two looks: a killed tree may have thousands of orphans, and SIGCHLD comes for each of them."""
_MANY_ORPHANS = 200
"""Orphans in one look after which the next follows at once: processes that fork without pause leave zombies faster than a look
every 50 ms reaps them, until the machine has no pid left."""


class Orphans:
    """Reaps the children that are not in `owned`."""

    def __init__(self) -> None:
        self.owned: dict[int, RunId] = {}
        """Main processes, and the run of each, kept by `Mains`; and the daemon's own children."""
        self.homes: dict[int, RunId] = {}
        """Live orphans, and the run that each was found to be of. Until an orphan is reaped, its pid is not used again."""
        self._noticed = trio.Event()
        self.none_since = 0
        """The last poll of the reactor after which a look has found none alive. What is left of a run whose main process had ended
        by then was ours already, or descends from an orphan that was."""

    def notice(self) -> None:
        self._noticed.set()

    async def serve(self) -> None:
        """Look when told. May be called again after an `OSError`.

        Several signals may be one (signal(7)), but none is lost: an orphan that ends after a look sends another. The kernel also
        sends it for a zombie that becomes ours, or that a tracer lets go."""
        while True:
            self._noticed = trio.Event()
            found, living = self._look()
            if found - len(living) >= _MANY_ORPHANS:
                await trio.lowlevel.checkpoint()
                continue
            await trio.sleep(_LOOKS_APART)
            await self._noticed.wait()

    def reap(self) -> int:
        """Reap every orphan that has ended; return how many. Raises `OSError`."""
        found, living = self._look()
        return found - len(living)

    def unreaped(self) -> list[int]:
        """Return the orphans, zombies included. Raises `OSError`."""
        return sorted(procfs.children().difference(self.owned))

    def reap_one(self, pid: int) -> bool:
        """Reap an orphan if it has ended; return whether it had. A tracer may keep the zombie."""
        reaped = reap_orphan(pid)
        if reaped:
            self.homes.pop(pid, None)
        return reaped

    def _look(self) -> tuple[int, list[int]]:
        orphans = self.unreaped()
        living = [pid for pid in orphans if not reap_orphan(pid)]
        if self.homes:
            self.homes = {pid: self.homes[pid] for pid in living if pid in self.homes}
        return len(orphans), living


def reap_orphan(pid: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid  # noqa: TID251 - an orphan, by pid: this takes no owner's status
    return False
