"""Pidfds: signals to exactly one process, and what they tell of it when it has ended and its pid is used again."""

import fcntl
import os
import platform
import re
import select
import signal
import struct
from contextlib import suppress

from . import procfs
from .procfs import Stat

_GET_INFO = 0xC040FF0B
_CGROUPID, _EXIT = 1 << 2, 1 << 3
_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info of Linux 6.13, 64 bytes: mask, cgroup id, eleven ids of process and user, exit code."""


def cgroup_id(pidfd: int) -> int:
    """Return the inode of the cgroup, also of a process that has ended (Linux 6.13). 0 if the kernel cannot tell."""
    mask, inode, *_ = _ask(pidfd, _CGROUPID)
    return inode if mask & _CGROUPID else 0


def exit_status(pidfd: int) -> int | None:
    """Return how a process has ended, as wait(2) told its parent; `None` if it was not reaped, or the kernel cannot tell.

    Linux 6.15 and later tell it, through a pidfd that was opened before the process was reaped."""
    mask, *_, status = _ask(pidfd, _EXIT)
    return status if mask & _EXIT else None


def _ask(pidfd: int, mask: int) -> tuple[int, ...]:
    try:
        return _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, _INFO.pack(mask, *[0] * 13)))
    except OSError:  # ESRCH: it has ended and nothing is known; ENOTTY, EINVAL: an older kernel
        return _INFO.unpack(bytes(_INFO.size))


def ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def reaped(pidfd: int) -> bool:
    """Return whether its parent has reaped it: from then on `exit_status` knows what can be known."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def tells_exits() -> bool:
    """Return whether it is of use to wait for `exit_status` (Linux 6.15)."""
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2]) >= (6, 15)


def send(process: Stat, *numbers: int) -> None:
    """Send signals to a process that was seen, unless it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = procfs.stat(process.pid)  # after the pidfd was opened: its pid may have been used again
            if now is not None and now.started == process.started:
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
