"""Orphans: what a run left behind is reparented to this process, a subreaper, and has to be reaped by it.

A status has one owner. A main process is reaped through its pidfd by the launcher that started it; here go the children
that nobody owns, one `waitpid(pid, WNOHANG)` each. Never `waitpid(-1)`: it takes whatever ended first, and of 50
children that exited 7 up to 15 were then reported as 0. So a program that serves a launcher starts its other children
through it, or in a thread that outlives them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import trio

from ...protocol.types import RunId
from .. import procfs

_APART = 0.05
"""Seconds between two looks: SIGCHLD comes once for each of the thousands of orphans of a killed tree."""
_SIGSET_T, _SIGINFO = 128, 128
"""Bytes of glibc's sigset_t and of a signalfd_siginfo."""
_MANY = 200
"""Orphans of one look after which the next comes at once: lineages that fork without pause leave zombies faster than a look
every 50 ms takes them, until the machine has no pid left."""
_EVERY = 5.0
"""Seconds after which to look without a SIGCHLD: signals coalesce, and a zombie costs little meanwhile."""


class ChildSignals:
    """SIGCHLD as a descriptor to wait for. A handler would run once a child, and one child in a thousand is an orphan:
    measured, 8 % of what a short run costs.

    To be made in the main thread before any other is started: threads inherit that the signal is blocked. What the launcher
    starts does not; other children would have to unblock it.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        mask = (1 << (signal.SIGCHLD - 1)).to_bytes(_SIGSET_T, sys.byteorder)
        self._descriptor = ctypes.CDLL(None, use_errno=True).signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    async def serve(self, notice: Callable[[], object]) -> None:
        """Calls `notice` when children have ended, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            os.read(self._descriptor, _SIGINFO)  # several that came meanwhile are one
            notice()

    def close(self) -> None:
        """Gives back the descriptor; the signal stays blocked, for other threads may be there."""
        os.close(self._descriptor)


class Orphans:
    """Reaps the children that are not in `owned`."""

    def __init__(self) -> None:
        self.owned: dict[int, RunId] = {}
        """Main processes, and the run each is of."""
        self.homes: dict[int, RunId] = {}
        """Living orphans, and the run that each was found to be of. Until it is reaped, a pid is its own."""
        self._noticed = trio.Event()

    def notice(self) -> None:
        """There may be some."""
        self._noticed.set()

    async def serve(self) -> None:
        """Looks when told and every few seconds. Raises `OSError`; may be begun again."""
        while True:
            self._noticed = trio.Event()
            if self.reap() >= _MANY:
                await trio.lowlevel.checkpoint()
                continue
            await trio.sleep(_APART)
            with trio.move_on_after(_EVERY):
                await self._noticed.wait()

    def reap(self) -> int:
        """Reaps every orphan that has ended; how many. Raises `OSError`."""
        found, living = self._look()
        return found - len(living)

    def living(self) -> list[int]:
        """The orphans that remain when those that have ended are reaped. A zombie that another process traces is among them: only
        that one can let it go. Raises `OSError`."""
        return self._look()[1]

    def _look(self) -> tuple[int, list[int]]:
        orphans = [pid for pid in procfs.children() if pid not in self.owned]
        living = [pid for pid in orphans if not reap_orphan(pid)]
        if self.homes:
            self.homes = {pid: self.homes[pid] for pid in living if pid in self.homes}
        return len(orphans), living


def reap_orphan(pid: int) -> bool:
    """Reaps a child that nobody owns; whether it had ended."""
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid  # noqa: TID251 - an orphan, by pid: no owner's status is taken
    return False
