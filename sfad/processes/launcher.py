"""What the loop needs of a launcher. It is asked by run id, and answers with the core's events."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, Protocol

import trio
from msgspec import Struct

from ..core.events import Event
from ..protocol.types import RunId
from .credentials import Credentials

# ---- SIGCHLD as a descriptor


_SIGSET_T, _SIGINFO = 128, 128
"""Bytes of glibc's sigset_t and of a signalfd_siginfo."""


class ChildSignals:
    """SIGCHLD as a descriptor to wait for (signalfd(2)). A handler would run for each child, and
    one child in a thousand is an orphan: that was 8 % of what a short run costs (measured).

    Make it in the main thread before any other thread is started: threads inherit that the signal
    is blocked. Processes that the launcher starts do not; other children would have to unblock
    it."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        mask = (1 << (signal.SIGCHLD - 1)).to_bytes(_SIGSET_T, sys.byteorder)
        self._descriptor: int = ctypes.CDLL(None, use_errno=True).signalfd(
            -1, mask, os.O_CLOEXEC | os.O_NONBLOCK
        )
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """Return the descriptor, which is readable once children have ended, until `take`."""
        return self._descriptor

    def take(self) -> None:
        """Take the signal. Several that came meanwhile are one."""
        # a thread that does not block the signal may have taken it meanwhile
        with suppress(BlockingIOError):
            os.read(self._descriptor, _SIGINFO)

    def close(self) -> None:
        """Close the descriptor. The signal stays blocked, because other threads may be there."""
        os.close(self._descriptor)


# ---- What the loop needs of a launcher


Emit = Callable[[Event], None]
"""How a launcher reports: called in trio's thread, never from within a call to the launcher."""
Complain = Callable[[str], object]
"""How a launcher tells the log what it could not do yet and is trying again."""
Enforcement = Literal["kernel", "watching", "nothing"]
"""How limits of runs are enforced: exactly, by the kernel; as best effort, by looking at them now
and then or by binding them to CPUs; or not at all."""


class Bounds(Struct, frozen=True):
    """What the kernel shall limit a run and its descendants to, where it can; `None` is no bound.

    A limit that only warns does not belong here. Where the kernel cannot, `sfad.usage.sampling`
    watches `memory` and `pids`."""

    memory: int | None = None
    """Bytes. If the run needs more, the kernel ends one of its processes."""
    pids: int | None = None
    """Processes and threads together, as the kernel counts them. At the bound fork(2) fails with
    EAGAIN."""
    cpu: float | None = None
    """Cores. A run that wants more is slower."""


UNBOUND = Bounds()


class LaunchSpec(Struct, frozen=True):
    """One attempt at a run's command. The descriptors stay the caller's; the launcher duplicates
    them."""

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
    alone: bool = False
    """That terminal is the run's alone: no shell could continue what Ctrl-Z stops there."""
    bounds: Bounds = UNBOUND
    stand_ins: Sequence[bytes] = ()
    """Directories of PATH in which the command itself is not searched: they have stand-ins for what
    the command starts."""
    sandbox: list[bytes] | None = None
    """The command that starts this one in a sandbox of its own, without the files to execute and
    `--`."""
    first_step: list[bytes] | None = None
    """The command that makes the directory in which the run works, and then starts the sandbox or
    the command in there (`helper.completed`)."""
    user: Credentials | None = None
    """Who executes the command; `None` is the daemon's own user."""
    nonce: str = ""
    """The random part of the run's cookie, hexadecimal: the same for all attempts, so that the next
    daemon finds the run by it. The launcher makes one where there is none."""


