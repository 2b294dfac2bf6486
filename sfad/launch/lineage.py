"""Which run a process is in by what it inherited, where no cgroup tells."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from ..protocol.types import RunId
from . import procfs
from .base import Unplaceable
from .local import COOKIE, Held


def cookie(pid: int, instance: str) -> bytes | None:
    """The cookie of this instance that the kernel shows in the environment which the process was executed with."""
    value = procfs.variable(pid, COOKIE)
    return value if value is not None and value.startswith(instance.encode() + b":") else None


def cookie_run(value: bytes) -> RunId:
    """The run that a cookie names."""
    return value.split(b":")[1].decode("ascii", "replace")


def by_cookie(pid: int, instance: str, runs: Mapping[RunId, Held]) -> RunId | None:
    """The run that a process carries the cookie of. Raises `Unplaceable` for a cookie of this instance that no run holds."""
    value = cookie(pid, instance)
    if value is None:
        return None
    run = cookie_run(value)
    if run in runs and runs[run].cookie == value:
        return run
    raise Unplaceable(f"process {pid} carries the cookie of run {run}, which is not running")


def still(pidfd: int | None) -> bool:
    """Whether what /proc/PID told was about this process: once it has ended, its pid may be another's."""
    if pidfd is None:
        return True
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
