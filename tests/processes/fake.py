"""A launcher without processes, for tests of the loop under trio's autojump clock. What runs do is
scripted."""

from __future__ import annotations

import errno
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import trio

from sfad.core.events import Emptied, Frozen, LaunchFailed, LaunchSucceeded, MainExited, Surveyed
from sfad.processes.launcher import (
    UNBOUND,
    Adopted,
    Bounds,
    ChildSignals,
    Emit,
    Enforcement,
    Footprint,
    LaunchRecord,
    LaunchSpec,
    Remember,
)
from sfad.protocol.types import RunId, Survivor


@dataclass(frozen=True, slots=True)
class Script:
    """What one attempt at a run does."""

    after: float | None = 0.0
    """Seconds until the main process exits by itself; `None`: it does not."""
    code: int | None = 0
    """`None`: it cannot be known."""
    errno: int = 0
    """If not 0 the launch fails with it."""
    obeys: bool = True
    """A signal ends everything in it; else only SIGKILL does."""
    leaves: bool = False
    """Something else stays when the main process exits."""
    dying: float = 0.0
    """Seconds between the signal that ends it and its end."""
    headless: bool = False
    """Of a run that is adopted: its main process has ended, and something else is alive."""


@dataclass(slots=True, eq=False)
class _Run:
    id: RunId
    parent: _Run | None
    script: Script
    children: list[_Run] = field(default_factory=list)
    pid: int = 0
    main: bool = False
    rest: bool = False
    emptying: bool = False
    frozen: bool = False
    nonce: str = ""
    bounds: Bounds = UNBOUND
    exiting: trio.CancelScope = field(default_factory=trio.CancelScope)

    def subtree(self) -> list[_Run]:
        return [self, *(below for child in self.children for below in child.subtree())]

    @property
    def alive(self) -> bool:
        return any(run.main or run.rest for run in self.subtree())


