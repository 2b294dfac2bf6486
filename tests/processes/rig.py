"""A launcher that is served, and what it has reported."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import trio

from sfad.core.events import Emptied, Event, Frozen, LaunchFailed, LaunchSucceeded, MainExited
from sfad.processes import procfs
from sfad.processes.contain.cgroup.containment import CgroupContainment
from sfad.processes.contain.tags import TagsContainment
from sfad.processes.launched_runs import LaunchedRun, MainProcess
from sfad.processes.launcher import CgroupImpossible, Complain, LaunchSpec, Remains
from sfad.processes.local_launcher import LocalLauncher, choose_launcher
from sfad.processes.sweep import sweep
from sfad.processes.trampoline import executable
from sfad.processes.watch import Complaints, Emitter
from tests.template import close_template

PATIENCE = 60.0
"""Seconds within which anything must have happened, on a machine that is shared."""

E = TypeVar("E", bound=Event)


def skip(reason: str) -> NoReturn:
    """Skip the test."""
    import pytest  # a third of what a start of `tests.processes.earlier_daemon` costs, and that skips nothing

    pytest.skip(reason)


def make(
    kind: str, emit: Callable[[Event], None], *, program: str = "elf", instance: str = "", complain: Complain = print
) -> LocalLauncher:
    """Return a launcher with that containment; skip the test where there is none."""
    close_template()  # a launcher looks after every child of its process
    start = {"elf": executable.best, "python": executable.python}[program]
    name = instance or secrets.token_hex(6)
    if kind == "tags":  # not by `choose_launcher`, which stays in the cgroups of an earlier daemon
        complaints = Complaints(complain)
        emitter = Emitter(emit, trio.current_time, complaints.failed)
        return LocalLauncher(name, emitter, complaints, TagsContainment, trampoline=start())
    try:
        return choose_launcher(instance=name, emit=emit, mode="cgroup", complain=complain, trampoline=start())
    except CgroupImpossible as reason:
        skip(f"no cgroup containment here: {reason}")


class Rig:
    """Drives a launcher as the loop does."""

    def __init__(self, kind: str, *, program: str = "elf", instance: str = "") -> None:
        self.events: list[Event] = []
        self.remembered: list[Remains] = []
        self.forgets = False
        self._more = trio.Event()
        self._bugs: list[str] = []
        self.launcher = make(kind, self._note, program=program, instance=instance, complain=self._hear)

    @property
    def cgroups(self) -> CgroupContainment:
        """The launcher's containment; skips the test if that is by tags."""
        if not isinstance(self.launcher._containment, CgroupContainment):
            skip("only with cgroups")
        return self.launcher._containment

    @property
    def tags(self) -> TagsContainment:
        """The launcher's containment; skips the test if that is by cgroups."""
        if not isinstance(self.launcher._containment, TagsContainment):
            skip("only with tags")
        return self.launcher._containment

    def _hear(self, complaint: str) -> None:
        if "internal error" in complaint:
            self._bugs.append(complaint)

    def check(self) -> None:
        """Fail if the launcher has met a bug of its own: it tries again, so a test may pass nevertheless."""
        assert not self._bugs, "\n".join(self._bugs)

    def launched(self, run: str) -> LaunchedRun:
        """What the launcher knows of a run."""
        return self.launcher._runs[run]

    def main(self, run: str) -> MainProcess:
        """Its main process."""
        main = self.launched(run).main
        assert main is not None
        return main

    def remember(self, remains: Remains) -> bool:
        """Save what remains of a run, unless the rig `forgets`."""
        self.remembered.append(remains)
        return not self.forgets

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()
        self._more = trio.Event()

    def launch(
        self,
        run: str,
        *argv: str | bytes,
        parent: str | None = None,
        cwd: str = "/",
        env: Sequence[bytes] = (b"PATH=/usr/local/bin:/usr/bin:/bin",),
        **spec: object,
    ) -> None:
        """Launch a command."""
        words = [os.fsencode(word) for word in argv]
        made = LaunchSpec(words, os.fsencode(cwd), list(env), **spec)  # type: ignore[arg-type]
        self.launcher.launch(run, parent, made, self.remember)

    def python(self, run: str, code: str, *argv: str, **spec: object) -> None:
        """Launch a Python program."""
        self.launch(run, sys.executable, "-I", "-S", "-c", code, *argv, **spec)  # type: ignore[arg-type]

    async def wait(self, kind: type[E], run: str, *, after: int = 0) -> E:
        """Return the first event of that kind about the run, from the `after`-th event on."""
        with trio.fail_after(PATIENCE):
            while True:
                for event in self.events[after:]:
                    if isinstance(event, kind) and getattr(event, "run", None) == run:
                        return event
                await self._more.wait()

    async def running(self, *runs: str) -> None:
        """Wait until all of these runs have been executed."""
        for run in runs:
            await self.wait(LaunchSucceeded, run)

    async def freeze(self, run: str) -> None:
        """Pause a run."""
        mark = len(self.events)
        self.launcher.freeze(run)
        await self.wait(Frozen, run, after=mark)

    async def output(self, run: str, *argv: str | bytes, tmp_path: Path, **spec: object) -> bytes:
        """Return what a command prints; it must end by itself."""
        with (tmp_path / "out").open("wb") as file:
            self.launch(run, *argv, stdout=file.fileno(), stderr=file.fileno(), **spec)  # type: ignore[arg-type]
            await self.wait(MainExited, run)
        content: bytes = (tmp_path / "out").read_bytes()
        return content

    async def failure(self, run: str, *argv: str | bytes, **spec: object) -> LaunchFailed:
        """Launch a command; return how that fails."""
        self.launch(run, *argv, **spec)  # type: ignore[arg-type]
        return await self.wait(LaunchFailed, run)

    async def stop(self, *runs: str, number: int = signal.SIGKILL) -> None:
        """End runs and release them. Child runs come before their parents."""
        mark = len(self.events)
        for run in runs:
            if number == signal.SIGKILL:
                self.launcher.kill(run)
            else:
                self.launcher.terminate(run, number)
        for run in runs:
            await self.wait(Emptied, run, after=mark)
            self.launcher.release(run)


async def _signals(launcher: LocalLauncher, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGCHLD) as received:
        task_status.started()
        async for _ in received:
            launcher.child_signalled()


@asynccontextmanager
async def rigged(kind: str, *, program: str = "elf", instance: str = "") -> AsyncIterator[Rig]:
    """Yield a rig. Afterwards nothing of it is alive, whatever the test did."""
    rig = Rig(kind, program=program, instance=instance)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(rig.launcher.serve)
            await nursery.start(_signals, rig.launcher)
            yield rig
            nursery.cancel_scope.cancel()
        rig.check()
    finally:
        _end_what_is_left(rig)
        rig.launcher.close()


def _end_what_is_left(rig: Rig) -> None:
    """End the processes of a test that failed half-way."""
    launcher = rig.launcher
    if isinstance(launcher._containment, TagsContainment):
        while launcher._containment.stops._kill_slice(set(launcher._runs)):
            pass
    sweep(launcher.instance)
    for held in launcher._runs.values():
        if held.main and held.main.ours:
            os.waitid(os.P_PIDFD, held.main.pidfd, os.WEXITED)
    until = time.monotonic() + PATIENCE
    while procfs.children() and time.monotonic() < until:
        launcher._orphans.reap()
        time.sleep(0.001)
