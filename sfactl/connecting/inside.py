"""Whether this process is inside a run."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

INSIDE = ("SFA_RUN_ID", "SFA_SOCKET", "SFA_COOKIE", "SFA_CALL_CHAIN", "SFA_DEPTH")
"""Variables that the daemon sets, only for runs."""

OWN_CGROUP = "/proc/self/cgroup"
"""File in which the kernel names the cgroup of this process."""


def inside_run(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the evidence that this process is inside a run, or `None`. No daemon is started inside
    a run."""
    for name in INSIDE:
        if name in environ:
            return f"{name} is set"
    if any(map(of_a_run, _own_cgroup().split("/"))):
        return "its cgroup belongs to a run"
    return "it has the tag of a run (RLIMIT_MSGQUEUE)" if _tagged() else None


def of_a_run(name: str) -> bool:
    """Return whether a part of a cgroup's path is a daemon's directory of runs: `sfad-` and 12
    hexadecimal digits."""
    return len(name) == 17 and name.startswith("sfad-") and not name[5:].strip("0123456789abcdef")


def _own_cgroup() -> str:
    try:
        with open(OWN_CGROUP) as file:
            return next((line[3:].strip() for line in file if line.startswith("0::")), "")
    except OSError:
        return ""


def _tagged() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    return soft != hard