class FakeLauncher:
    """Implements `Launcher`. `calls` records every verb as (name, run, …)."""

    containment: Literal["cgroup", "tags"] = "cgroup"
    detail = "fake"

    def __init__(
        self,
        *,
        emit: Emit,
        clock: Callable[[], float] = trio.current_time,
        script: Callable[[RunId, LaunchSpec], Script] = lambda _run, _spec: Script(),
    ) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.places: dict[int, RunId | None] = {}
        """What `run_of` answers, by pid."""
        self.enforced: dict[str, Enforcement] = {
            "memory": "watching",
            "pids": "watching",
            "cpu": "nothing",
        }
        """What `enforcement` answers, by kind."""
        self.used: dict[tuple[RunId, str], int] = {}
        """What `amounts` and `footprints` answer, by run and kind, instead of a process and a MiB
        for each run of the subtree."""
        self.breached: dict[RunId, set[str]] = {}
        """What `breaches` answers."""
        self.survived: dict[RunId, Script] = {}
        """What adopted runs do from then on. Of a run that is not in it, nothing is alive."""
        self._emit = emit
        self._clock = clock
        self._script = script
        self._runs: dict[RunId, _Run] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._wake = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._last_pid = 1000

    def run_of_cgroup(self, inode: int) -> RunId | None:  # noqa: ARG002 - as in `Launcher`
        """Find none."""
        return None

    def watch_agents(self, programs: frozenset[str]) -> None:
        """Do nothing: it has no processes."""

    def own(self, pid: int) -> None:
        """Do nothing: it has no children."""

    def disown(self, pid: int) -> None:
        """Do nothing."""

    def launch(
        self, run: RunId, parent: RunId | None, spec: LaunchSpec, remember: Remember
    ) -> None:
        """Start the scripted attempt."""
        self.calls.append(("launch", run, parent, spec))
        held = self._runs.get(run) or self._hold(run, parent)
        held.script, held.nonce, held.bounds = self._script(run, spec), spec.nonce, spec.bounds
        self._spawn(held)
        if not remember(LaunchRecord(held.nonce, held.bounds, held.pid, held.pid)):
            held.script = replace(held.script, errno=errno.ENOSPC)
        self._later(lambda: self._started(held))

    def enter(self, run: RunId, parent: RunId | None, record: LaunchRecord) -> None:  # noqa: ARG002
        """Know a run without a process."""
        self.calls.append(("enter", run, parent))
        if run not in self._runs:
            self._hold(run, parent)

    def leave(self, run: RunId, failed: str | None = None, *, left: bool = False) -> None:
        """End it."""
        self.calls.append(("leave", run, failed, left))
        code = 0 if failed is None else 1
        exited = (run, code, None, True, None, failed, left)
        self._later(lambda: self._emit(MainExited(self._clock(), *exited)))

    def terminate(self, run: RunId, signal: int) -> None:
        """End what obeys."""
        self.calls.append(("terminate", run, signal))
        self._stop(run, signal)

    def kill(self, run: RunId) -> None:
        """End everything."""
        self.calls.append(("kill", run))
        self._stop(run, signal.SIGKILL)

    def survey(self, run: RunId) -> None:
        """List the main processes that are alive."""
        self.calls.append(("survey", run))
        alive = [below for below in self._below(run) if below.main or below.rest]
        survivors = tuple(
            Survivor(pid=below.pid, run_id=below.id, why="scripted") for below in alive
        )
        self._later(lambda: self._emit(Surveyed(self._clock(), run, survivors)))

    def freeze(self, run: RunId) -> None:
        """Keep a run from exiting by itself before it is thawed."""
        self.calls.append(("freeze", run))
        for below in self._below(run)[:1]:
            below.frozen = True
        self._later(lambda: self._emit(Frozen(self._clock(), run)))

    def thaw(self, run: RunId) -> None:
        """Undo `freeze`."""
        self.calls.append(("thaw", run))
        for below in self._below(run)[:1]:
            below.frozen = False
        self._wake.set()

    def release(self, run: RunId) -> None:
        """Forget the run."""
        self.calls.append(("release", run))
        held = self._runs.pop(run, None)
        if held and held.parent:
            held.parent.children.remove(held)

    def signal_main(self, run: RunId, signal: int) -> bool:
        """Record the call; return whether there is a main process."""
        self.calls.append(("signal_main", run, signal))
        return any(below.main for below in self._below(run)[:1])

    def bound(self, run: RunId, bounds: Bounds) -> None:
        """Record the call."""
        self.calls.append(("bound", run, bounds))
        for below in self._below(run)[:1]:
            below.bounds = bounds

    def enforced_by(self, kind: str) -> Enforcement:
        """Return what `enforced` says."""
        return self.enforced[kind]

    def breaches(self, run: RunId) -> frozenset[str]:
        """Return what `breached` says."""
        return frozenset(self.breached.get(run, ()))

    def footprints(self, runs: Iterable[RunId], *, cpu: bool = False) -> dict[RunId, Footprint]:
        """Return what `used` says, else a process and a MiB for each run of the subtree."""
        del cpu
        return {
            run: Footprint(self._use(run, "pids"), self._use(run, "memory"))
            for run in runs
            if run in self._runs
        }

    def amounts(self, kind: str, exact_from: Mapping[RunId, float]) -> dict[RunId, int]:
        """Return the same, by kind. Record the call as ("amounts", kind, runs)."""
        self.calls.append(("amounts", kind, tuple(exact_from)))
        return {run: self._use(run, kind) for run in exact_from if run in self._runs}

    def _use(self, run: RunId, kind: str) -> int:
        alive = sum(below.main or below.rest for below in self._below(run))
        return self.used.get((run, kind), alive << 20 if kind == "memory" else alive)

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:  # noqa: ARG002 - the protocol's
        """Return what `places` says, else that the process is in no run."""
        return self.places.get(pid)

    def adopt(self, run: RunId, parent: RunId | None, record: LaunchRecord) -> Adopted:
        """Return what `survived` says. Finish a launch in flight (`record.report`) as its script
        says."""
        self.calls.append(("adopt", run, parent, record))
        held = self._hold(run, parent)
        held.nonce, held.bounds = record.nonce, record.bounds
        script = self.survived.get(run)
        if script is None:
            return Adopted(None, empty=True)
        held.script, held.rest = script, script.headless
        if record.report is not None:
            self._spawn(held)
            self._later(lambda: self._started(held))
            return Adopted(record.pid or None, empty=False, starting=True)
        if not script.headless:
            self._later(lambda: self._begin(held))
            self._last_pid += 1
            held.pid, held.main = record.pid or self._last_pid, True
        return Adopted(held.pid or None, empty=False)

    def hand_over(self) -> dict[RunId, LaunchRecord]:
        """Return what remains of each run, with the pid as its start. Record the call."""
        self.calls.append(("hand_over",))
        pids = {run: held.pid if held.main else 0 for run, held in self._runs.items()}
        return {
            run: LaunchRecord(held.nonce, held.bounds, pids[run], pids[run] or None)
            for run, held in self._runs.items()
        }

    def take_back(self) -> None:
        """Record the call."""
        self.calls.append(("take_back",))

    def watch_children(self, signals: ChildSignals) -> None:
        """Do nothing: there are no children."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Play the scripts until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            while True:
                self._wake = trio.Event()
                while self._soon:
                    self._soon.popleft()()
                await self._wake.wait()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _hold(self, run: RunId, parent: RunId | None) -> _Run:
        above = self._runs[parent] if parent is not None else None
        held = self._runs[run] = _Run(run, above, Script())
        if above:
            above.children.append(held)
        return held

    def _below(self, run: RunId) -> list[_Run]:
        held = self._runs.get(run)
        return held.subtree() if held else []

    def _later(self, call: Callable[[], None]) -> None:
        self._soon.append(call)
        self._wake.set()

    def _spawn(self, held: _Run) -> None:
        self._last_pid += 1
        held.pid, held.main = self._last_pid, True

    def _started(self, held: _Run) -> None:
        if held.script.errno:
            held.main = False
            error = os.strerror(held.script.errno)
            self._emit(LaunchFailed(self._clock(), held.id, held.script.errno, error))
            self._consider(held)
            return
        self._emit(LaunchSucceeded(self._clock(), held.id, held.pid))
        self._begin(held)

    def _begin(self, held: _Run) -> None:
        held.exiting = trio.CancelScope()
        if held.script.after is not None and self._nursery:
            self._nursery.start_soon(self._exit_by_itself, held, held.script.after)

    async def _exit_by_itself(self, held: _Run, after: float) -> None:
        with held.exiting:
            await trio.sleep(after)
            while self._frozen(held):
                await self._wake.wait()
                await trio.lowlevel.checkpoint()
            held.rest = held.script.leaves
            self._exited(held, held.script.code, None)

    def _frozen(self, held: _Run | None) -> bool:
        return held is not None and (held.frozen or self._frozen(held.parent))

    def _stop(self, run: RunId, number: int) -> None:
        held = self._runs.get(run)
        if held is None:
            self._later(lambda: self._emit(Emptied(self._clock(), run)))
            return
        held.emptying = True
        for below in reversed(held.subtree()):
            if self._nursery and (below.script.obeys or number == signal.SIGKILL):
                self._nursery.start_soon(self._end, below, number)
        self._later(lambda: self._consider(held))

    async def _end(self, held: _Run, number: int) -> None:
        await trio.sleep(held.script.dying)
        held.rest = False
        if held.main:
            held.exiting.cancel()
            self._exited(held, None, number)
        self._consider(held)

    def _exited(self, held: _Run, code: int | None, number: int | None) -> None:
        if held.main:
            held.main = False
            self._emit(MainExited(self._clock(), held.id, code, number, not held.alive))
            self._consider(held)

    def _consider(self, held: _Run) -> None:
        above: _Run | None = held
        while above is not None:
            if above.emptying and not above.alive:
                above.emptying = False
                self._emit(Emptied(self._clock(), above.id))
            above = above.parent
