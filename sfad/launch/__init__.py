"""How a run becomes processes, how they are contained, signalled and reaped.

`base`            what the runtime needs of a launcher; handles, not pids
`local`           runs as processes of this machine: spawning, reaping, reporting; containment is a subclass:
`cgroup`          one cgroup v2 a run (`cgroupfs`: the file system below it)
`controllers`     limits in cgroup v2: enabling the controllers, their files
`affinity`        binding runs to CPUs, where there is no such controller
`tags`            descent and inherited tags, where there is no cgroup (`lineage`: placing a process by them)
`spawn`           posix_spawn(3) with what Python's lacks, and execvp(3)'s search
`trampoline`      what is spawned: contains itself, then becomes the command (`trampoline_py`: the same in Python)
`abroad`          runs without cgroups whose processes an earlier daemon started
`pidfd`           what a pidfd tells of a process that has ended
`reaper`          orphans that were reparented to the daemon
`watch`           one epoll for everything that is waited for
`procfs`          what /proc tells about processes
`sweep`           ends what a dead daemon left
`fake`            a launcher without processes, for tests of the runtime
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import trio

from . import cgroupfs
from .base import Emit, Launcher
from .cgroup import CgroupLauncher
from .cgroupfs import CgroupImpossible
from .local import Complain
from .tags import TagsLauncher

__all__ = ["CgroupImpossible", "CgroupLauncher", "TagsLauncher", "choose"]


def check(instance: str, forced: Literal["auto", "cgroup", "tags"], cgroup_parent: str | None) -> None:
    """Raises `CgroupImpossible` where `choose` would."""
    if forced == "cgroup":
        cgroupfs.probe(cgroupfs.inhabited(instance, cgroup_parent) or cgroupfs.locate(instance, cgroup_parent))


def choose(
    *,
    instance: str,
    emit: Emit,
    forced: Literal["auto", "cgroup", "tags"] = "auto",
    cgroup_parent: str | None = None,
    clock: Callable[[], float] = trio.current_time,
    nofile: int | None = None,
    complain: Complain = lambda _text: None,
) -> Launcher:
    """The launcher of this machine: by cgroup where that is possible, else by tags.

    `instance` is twelve hex digits that name the state directory; `cgroup_parent` is where its cgroups go, by default
    this process's own cgroup, unless something of the instance is alive elsewhere: then runs stay there; `nofile` is the
    soft RLIMIT_NOFILE of runs, by default this process's now; `complain` is told, every few seconds at most, of what failed
    and is tried again. Raises `CgroupImpossible`, with the reason, where
    cgroups are forced and cannot be had.
    """
    if forced == "tags" and cgroupfs.inhabited(instance, cgroup_parent) is not None:
        complain("containment.mode = tags takes effect when nothing is alive any more in the cgroups of an earlier daemon")
    elif forced == "tags":
        return TagsLauncher(instance=instance, emit=emit, clock=clock, nofile=nofile, complain=complain, why="set in the config")
    try:
        base = cgroupfs.inhabited(instance, cgroup_parent) or cgroupfs.locate(instance, cgroup_parent)
        return CgroupLauncher(instance=instance, emit=emit, base=base, clock=clock, nofile=nofile, complain=complain)
    except CgroupImpossible as reason:
        if forced == "cgroup":
            raise
        return TagsLauncher(instance=instance, emit=emit, clock=clock, nofile=nofile, complain=complain, why=str(reason))
