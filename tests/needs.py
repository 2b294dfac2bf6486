"""What a test needs of the machine, and why it is skipped where the machine lacks it."""

from __future__ import annotations

import os
import secrets
import subprocess
from functools import cache

import pytest

from sfad.host import probe
from sfad.processes.contain.cgroup import cgroupfs, controllers
from sfad.processes.launcher import CgroupImpossible

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do this")


def containment(kind: str) -> None:
    """Skip the test if no run of this process can be contained so."""
    if kind == "cgroup" and (why := _no_cgroup()):
        pytest.skip(why)


@cache
def _no_cgroup() -> str | None:
    try:
        base = controllers.base_of(secrets.token_hex(6))
        controllers.probe(base)
    except CgroupImpossible as error:
        return f"no cgroup v2 directory that this user can write: {error}"
    cgroupfs.remove_tree(base.directory)
    return None


@cache
def _no_bubblewrap() -> str | None:
    program = probe.bubblewrap()
    if program is None:
        return "bubblewrap is not installed (Debian: bubblewrap)"
    words = [program, "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"bubblewrap makes no sandbox here: {done.stderr.strip()}" if done.returncode else None


bubblewrap = pytest.mark.skipif(_no_bubblewrap() is not None, reason=_no_bubblewrap() or "-")
