"""What the runtime needs of a launcher. It is asked by run id and answers with the core's events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import trio

from ..core.events import Event
from ..protocol.types import RunId

Emit = Callable[[Event], None]
"""How a launcher reports. Called in the trio thread, never from within a call to the launcher that could be re-entered."""


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


@dataclass(frozen=True, slots=True)
class Load:
    """What a run's containment holds now, child runs included."""

    processes: int
    memory_bytes: int
    """Resident memory, summed; shared pages count once a process."""


class Launcher(Protocol):
    """Every verb names a run. Verbs return at once; what takes time is answered by an event through `Emit`:
    `LaunchSucceeded | LaunchFailed`, `MainExited`, `Emptied`, `Frozen`, `Surveyed`."""

    containment: Literal["cgroup", "tags"]
    detail: str
    """Where runs are contained, or why not by cgroup; for `status` and `doctor`."""

    def launch(self, run: RunId, parent: RunId | None, spec: LaunchSpec) -> None: ...
    def terminate(self, run: RunId, signal: int) -> None: ...
    def kill(self, run: RunId) -> None: ...
    def survey(self, run: RunId) -> None: ...
    def freeze(self, run: RunId) -> None: ...
    def thaw(self, run: RunId) -> None: ...
    def release(self, run: RunId) -> None: ...
    def signal_main(self, run: RunId, signal: int) -> bool: ...
    def load(self, run: RunId) -> Load | None: ...
    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """The run that a process is in, from the kernel; `None` if in none. Raises `Unplaceable`."""

    def child_signalled(self) -> None:
        """SIGCHLD arrived: orphans that were handed to this process may be waiting to be reaped."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reaps, watches and reports until cancelled."""

    def close(self) -> None:
        """Removes what the launcher made for itself. Every run has been released before."""


class Unplaceable(Exception):
    """The kernel's answers about a process contradict each other or are gone; the guard fails closed."""
