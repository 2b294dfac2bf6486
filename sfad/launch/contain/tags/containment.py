"""Containment without cgroups: by descent and by two marks that processes inherit. Best effort, as `doctor` tells the operator.

This process is a subreaper (prctl(2)), so whatever a run starts stays below it, and `Census` tells which run a process is in:
by its ancestors, by a soft RLIMIT_MSGQUEUE that only its run has (it survives `env -i`, setsid and a double fork, and can be
read of every process), or by the cookie in its environment.

A live process has a live parent, up to this process, because the orphans of dead processes become our children. So a run is
empty when none of our *direct* children that are in it is alive: one cheap read, and no race with processes that fork.

That is not true of runs that were adopted from a dead daemon, whose processes are elsewhere (`AdoptedTags`). Such a run is empty
when two looks at all processes of the machine find none of it.
"""

from collections.abc import Iterator
from typing import Literal

from ....protocol.types import RunId
from ...launched_runs import LaunchedRun, run_ids
from ...trampoline.spawner import Door
from ..interface import LauncherParts, RunContainment, RunLimits
from .adopted import AdoptedTags
from .census import Census
from .membership import TagsMembership
from .pausing import TagsPauses
from .stopping import TagsStops


class TagsContainment(RunContainment):
    """Contains runs by descent and marks. `why` tells the reason for not using cgroups."""

    kind: Literal["cgroup", "tags"] = "tags"
    adopted: AdoptedTags
    pauses: TagsPauses
    stops: TagsStops

    def __init__(self, parts: LauncherParts, *, why: str = "") -> None:
        self.detail = why or "asked for"
        self._runs = parts.runs
        self.limits = RunLimits()
        self.adopted = AdoptedTags(parts.runs)
        self._membership = TagsMembership(parts.runs, parts.orphans, self.adopted)
        self._census = Census(parts.orphans, self.adopted, self._membership)
        self.pauses = TagsPauses(parts, self._census)
        self.stops = TagsStops(parts, self._census, self._membership, self.pauses)

    def enter(self, run: LaunchedRun) -> Door:
        self.adopted.forget(run)  # an earlier attempt's processes are gone, or the run would not start again
        return Door(msgqueue=self._runs.tag_of(run))

    def leave(self, run: LaunchedRun) -> None:
        self.adopted.forget(run)
        self.pauses.forget(run)

    def populated(self, run: LaunchedRun, poll: int | None = None) -> bool:  # noqa: ARG002 - it looks at all processes anyway
        return self._census.populated(run_ids([run]))

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        return ((process.pid, run_id) for process, run_id in self._census.take(run_ids(tops)))

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._membership.run_of(pid, pidfd)