class LaunchRecord(Struct, frozen=True):
    """What is saved of a launched run, to find it again: after the death of the daemon that
    launched it, or after that daemon's re-exec."""

    nonce: str
    bounds: Bounds = UNBOUND
    pid: int = 0
    """The main process; 0 if there is none, because it has ended, could not be started, or was not
    saved, and so not let run."""
    started: int | None = None
    """When that process started, in clock ticks since boot (field 22 of /proc/PID/stat). A process
    with that pid and another start is another process. `None` if it is not known."""
    executed: bool = True
    """Whether it is known to have become the command. Else it may still be a trampoline, and
    hang."""
    report: int | None = None
    """For a launch in flight during a re-exec: the descriptor on which the trampoline reports. It
    becomes the launcher's."""
    sandboxed: bool = False
    """Whether the main process keeps the command in a sandbox."""


class Adopted(Struct, frozen=True):
    """What there is of a run that was adopted."""

    pid: int | None
    """Its main process, if that is alive, or a child of ours that waits to be reaped. `MainExited`
    will report its end."""
    empty: bool
    """Whether nothing is alive in its containment, child runs included. With tags only adopted
    child runs are known: there a tree is empty if this is true of each of its runs."""
    starting: bool = False
    """Whether its launch is in flight: `LaunchSucceeded` or `LaunchFailed` will be reported."""


class Footprint(Struct, frozen=True):
    """What is in a run's containment now, child runs included."""

    processes: int
    memory_bytes: int
    """Anonymous and shared memory as the kernel charges it, where a memory controller has seen the
    run from its start. Else resident memory, summed over the processes: a shared page counts once
    for each of them."""
    cpu_s: float | None = None
    """Seconds of CPU, of user and system. In a cgroup, of all processes that were in it; else of
    those that are alive."""


Remember = Callable[[LaunchRecord], bool]
"""Saves that there is a main process, which executes nothing before this returns. If it returns
false, the launch fails."""


class RunProcesses(Protocol):
    """What is done to the processes of runs. Every method returns at once."""

    def terminate(self, run_id: RunId, signal: int) -> None:
        """Send a signal to every process of the run and its descendants; `Emptied` follows when
        none is left."""

    def kill(self, run_id: RunId) -> None:
        """Send SIGKILL to every process of the run and its descendants until none is left;
        `Emptied` follows."""

    def freeze(self, run_id: RunId) -> None:
        """Pause every process of the run and its descendants; `Frozen` follows."""

    def thaw(self, run_id: RunId) -> None:
        """Undo `freeze`."""

    def signal_main(self, run_id: RunId, signal: int) -> bool:
        """Send a signal to the main process alone; return whether there was one."""

    def survey(self, run_id: RunId) -> None:
        """List what is alive in the run and its descendants; `Surveyed` follows."""

    def release(self, run_id: RunId) -> None:
        """Forget the run and remove its containment."""


