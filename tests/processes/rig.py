"""A launcher that is served, and what it has reported."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import trio

from sfad.core.events import Emptied, Event, Frozen, LaunchFailed, LaunchSucceeded, MainExited
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs, controllers
from sfad.processes.contain.cgroup.containment import CgroupContainment
from sfad.processes.contain.interface import LauncherParts, RunContainment
from sfad.processes.contain.tags import TagsContainment
from sfad.processes.launched_runs import LaunchedRun, MainProcess
from sfad.processes.launcher import Complain, LaunchRecord, LaunchSpec
from sfad.processes.local_launcher import LocalLauncher
from sfad.processes.sweep import sweep
from sfad.processes.trampoline import executable
from sfad.processes.trampoline.executable import Trampoline
from sfad.processes.watch import Complaints, Emitter
from tests.template import close_templates

PATIENCE = 60.0
"""Seconds within which anything must have happened, on a machine that is shared."""

E = TypeVar("E", bound=Event)


def skip(reason: str) -> NoReturn:
    """Skip the test."""
    import pytest  # only here: the programs that launch runs skip nothing

    pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class Made:
    """A launcher, and the parts that it is put together from."""

    launcher: LocalLauncher
    containment: RunContainment
    parts: LauncherParts
    trampoline: Trampoline


def make(
    kind: str,
    emit: Callable[[Event], None],
    *,
    program: str = "elf",
    instance: str = "",
    complain: Complain = print,
) -> Made:
    """Return a launcher with that containment, as `choose_launcher` puts it together. Raises
    `CgroupImpossible`."""
    close_templates()  # a launcher looks after every child of its process
    name = instance or secrets.token_hex(6)
    contain: Callable[[LauncherParts], RunContainment] = TagsContainment
    complaints = Complaints(complain)
    if kind == "cgroup":
        base = controllers.base_of(name, None)
        controllers.probe(base)
        contain = partial(CgroupContainment, base=base, complain=complain)
        complaints = Complaints(
            complain, remedy=partial(cgroupfs.regain_after, base=base.directory)
        )
    trampoline = {"elf": executable.best, "python": executable.python}[program]()
    made: list[tuple[RunContainment, LauncherParts]] = []

    def contained(parts: LauncherParts) -> RunContainment:
        made.append((contain(parts), parts))
        return made[0][0]

    emitter = Emitter(emit, trio.current_time, complaints.failed)
    return Made(
        LocalLauncher(name, emitter, complaints, contained, trampoline=trampoline),
        *made[0],
        trampoline,
    )


class Rig:
    """Drives a launcher as the loop does."""

    def __init__(self, kind: str, *, program: str = "elf", instance: str = "") -> None:
        self.events: list[Event] = []
        self.remembered: list[LaunchRecord] = []
        self.forgets = False
        self._more = trio.Event()
        self.complaints: list[str] = []
        """What the launcher has told the log."""
        self.listener: Callable[[Event], object] = lambda _event: None
        """Is called with each event, from within the launcher."""
        made = make(
            kind, self._note, program=program, instance=instance, complain=self.complaints.append
        )
        self.launcher, self.containment, self.parts, self.trampoline = (
            made.launcher,
            made.containment,
            made.parts,
            made.trampoline,
        )

    @property
    def cgroups(self) -> CgroupContainment:
        """The launcher's containment; skips the test if that is by tags."""
        if not isinstance(self.containment, CgroupContainment):
            skip("only with cgroups")
        return self.containment

    @property
    def tags(self) -> TagsContainment:
        """The launcher's containment; skips the test if that is by cgroups."""
        if not isinstance(self.containment, TagsContainment):
            skip("only with tags")
        return self.containment

    def check(self) -> None:
        """Fail if the launcher has met a bug of its own: it tries again, so a test may pass
        nevertheless."""
        bugs = [complaint for complaint in self.complaints if "internal error" in complaint]
        assert not bugs, "\n".join(bugs)

    def launched(self, run: str) -> LaunchedRun:
        """What the launcher knows of a run."""
        return self.parts.runs[run]

    def main(self, run: str) -> MainProcess:
        """Its main process."""
        main = self.launched(run).main
        assert main is not None
        return main

    def remember(self, record: LaunchRecord) -> bool:
        """Save what remains of a run, unless the rig `forgets`."""
        self.remembered.append(record)
        return not self.forgets

    def _note(self, event: Event) -> None:
        self.listener(event)
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
    """Yield a rig; skip the test where there is no such containment. Afterwards nothing of it is
    alive, whatever the test did."""
    from tests import needs  # for the same reason

    needs.containment(kind)
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
    runs, until = rig.parts.runs.values(), time.monotonic() + PATIENCE
    if isinstance(rig.containment, TagsContainment):
        roots = [run for run in runs if run.parent is None]
        while (found := list(rig.containment.members(*roots))) and time.monotonic() < until:
            for pid, _ in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    sweep(rig.launcher.instance)
    for held in runs:
        if held.main and held.main.ours:
            os.waitid(os.P_PIDFD, held.main.pidfd, os.WEXITED)
    while kernel.children() and time.monotonic() < until:
        rig.parts.orphans.reap()
        time.sleep(0.001)
