"""What the launcher needs of a containment: cgroups, or tags."""

from collections.abc import Iterable
from typing import Literal, Protocol

from msgspec import Struct

from ...protocol.types import RunId
from ..launched_runs import LaunchedRun, LaunchedRuns
from ..trampoline.creating import Door
from ..watch import Complaints, Orphans, OwedEvents, Reactor


class LauncherParts(Struct, frozen=True):
    """What the launcher lends to its containment."""

    runs: LaunchedRuns
    reactor: Reactor
    orphans: Orphans
    complaints: Complaints
    owed: OwedEvents


class KernelLimits:
    """The bounds of runs that the kernel enforces: here none."""

    def enforces(self, kind: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the kernel can enforce that kind of bound."""
        return False

    def limit(self, run: LaunchedRun) -> None:
        """Have the kernel enforce the run's bounds, where it can."""

    def used(self, run: LaunchedRun, kind: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return what the kernel counts against a bound: for `pids`, processes and threads of a
        bounded run; for `memory`, bytes of a run whose memory was charged to it from its start.
        None if the kernel does not count it."""
        return None

    def cpu_seconds(self, run: LaunchedRun) -> float | None:  # noqa: ARG002 - for subclasses
        """Return what CPU the run and its descendants have used so far, ended processes included.
        None if the kernel does not count it."""
        return None

    def breaches(self, run: LaunchedRun) -> frozenset[str]:  # noqa: ARG002 - for subclasses
        """See `Launcher.breaches`."""
        return frozenset()


class AdoptedRuns(Protocol):
    """Runs that an earlier daemon launched. All methods but `forget` raise `OSError`."""

    def rejoin(self, run: LaunchedRun) -> None:
        """Adopt the run's containment, as far as that is there."""

    def forget(self, run: LaunchedRun) -> None:
        """Undo `rejoin`, and leave the processes as they are. Does not raise."""

    def is_of(self, run: LaunchedRun, pid: int) -> bool:
        """Return whether a process is provably the run's."""

    def finish(self, run: LaunchedRun) -> bool:
        """Return whether anything is alive in the run. Called once, after its main process, if that
        is alive, was adopted."""


class RunStops(Protocol):
    """Signals to all processes of a run and its descendants. All methods may raise `OSError`, and
    are called again then."""

    def terminate(self, run: LaunchedRun, number: int) -> None:
        """Signal every process."""

    def kill(self, run: LaunchedRun) -> None:
        """Kill every process, again and again until the run is empty."""


class RunPauses(Protocol):
    """Like `RunStops`."""

    def freeze(self, run: LaunchedRun) -> None:
        """Stop every process. Calls `OwedEvents.report_frozen` when that is done."""

    def thaw(self, run: LaunchedRun) -> None:
        """Continue every process but those of child runs that were paused by themselves."""


class RunContainment(Protocol):
    """Keeps the processes of every run together, so that all of them can be found, signalled,
    paused and counted."""

    kind: Literal["cgroup", "tags"]
    detail: str
    """Where runs are contained, or why not by cgroup."""
    limits: KernelLimits
    adopted: AdoptedRuns
    stops: RunStops
    pauses: RunPauses

    def make(self, run: LaunchedRun) -> Door:
        """Make the run's containment if it is not there. Raises `OSError`."""

    def remove(self, run: LaunchedRun) -> None:
        """Remove what `make` made."""

    def populated(self, run: LaunchedRun, poll: int | None = None) -> bool:
        """Return whether anything is alive in the run, besides zombies and unreaped main processes
        of child runs. `poll`: that of the reactor which told that its main process has ended, if
        one did. Raises `OSError`.

        While the run is being emptied, the containment calls `OwedEvents.report_if_empty` when this
        may have become false."""

    def members(self, *tops: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        """Yield every live process in these runs, of which none is in another, and the run that the
        process is in. Raises `OSError`."""

    def outside(self, run: LaunchedRun) -> Iterable[tuple[int, RunId]]:  # noqa: ARG002 - for subclasses
        """Yield live processes of the run that `members` does not find, because they have left its
        containment."""
        return ()

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        """See `Launcher.run_of`."""

    def run_of_cgroup(self, inode: int) -> RunId | None:  # noqa: ARG002 - for subclasses
        """See `Launcher.run_of_cgroup`."""
        return None

    def close(self) -> None:
        """Remove what the containment made for itself."""
        return
