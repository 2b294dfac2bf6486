"""A service, started by systemd, that dies while its child lives. The next one learns how the child
ended."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from sfad.host.systemd import FdStore, notify
from sfad.processes.kernel import exit_status, reaped, tells_exits

CHILD = "read line < /run/keeper.fifo; exit 7"


def told(pidfd: int) -> int | None:
    """Return its exit code, once it has been reaped; `None` if the kernel does not tell."""
    while not reaped(pidfd) or (tells_exits() and exit_status(pidfd) is None):
        time.sleep(0.01)
    status = exit_status(pidfd)
    return os.waitstatus_to_exitcode(status) if status is not None else None


def main() -> None:
    """Serve."""
    taken, store = FdStore.taken(), FdStore()
    if taken:
        codes = {name: told(pidfd) for name, pidfd in taken.items()}
        for name in taken:
            store.forget(name)
        Path("/run/keeper.told").write_text(
            f"{codes} {FdStore.taken()} {[fd for fd in taken.values() if os.get_inheritable(fd)]}"
        )
    else:
        child = subprocess.Popen(["sh", "-c", CHILD])
        pidfd = os.pidfd_open(child.pid)
        for name in ("of-another", "a1"):
            store.keep(name, pidfd if name == "a1" else 0)
        store.forget("of-another")
    notify("READY=1")
    time.sleep(600)


if __name__ == "__main__":
    main()
