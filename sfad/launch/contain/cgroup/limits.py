"""The bounds of runs, written to the files of their cgroups and read back."""

from __future__ import annotations

import os

from ...news import News
from ...runs import HeldRun
from ..interface import RunLimits
from . import cgroupfs, controllers
from .cgroups import RunCgroup, RunCgroups
from .controllers import Controllers


class KernelLimits(RunLimits):
    """Has the kernel hold runs to their bounds, and counts how often it enforced them."""

    def __init__(self, cgroups: RunCgroups, controllers: Controllers, news: News) -> None:
        self._cgroups = cgroups
        self._controllers = controllers
        self._news = news

    def enforces(self, kind: str) -> bool:
        return kind in self._controllers.available

    def limit(self, held: HeldRun) -> None:
        """Write the bounds that have changed. A run without a cgroup gets them when its cgroup is made."""
        group = self._cgroups.of(held)
        if group is None:
            return
        for kind in controllers.KINDS:
            value, before = getattr(held.bounds, kind), getattr(group.bounds, kind)
            if value != before and kind in self._controllers.available:
                self._limit_to(held, group, kind, value)
        group.bounds = held.bounds

    def _limit_to(self, held: HeldRun, group: RunCgroup, kind: str, value: float | None) -> None:
        """Write one bound, and from now on count how often the kernel enforces it."""
        group.enforced.pop(kind, None)
        if not self._controllers.enable(kind, os.path.dirname(group.directory)):
            return
        try:
            for name, content in controllers.settings(kind, value):
                _write_setting(f"{group.directory}/{name}", content, optional=name.endswith(".swap.max"))
            if value is not None and kind != "cpu":
                group.enforced[kind] = controllers.enforced(kind, group.directory)
        except OSError as error:
            self._news.unenforced(held.id, error)

    def used(self, held: HeldRun, kind: str) -> int | None:
        group = self._cgroups.of(held)
        if group is None:
            return None
        if kind == "pids":
            return controllers.current_pids(group.directory) if "pids" in group.enforced else None
        return controllers.charged_memory(group.directory) if group.metered else None

    def breaches(self, held: HeldRun) -> frozenset[str]:
        group = self._cgroups.of(held)
        if group is None:
            return frozenset()
        try:
            now = {kind: controllers.enforced(kind, group.directory) for kind in group.enforced}
        except OSError as error:
            self._news.failed(error)
            return frozenset()
        return frozenset(kind for kind, count in now.items() if count > group.enforced[kind])


def _write_setting(path: str, content: bytes, *, optional: bool) -> None:
    try:
        cgroupfs.write(path, content)
    except FileNotFoundError:  # a kernel without swap accounting
        if not optional:
            raise
