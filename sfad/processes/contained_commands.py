"""Executes commands that are not runs, such as the daemon's own git: each in a containment of its
own, so that whatever it has started ends with it, and dies with the daemon's next start if the
daemon is killed.

The launcher contains each as it does a run, under a name that is not the id of a run:
`command-1f0a93c2-1`.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack

import trio
from msgspec import Struct, field

from ..core import events as e
from ..core.state.vocabulary import signal_name
from ..protocol.types import RunId
from .credentials import Credentials
from .launcher import UNBOUND, Bounds, Launcher, LaunchSpec

KEPT = 16 << 10
"""Bytes that are kept of what a command prints: the last ones, where the error is."""

BOUNDS = Bounds(memory=512 << 20, pids=64)
"""Where the kernel enforces them."""

KILL_WAIT = 30.0
"""Seconds that the daemon waits for the end of a killed command before it is left to the launcher,
which goes on killing."""


class ContainedCommand(Struct, frozen=True):
    argv: Sequence[bytes]
    cwd: bytes
    env: list[bytes]
    stdin: bytes
    timeout: float
    user: Credentials | None = None
    """`None` is the daemon's own user."""
    sandbox: list[bytes] | None = None
    """As in `LaunchSpec`."""


class CommandResult(Struct, frozen=True):
    how: str
    """How it ended, in words: `exit code 0`."""
    ok: bool
    output: bytes
    elapsed_s: float


class _Process(Struct):
    exited: trio.Event = field(default_factory=trio.Event)
    emptied: trio.Event = field(default_factory=trio.Event)
    how: str = ""
    ok: bool = False
    output: bytes = b""
    left: bool = False
    """Nothing waits for it any more."""
    stop: trio.CancelScope = field(default_factory=trio.CancelScope)


class ContainedCommands:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._processes: dict[RunId, _Process] = {}
        self.names = self._processes.keys()
        """The commands that are executed now."""
        self._operators: set[RunId] = set()
        self._prefix = f"command-{secrets.token_hex(4)}"
        """Of the names of this daemon's commands: those that an earlier daemon could not kill have
        another."""
        self._last = 0
        self._resting = False
        self._ended: trio.lowlevel.ParkingLot = trio.lowlevel.ParkingLot()

    def is_operators(self, name: RunId | None) -> bool:
        """Return whether that is a command of the config, which acts for the operator."""
        return name in self._operators

    def arrived(self, event: e.OfRun) -> None:
        """Take what the launcher tells of a command."""
        process = self._processes[event.run]
        match event:
            case e.LaunchFailed():
                process.how = event.error
                process.exited.set()
            case e.MainExited():
                process.ok = event.code == 0
                process.how = (
                    f"killed by {signal_name(event.signal)}"
                    if event.signal
                    else f"exit code {event.code}"
                )
                process.exited.set()
            case e.Emptied():
                process.emptied.set()
                if process.left:
                    self._forget(event.run)

    async def run(
        self, command: ContainedCommand, stop: trio.CancelScope, *, operators: bool
    ) -> CommandResult:
        """Execute a command, and return when nothing of it is alive. Cancel `stop` to end it
        early."""
        if self._resting:
            return CommandResult(
                "not started: the daemon ends, or is replaced", ok=False, output=b"", elapsed_s=0.0
            )
        self._last += 1
        name, process, began = (
            f"{self._prefix}-{self._last}",
            _Process(stop=stop),
            trio.current_time(),
        )
        self._processes[name] = process
        if operators:
            self._operators.add(name)
        try:
            with ExitStack() as stack:
                try:
                    output = self._launch(name, command, stack)
                except OSError as error:
                    return CommandResult(
                        f"not started: {error.strerror}", ok=False, output=b"", elapsed_s=0.0
                    )
                try:
                    await self._supervise(process, output, command.timeout, stop)
                finally:
                    await self._end(name, process)
                _drain(output, process)
        finally:
            if process.emptied.is_set() or not process.how:
                self._forget(name)
            else:
                process.left = True
            self._ended.unpark_all()
        return CommandResult(
            process.how, process.ok, process.output, round(trio.current_time() - began, 3)
        )

    async def rest(self) -> None:
        """Start no more, and end all that run, whatever has started them."""
        self._resting = True
        while waited_for := [process for process in self._processes.values() if not process.left]:
            for process in waited_for:
                process.stop.cancel()
            await self._ended.park()

    def go_on(self) -> None:
        """Undo `rest`."""
        self._resting = False

    def _launch(self, name: RunId, command: ContainedCommand, stack: ExitStack) -> int:
        """Start the command. Return where its output can be read."""
        output, far_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, output)
        try:
            os.set_blocking(far_end, True)
            stdin = os.memfd_create("event", os.MFD_CLOEXEC)
            try:
                _write_all(stdin, command.stdin)
                bounds = BOUNDS if self._launcher.enforced_by("pids") == "kernel" else UNBOUND
                spec = LaunchSpec(
                    argv=list(command.argv), cwd=command.cwd, env=command.env, umask=0o077,
                    stdin=stdin, stdout=far_end, stderr=far_end, bounds=bounds, user=command.user,
                    sandbox=command.sandbox,
                )  # fmt: skip
                self._launcher.launch(name, None, spec, lambda _: True)
            finally:
                os.close(stdin)
        finally:
            os.close(far_end)
        return output

    async def _supervise(
        self, process: _Process, output: int, timeout: float, stop: trio.CancelScope
    ) -> None:
        """Wait until the main process has ended, the time is over, or it is cancelled."""
        with trio.move_on_after(timeout) as in_time, stop:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read, output, process)
                await process.exited.wait()
                nursery.cancel_scope.cancel()
        if not process.exited.is_set():
            process.how = (
                f"not ended within {timeout:g} s, and killed"
                if in_time.cancelled_caught
                else "cancelled"
            )

    async def _end(self, name: RunId, process: _Process) -> None:
        """Kill what is left of it."""
        how, ok = process.how, process.ok
        with trio.CancelScope(shield=True):
            self._launcher.kill(name)
            with trio.move_on_after(KILL_WAIT):
                await process.emptied.wait()
        process.how, process.ok = how, ok

    def _forget(self, name: RunId) -> None:
        self._launcher.release(name)
        del self._processes[name]
        self._operators.discard(name)


async def _read(output: int, process: _Process) -> None:
    while True:
        await trio.lowlevel.wait_readable(output)
        if not _take(output, process):
            return


def _take(output: int, process: _Process) -> bool:
    """Read what there is. Return whether there may be more later."""
    try:
        data = os.read(output, 65536)
    except BlockingIOError:
        return True
    process.output = (process.output + data)[-KEPT:]
    return bool(data)


def _drain(output: int, process: _Process) -> None:
    """Read what is left in the pipe, whose writers are dead."""
    for _ in range(17):  # a pipe has 64 KiB, in pieces of 4 KiB at least
        _take(output, process)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
