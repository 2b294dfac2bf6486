"""What a test needs of the machine that no program brings, and why it is skipped where the machine
lacks it."""

from __future__ import annotations

import os
import secrets
from functools import cache

import pytest

from sfad.processes.contain.cgroup import cgroupfs, controllers
from sfad.processes.launcher import CgroupImpossible


def containment(kind: str) -> None:
    """Skip the test if no run of this process can be contained so."""
    if kind == "cgroup" and (why := no_cgroup()):
        pytest.skip(why)


def insight() -> None:
    """Skip the test if this process may not look into /proc/PID/fd and /proc/PID/environ of a
    daemon, which hides its memory."""
    if os.geteuid() != 0:
        pytest.skip("only root sees descriptors and environment of a daemon")


@cache
def no_cgroup() -> str | None:
    """Return why runs of this process cannot be contained by cgroup; `None` if they can."""
    try:
        base = controllers.base_of(secrets.token_hex(6))
        controllers.probe(base)
    except CgroupImpossible:
        return "no cgroup v2 directory that this user can write"
    cgroupfs.remove_tree(base.directory)
    return None
