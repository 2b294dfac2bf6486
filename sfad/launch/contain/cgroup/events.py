"""What the kernel tells of a cgroup in `cgroup.events`: whether it is populated, and whether it is frozen."""

import os
import select
from collections.abc import Callable

from ... import procfs
from ...complaints import Complaints
from ...launched_runs import LaunchedRun
from ...watch.reactor import Reactor
from . import cgroupfs
from .cgroups import RunCgroup, RunCgroups

_EMPTY = b"populated 0\nfrozen 1\n"
"""What `cgroup.events` would say of a cgroup that is gone."""


class CgroupEvents:
    """Watches the cgroups of runs, and calls `learn` with the content of `cgroup.events`."""

    def __init__(
        self,
        cgroups: RunCgroups,
        reactor: Reactor,
        complaints: Complaints,
        learn: Callable[[LaunchedRun, RunCgroup, bytes], object],
    ) -> None:
        self._cgroups = cgroups
        self._reactor = reactor
        self._complaints = complaints
        self._learn = learn

    def watch(self, run: LaunchedRun, group: RunCgroup) -> None:
        """From now on learn of every change, and soon of the present content."""
        if group.events is not None:
            self._reactor.soon(self._look, run, group)
            return
        try:
            events = os.open(f"{group.directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed the cgroup, so it is empty
            self._reactor.soon(self._learn, run, group, _EMPTY)
            return
        except OSError as error:
            self._poll_later(run, group, error)
            return
        try:
            self._reactor.add(events, lambda: self._look(run, group), select.EPOLLPRI)
        except OSError as error:
            os.close(events)
            self._poll_later(run, group, error)
            return
        group.events = events
        self._reactor.soon(self._look, run, group)  # what changed before

    def _poll_later(self, run: LaunchedRun, group: RunCgroup, error: OSError) -> None:
        """Read the file now and then, until there is a descriptor to watch it with."""
        self._complaints.failed(error)
        self._reactor.later(self._poll, run, group)

    def _poll(self, run: LaunchedRun, group: RunCgroup) -> None:
        if group.events is None and (run.emptying or run.freezing):
            self._learn(run, group, cgroupfs.read(f"{group.directory}/cgroup.events") or _EMPTY)
        if group.events is None and (run.emptying or run.freezing):
            self.watch(run, group)

    def _look(self, run: LaunchedRun, group: RunCgroup) -> None:
        if group.events is None:
            return
        try:
            events = os.pread(group.events, 256, 0)  # reading ends the EPOLLPRI
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise
            self._cgroups.unwatch(group)
            events = _EMPTY
        self._learn(run, group, events)
