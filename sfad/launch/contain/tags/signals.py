"""Signals to exactly the process that was seen."""

import os
import signal
from contextlib import suppress

from ... import procfs
from ...procfs import Stat


def send(process: Stat, numbers: tuple[int, ...]) -> None:
    """The start time, read after its pidfd was opened, rules out that its pid was used again."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = procfs.stat(process.pid)
            if now is not None and now.started == process.started:
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
