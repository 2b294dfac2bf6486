"""Which containment this machine allows: cgroups where that is possible, else tags."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import trio

from .base import CgroupImpossible, Complain, Emit
from .contain.cgroup import cgroupfs
from .contain.cgroup.containment import CgroupContainment
from .contain.tags.containment import TagsContainment
from .local import LocalLauncher
from .news import News
from .start.trampoline import Trampoline

Mode = Literal["auto", "cgroup", "tags"]


def check(instance: str, mode: Mode, cgroup_parent: str | None) -> None:
    """Raise `CgroupImpossible` where `choose` would."""
    if mode == "cgroup":
        cgroupfs.probe(cgroupfs.base_of(instance, cgroup_parent))


def choose(
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
    again. Raises `CgroupImpossible` with the reason if `mode` is cgroup and that is impossible.
    """
    if mode == "tags" and cgroupfs.inhabited(instance, cgroup_parent) is None:
        why = "set in the config"
    else:
        if mode == "tags":
            complain("containment.mode = tags takes effect when nothing is alive any more in the cgroups of an earlier daemon")
        try:
            base = cgroupfs.base_of(instance, cgroup_parent)
            cgroupfs.probe(base)
            news = News(emit, clock, complain, remedy=partial(cgroupfs.regain_after, base=base.directory))
            contain = partial(CgroupContainment, base=base, complain=complain)
            return LocalLauncher(instance, news, contain, trampoline=trampoline, nofile=nofile)
        except CgroupImpossible as reason:
            if mode == "cgroup":
                raise
            why = str(reason)
    return LocalLauncher(
        instance, News(emit, clock, complain), partial(TagsContainment, why=why), trampoline=trampoline, nofile=nofile
    )
