"""What is kept for the daemon on a machine that is short of it: room on the disk, processor time
and memory.

The room on the disk is for its start, because SQLite cannot open the ledger without some. The
priority keeps it schedulable when its runs use all processors. Measured without cgroups, with
twenty lineages that fork without pause on two cores, each in its own session: at equal priority the
daemon got a tenth of a core, reaped zombies more slowly than they came, and the machine was out of
pids after ten seconds. At higher priority it ends the lineages in 0.4 s.
"""

import ctypes
import os
import stat
from contextlib import suppress
from pathlib import Path

from .files import create

RESERVED_BYTES = 2 * 1024 * 1024
"""Bytes that a start can need: to open the ledger, and to record the ends of runs that a dead
daemon held in memory."""


class DiskReserve:
    """A file without content, which is removed when the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def fill(self) -> None:
        with suppress(OSError):
            if self._size() >= RESERVED_BYTES:
                return
            descriptor = create(self._path)
            try:
                os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
            except OSError:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Give the room back. Return whether there was any."""
        with suppress(OSError):
            size = self._size()
            self._path.unlink()
            return size > 0
        return False

    def _size(self) -> int:
        # what unlinking the file gives back: nothing for a symlink, or for a second link to another
        # file
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0


_M_ARENA_MAX = -8
"""From malloc.h."""


def keep_one_heap() -> None:
    """Have all threads allocate from one heap. glibc gives each thread one of its own, which keeps
    what a rare job has freed: the first round of maintenance left 7 MiB. Call this before the first
    thread is started. Other C libraries need nothing."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_NICE = -10
"""Before ordinary programs, behind those that the machine cannot do without."""
_AUTOGROUP = Path("/proc/self/autogroup")


def raise_priority() -> None:
    """Schedule this process before those that it starts, if it may (root, CAP_SYS_NICE).

    Change nothing if the operator has chosen a priority. SCHED_RESET_ON_FORK gives children a nice
    value of 0. Where the kernel shares the processors among sessions first (sched(7): autogroup),
    the nice value of the session counts; a daemon that leads its session sets that as well."""
    with suppress(OSError):
        if os.sched_getscheduler(0) != os.SCHED_OTHER or os.getpriority(os.PRIO_PROCESS, 0) != 0:
            return
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(str(_NICE))
