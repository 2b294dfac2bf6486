"""What the launcher needs of a containment: cgroups, or tags."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from ...protocol.types import RunId
from ..complaints import Complaints
from ..launched_runs import HeldRun, HeldRuns
from ..watch.owed_events import OwedEvents
from ..watch.reactor import Reactor
from ..watch.reaper import Orphans


@dataclass(frozen=True, slots=True)
class Ground:
    """What the launcher lends to its containment."""

    runs: HeldRuns
    reactor: Reactor
    orphans: Orphans
    complaints: Complaints
    owed: OwedEvents


@dataclass(frozen=True, slots=True)
class Door:
    """How a trampoline gets into a run's containment."""

    fd: int | None = None
    """Where it writes "0", if it has to. The launcher closes it."""
    msgqueue: int | None = None
    """The soft RLIMIT_MSGQUEUE that tags it."""


class RunLimits:
    """The bounds of runs, where the kernel enforces none."""

    def enforces(self, kind: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the kernel can hold runs to that kind of bound."""
        return False

    def limit(self, held: HeldRun) -> None:
        """Have the kernel hold the run to its bounds, where it can."""

    def used(self, held: HeldRun, kind: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return what the kernel counts against a bound: for `pids`, processes and threads of a bounded run; for `memory`, bytes
        of a run whose memory was charged to it from its start. None if the kernel does not count it."""
        return None

    def breaches(self, held: HeldRun) -> frozenset[str]:  # noqa: ARG002 - for subclasses
        """See `Launcher.breaches`."""
        return frozenset()


class AdoptedRuns(Protocol):
    """Runs that an earlier daemon launched. All methods but `forget` raise `OSError`."""

    def rejoin(self, held: HeldRun) -> None:
        """Adopt the run's containment, as far as that is there."""

    def forget(self, held: HeldRun) -> None:
        """Undo `rejoin`, and leave the processes as they are."""

    def carries(self, held: HeldRun, pid: int) -> bool:
        """Return whether a process is provably the run's."""

    def settle(self, held: HeldRun) -> bool:
        """Return whether anything is alive in the run. Called once, after its main process, if that is alive, was adopted."""


class RunContainment(Protocol):
    """Holds the processes of every run together, so that all of them can be found, signalled, paused and counted."""

    kind: Literal["cgroup", "tags"]
    detail: str
    """Where runs are contained, or why not by cgroup."""
    limits: RunLimits
    adopted: AdoptedRuns

    def enter(self, held: HeldRun) -> Door:
        """Make the run's containment if it is not there. Raises `OSError`."""

    def leave(self, held: HeldRun) -> None:
        """Remove what `enter` made."""

    def terminate(self, held: HeldRun, number: int) -> None:
        """Signal every process."""

    def kill(self, held: HeldRun) -> None:
        """Kill every process, again and again until the run is empty."""

    def freeze(self, held: HeldRun) -> None:
        """Stop every process. Calls `OwedEvents.stands_still` when that is done."""

    def thaw(self, held: HeldRun) -> None:
        """Continue every process but those of child runs that were paused by themselves."""

    def populated(self, held: HeldRun) -> bool:
        """Return whether anything is alive in the run, besides zombies and unreaped main processes of child runs. Raises `OSError`.

        While the run is being emptied, the containment calls `OwedEvents.consider` when this may have become false."""

    def members(self, *tops: HeldRun) -> Iterable[tuple[int, RunId]]:
        """Yield every live process in these runs, of which none is in another, and the run that the process is in. Raises
        `OSError`."""

    def outside(self, held: HeldRun) -> Iterable[tuple[int, RunId]]:  # noqa: ARG002 - for subclasses
        """Yield live processes of the run that `members` does not find, because they have left its containment."""
        return ()

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """See `Launcher.place`."""

    def close(self) -> None:
        """Remove what the containment made for itself."""
        return
