"""What the runtime needs of a launcher. It is asked by run id and answers with the core's events."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import trio

from ..core.events import Event
from ..protocol.types import RunId

Emit = Callable[[Event], None]
"""How a launcher reports. Called in the trio thread, never from within a call to the launcher that could be re-entered."""


Enforcement = Literal["kernel", "watching", "nothing"]
"""Who holds runs to a limit: the kernel, exactly; who looks at them now and then, or binds them to CPUs, as best effort; nobody."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run and its descendants shall be held to by the kernel, where it can; `None` is no bound.

    A limit that is only to be noticed does not belong here. Where the kernel cannot, `memory` and `pids` are nothing more
    than that: somebody has to watch (`sfad.metering.sampling`).
    """

    memory: int | None = None
    """Bytes. More is not given: the kernel ends a process of the run."""
    pids: int | None = None
    """Processes and threads, which the kernel does not tell apart. More are not made: fork(2) fails with EAGAIN."""
    cpu: float | None = None
    """Cores. More is not given: the run is slower."""


UNBOUND = Bounds()


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One attempt at a run's command, complete. The descriptors stay the caller's; the launcher duplicates them."""

    argv: list[bytes]
    cwd: bytes
    env: list[bytes]
    """`KEY=VALUE`, passed to execve(2) unchanged, after the launcher's own tag has been added."""
    umask: int = 0o022
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    """`None` is /dev/null."""
    terminal: bool = False
    """Make the terminal behind `stdin` the controlling terminal of the run's session."""
    bounds: Bounds = UNBOUND
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    """The random part of the run's cookie, hexadecimal: the same for all attempts, so that who remembers it finds the run again."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What is remembered of a launched run, to find it again: after the death of the daemon that launched it, or after that
    daemon executed itself anew."""

    nonce: str
    bounds: Bounds = UNBOUND
    pid: int = 0
    """Of the main process; 0 if there is none, since it has ended or could not be started, or was not remembered, and so not let
    run."""
    started: int | None = None
    """When that process started, in clock ticks since boot (field 22 of /proc/PID/stat); what has another start is another
    process. `None` if it had not been told."""
    executed: bool = True
    """It is known to have become the command. Else it may be a trampoline still, and hang."""
    report: int | None = None
    """Of a launch in flight whose daemon executed itself anew: the descriptor on which the trampoline reports. It becomes the
    launcher's."""


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a run that was adopted."""

    pid: int | None
    """Of its main process, if that lives or is a child of ours that waits to be reaped. Its end will be reported by
    `MainExited`, as of any other."""
    empty: bool
    """Nothing is alive in its containment, child runs included. By tags only those child runs that have been adopted are
    known: there a tree is empty if this is said of every run of it."""
    starting: bool = False
    """Its launch is in flight: `LaunchSucceeded` or `LaunchFailed` will be reported."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a run's containment holds now, child runs included."""

    processes: int
    memory_bytes: int
    """Anonymous and shared memory as the kernel charges it, where a memory controller has seen the run from its start; else
    resident memory, summed over the processes, in which a page that is shared counts once a process."""


Remember = Callable[[Remains], bool]
"""Called once a main process is there, which executes nothing before this returns. False: it was not possible, and the launch
fails."""


class Launcher(Protocol):
    """Every verb names a run. Verbs return at once; what takes time is answered by an event through `Emit`:
    `LaunchSucceeded | LaunchFailed`, `MainExited`, `Emptied`, `Frozen`, `Surveyed`."""

    containment: Literal["cgroup", "tags"]
    detail: str
    """Where runs are contained, or why not by cgroup; for `status` and `doctor`."""

    def launch(self, run: RunId, parent: RunId | None, spec: LaunchSpec, remember: Remember) -> None: ...
    def terminate(self, run: RunId, signal: int) -> None: ...
    def kill(self, run: RunId) -> None: ...
    def survey(self, run: RunId) -> None: ...
    def freeze(self, run: RunId) -> None: ...
    def thaw(self, run: RunId) -> None: ...
    def release(self, run: RunId) -> None: ...
    def signal_main(self, run: RunId, signal: int) -> bool: ...
    def bound(self, run: RunId, bounds: Bounds) -> None:
        """Other bounds for a live run; nothing happens if it is not held. What the kernel refuses is told to `complain`."""

    def enforcement(self, kind: str) -> Enforcement:
        """Who holds runs to a limit of kind `memory`, `pids` or `cpu` here. `nothing` only for `cpu`."""

    def breaches(self, run: RunId) -> frozenset[str]:
        """The kinds (`memory`, `pids`) of bound that the kernel had to enforce since the run started or was bound anew. It
        knows before `MainExited` what it killed the main process for, and until the run's release."""

    def load(self, run: RunId) -> Load | None: ...
    def loads(self, runs: Iterable[RunId]) -> dict[RunId, Load]:
        """What these runs hold, in one pass over the machine. What is not held, or cannot be told now, is not in it."""

    def uses(self, kind: str, worth: Mapping[RunId, float]) -> dict[RunId, int]:
        """What counts against a limit of kind `memory` or `pids` of these runs, as `loads` does it. `worth` says for each from
        which figure on it has to be exact: a smaller one may be too high, for the exact one takes longer."""

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """The run that a process is in, from the kernel; `None` if in none. Raises `Unplaceable`."""

    def adopt(self, run: RunId, parent: RunId | None, remains: Remains) -> Found:
        """Takes over a run that an earlier daemon launched, after its parent and, if that daemon was this very process, before
        `serve`: what is alive of it is held as if it had been launched here. Its freezer is left as it is, and what had been
        asked and not answered (a stop, a freeze) is to be asked again. Where its main process is not our child its exit code is
        what the kernel tells of it afterwards (PIDFD_GET_INFO, Linux 6.15 and later), else unknown: `MainExited` with neither.
        Of a run of which nothing is alive nothing is held but its name, until its release. A launch whose news had not
        come in (`pid` is `None`) goes on, or does not take place any more: this waits for it, for at most half a second.
        Raises `OSError` where the system is short of something, and then holds nothing: to be tried again."""

    def remains(self, run: RunId) -> Remains | None:
        """What to remember of a run, `report` aside; `None` if it is not held. Good for an attempt from its `LaunchSucceeded`
        on: the same until the main process ends."""

    def hand_over(self) -> dict[RunId, Remains]:
        """Before this process executes itself anew: what `adopt` needs of every run that is held, parents first. Descriptors
        in it stay open across execve(2) from now on. Nothing is stopped or undone. Between this and execve(2), or `take_back`,
        `serve` must not come to its turn: what it reports then would be lost. Raises `OSError`, and then it has not been
        done."""

    def take_back(self) -> None:
        """The execve(2) has failed: descriptors are closed by it again, and everything goes on."""

    def child_signalled(self) -> None:
        """SIGCHLD arrived: orphans that were handed to this process may be waiting to be reaped."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reaps, watches and reports until cancelled."""

    def close(self) -> None:
        """Removes what the launcher made for itself. Every run has been released before."""


class Unplaceable(Exception):
    """The kernel's answers about a process contradict each other or are gone; the guard fails closed."""