class Launcher(RunProcesses, Protocol):
    """Starts, stops, pauses and counts runs by their ids. Every method returns at once; events
    through `Emit` follow: `LaunchSucceeded | LaunchFailed`, `MainExited`, `Emptied`, `Frozen`,
    `Surveyed`."""

    containment: Literal["cgroup", "tags"]

    @property
    def detail(self) -> str:
        """Where runs are contained, or why not by cgroup; for `status` and `doctor`."""

    def launch(
        self, run_id: RunId, parent: RunId | None, spec: LaunchSpec, remember: Remember
    ) -> None:
        """Start the run's command, for the first time or again; `LaunchSucceeded` or `LaunchFailed`
        follows."""

    def enter(self, run_id: RunId, parent: RunId | None, record: LaunchRecord) -> None:
        """Know a run that a program carries out, and which has no process of its own: those of runs
        below it are contained in it. It is not empty until `leave`."""

    def leave(self, run_id: RunId, failed: str | None = None, *, left: bool = False) -> None:
        """Take such a run for ended: `MainExited` follows. `failed`, `left`: see there."""

    def bound(self, run_id: RunId, bounds: Bounds) -> None:
        """Set other bounds for a live run. If they are below what the run uses now, the kernel ends
        processes (memory), or refuses to start any (pids). If the kernel refuses the bounds, the
        log says so."""

    def enforced_by(self, kind: str) -> Enforcement:
        """Return how limits are enforced of kind `memory`, `pids` or `cpu`. It is `nothing` only
        for `cpu`."""

    def breaches(self, run_id: RunId) -> frozenset[str]:
        """Return the kinds of bound (`memory`, `pids`) that the kernel had to enforce since the run
        started or got other bounds. Known before `MainExited` of a main process that the kernel
        killed for it, and until the run's release."""

    def footprints(self, runs: Iterable[RunId], *, cpu: bool = False) -> dict[RunId, Footprint]:
        """Return what each of these runs and its descendants have, from one pass over the machine,
        without runs that are not launched, and those of which it cannot be told now. `cpu`: with
        `cpu_s`, which takes another look."""

    def amounts(self, kind: str, exact_from: Mapping[RunId, float]) -> dict[RunId, int]:
        """Return what counts against a limit of kind `memory` or `pids`, as `footprints` does.
        `exact_from` says for each run from which amount on it must be exact: a smaller one may be
        too high, because the exact one takes longer."""

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run that a process is in, from the kernel; `None` if it is in none. Raises
        `Unidentifiable`."""

    def run_of_cgroup(self, inode: int) -> RunId | None:
        """Return the run whose processes are in this cgroup; `None` if there is none, or where runs
        have no cgroups."""

    def watch_agents(self, programs: frozenset[str]) -> None:
        """Report processes of runs that execute one of these programs (`naming.agent_of`), now and
        from now on: `AgentSeen`. The same process may be reported again."""

    def own(self, pid: int) -> None:
        """Take a child of the caller for no orphan: the caller reaps it, and no run's end kills
        it."""

    def disown(self, pid: int) -> None:
        """Undo `own`: the process was reaped."""

    def adopt(self, run_id: RunId, parent: RunId | None, record: LaunchRecord) -> Adopted:
        """Adopt a run that an earlier daemon launched: what is alive of it is treated as if it had
        been launched here. Its parent was adopted before; and if the earlier daemon was this very
        process, `serve` was not called yet.

        A frozen run stays frozen. The caller asks again for what had not been answered (a stop, a
        freeze). If its main process is not our child, its exit code is what the kernel tells
        afterwards (PIDFD_GET_INFO, Linux 6.15), else `MainExited` has neither code nor signal. If
        nothing of the run is alive, only its name is kept, until its release. A trampoline whose
        command is not known to run (`executed` is false) becomes the command, or is killed: this
        waits for half a second at most. Raises `OSError` where the system is short of something;
        then nothing is adopted, and the caller may try again."""

    def hand_over(self) -> dict[RunId, LaunchRecord]:
        """Return, before a re-exec, what `adopt` needs of every launched run, parents first.
        Descriptors in it stay open across execve(2) from now on; nothing is stopped or undone.
        Between this and execve(2), or `take_back`, the task of `serve` must not run: its reports
        would be lost. If it raises `OSError`, nothing has changed."""

    def take_back(self) -> None:
        """Undo `hand_over`, because the execve(2) has failed: descriptors are close-on-exec
        again."""

    def watch_children(self, signals: ChildSignals) -> None:
        """From now on, reap the orphans that were reparented to this process when SIGCHLD tells
        that they have ended."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reap, watch and report until cancelled."""

    def close(self) -> None:
        """Remove what the launcher made for itself. Every run was released before."""


class LaunchError(Exception):
    """A command cannot be started: the system's error, and a text that names the command or
    directory."""

    def __init__(
        self,
        number: int,
        doing: str,
        what: bytes,
        note: str = "",
        *,
        kind: Literal["launch", "output"] = "launch",
        about: Literal["command", "directory"] = "command",
    ) -> None:
        self.errno = number
        self.kind = kind
        self.about = about
        named = what.decode("utf-8", "backslashreplace") or "''"
        self.text = f"{doing} {named}: {os.strerror(number)}{note}"
        super().__init__(self.text)


class Unidentifiable(Exception):
    """The kernel's answers about a process contradict each other, or the process is gone: it gets
    no rights."""


class CgroupImpossible(Exception):
    """Runs cannot be contained in cgroups here, and why."""
