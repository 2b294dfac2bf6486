"""The choice of a containment: cgroups where that is possible, else tags."""

import os
from collections.abc import Callable
from functools import partial
from typing import Literal

import trio

from .contain.cgroup import cgroupfs, probing
from .contain.cgroup.containment import CgroupContainment
from .contain.interface import LauncherParts, RunContainment
from .contain.tags.containment import TagsContainment
from .launcher import CgroupImpossible, Complain, Emit
from .local_launcher import LocalLauncher
from .trampoline.executable import Trampoline
from .watch.reactor import Complaints, Emitter

Mode = Literal["auto", "cgroup", "tags"]


def check_containment(instance: str, mode: Mode, cgroup_parent: str | None) -> None:
    """Raise `CgroupImpossible` where `choose_launcher` would. Leave nothing behind."""
    if mode == "cgroup":
        base = probing.base_of(instance, cgroup_parent)
        made = not os.path.isdir(base.directory)
        probing.probe(base)
        if made:
            cgroupfs.remove_tree(base.directory)


def choose_launcher(
    *,
    instance: str,
    emit: Emit,
    mode: Mode = "auto",
    cgroup_parent: str | None = None,
    clock: Callable[[], float] = trio.current_time,
    nofile: int | None = None,
    complain: Complain = lambda _text: None,
    trampoline: Trampoline | None = None,
) -> LocalLauncher:
    """Return the launcher of this machine.

    `instance` is twelve hex digits that name the state directory. `cgroup_parent` is where its cgroups go, by default this
    process's own cgroup; if anything of the instance is alive in cgroups elsewhere, runs stay there. `nofile` is the soft
    RLIMIT_NOFILE of runs, by default this process's now. `complain` gets, every few seconds at most, what failed and is tried
    again. Raises `CgroupImpossible` with the reason if `mode` is cgroup and that is impossible."""

    def launcher(complaints: Complaints, contain: Callable[[LauncherParts], RunContainment]) -> LocalLauncher:
        emitter = Emitter(emit, clock, complaints.failed)
        return LocalLauncher(instance, emitter, complaints, contain, trampoline=trampoline, nofile=nofile)

    if mode == "tags" and probing.inhabited(instance, cgroup_parent) is None:
        why = "set in the config"
    else:
        if mode == "tags":
            complain("containment.mode = tags takes effect when nothing is alive any more in the cgroups of an earlier daemon")
        try:
            base = probing.base_of(instance, cgroup_parent)
            probing.probe(base)
            complaints = Complaints(complain, remedy=partial(cgroupfs.regain_after, base=base.directory))
            return launcher(complaints, partial(CgroupContainment, base=base, complain=complain))
        except CgroupImpossible as reason:
            if mode == "cgroup":
                raise
            why = str(reason)
    return launcher(Complaints(complain), partial(TagsContainment, why=why))
