"""Orphans: what a run left behind is reparented to this process, a subreaper, which has to reap it.

A status has one owner. `Mains` reaps a main process through its pidfd; all other children are reaped here, by one
`waitpid(pid, WNOHANG)` each. Never `waitpid(-1)`: it takes the status of any child, and of 50 children that exited with 7
up to 15 were then reported as 0 (measured). So a program that serves a launcher starts its other children through it, or in
a thread that outlives them.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import trio

from ...protocol.types import RunId
from .. import procfs

NO_RUN: RunId = "-"
"""The run of a child that is in none: the daemon's own."""
_LOOKS_APART = 0.05
"""Seconds between two looks: a killed tree may have thousands of orphans, and SIGCHLD comes for each of them."""
_SIGSET_T, _SIGINFO = 128, 128
"""Bytes of glibc's sigset_t and of a signalfd_siginfo."""
_MANY_ORPHANS = 200
"""Orphans in one look after which the next follows at once: processes that fork without pause leave zombies faster than a look
every 50 ms reaps them, until the machine has no pid left."""


class ChildSignals:
    """SIGCHLD as a descriptor to wait for (signalfd(2)). A handler would run for each child, and one child in a thousand is an
    orphan: that was 8 % of what a short run costs (measured).

    Make it in the main thread before any other thread is started: threads inherit that the signal is blocked. Processes that the
    launcher starts do not; other children would have to unblock it."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        mask = (1 << (signal.SIGCHLD - 1)).to_bytes(_SIGSET_T, sys.byteorder)
        self._descriptor = ctypes.CDLL(None, use_errno=True).signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    async def serve(self, notice: Callable[[], object]) -> None:
        """Call `notice` when children have ended, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            with suppress(BlockingIOError):  # a thread that does not block the signal may have taken it meanwhile
                os.read(self._descriptor, _SIGINFO)  # several signals that came meanwhile are one
            notice()

    def close(self) -> None:
        """Close the descriptor. The signal stays blocked, because other threads may be there."""
        os.close(self._descriptor)


class Orphans:
    """Reaps the children that are not in `owned`."""

    def __init__(self) -> None:
        self.owned: dict[int, RunId] = {}
        """Main processes, and the run of each, kept by `Mains`; and the daemon's own children."""
        self.homes: dict[int, RunId] = {}
        """Live orphans, and the run that each was found to be of. Until an orphan is reaped, its pid is not used again."""
        self._noticed = trio.Event()

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

    def living(self) -> list[int]:
        """Return the orphans that remain when those that have ended are reaped, with zombies that another process traces: only the
        tracer can let these go. Raises `OSError`."""
        return self._look()[1]

    def _look(self) -> tuple[int, list[int]]:
        orphans = sorted(procfs.children().difference(self.owned))
        living = [pid for pid in orphans if not reap_orphan(pid)]
        if self.homes:
            self.homes = {pid: self.homes[pid] for pid in living if pid in self.homes}
        return len(orphans), living


def reap_orphan(pid: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid  # noqa: TID251 - an orphan, by pid: this takes no owner's status
    return False
