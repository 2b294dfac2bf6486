"""Pidfds of main processes, kept by systemd while no daemon is there.

They tell the next daemon how a process ended in the meantime, where the kernel does (PIDFD_GET_INFO, Linux 6.15)."""

import os
from collections.abc import Iterable
from contextlib import suppress

from ..core.run import Run
from ..host.systemd import FdStore


def name_of_main(run: Run) -> str:
    """Return the name under which systemd keeps the pidfd of the main process of this attempt."""
    return f"{run.id}.{run.attempt}"


class StoredPidfds:
    """Has systemd keep the pidfd of each main process, where it starts the daemon and listens."""

    def __init__(self) -> None:
        self._store = FdStore()

    def keep(self, run: Run, pid: int) -> None:
        """Have it kept from the launch on. Where that fails, the next daemon will not learn how the process ended."""
        if self._store.there:
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                self._store.keep(name_of_main(run), pidfd)
                os.close(pidfd)

    def forget(self, run: Run) -> None:
        self._store.forget(name_of_main(run))

    def forget_others(self, names: Iterable[str], runs: Iterable[Run]) -> None:
        """Of what an earlier daemon had kept under `names`, forget all but the main processes of these runs."""
        for name in set(names) - {name_of_main(run) for run in runs}:
            self._store.forget(name)

    def close(self) -> None:
        self._store.close()
