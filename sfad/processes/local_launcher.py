"""Runs as processes of this machine: the `Launcher` that the loop uses, put together from its
parts."""

import ctypes
import os
import resource
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from signal import SIGKILL
from typing import Literal

import trio
from msgspec import Struct
from msgspec.structs import replace

from ..core.events import Emptied, Frozen, MainExited, Surveyed
from ..protocol.types import RunId, Survivor
from . import kernel, observed
from .agent_watch import AgentWatch
from .command_starter import Adopter, CommandStarter
from .contain.cgroup import cgroupfs, controllers
from .contain.cgroup.containment import CgroupContainment
from .contain.interface import LauncherParts, RunContainment
from .contain.membership import RunCpus
from .contain.tags import TagsContainment
from .launched_runs import LaunchedRun, LaunchedRuns
from .launcher import (
    Adopted,
    Bounds,
    CgroupImpossible,
    ChildSignals,
    Complain,
    Emit,
    Enforcement,
    Footprint,
    Launcher,
    LaunchError,
    LaunchRecord,
    LaunchSpec,
    Remember,
)
from .trampoline.creating import ProcessCreator
from .trampoline.executable import EXEC, REPORT, Trampoline, best
from .watch import (
    NO_RUN,
    Complaints,
    Emitter,
    Mains,
    Orphans,
    OwedEvents,
    Reactor,
    Together,
    signal_mains,
    wait_for_trampolines,
)

# ---- Handing runs over to the process that this one becomes by execve(2)


class LaunchHandover:
    """Keeps the reports of launches in flight open across execve(2)."""

    def __init__(self, runs: LaunchedRuns) -> None:
        self._runs = runs
        self._pipes: list[int] = []
        """Those that were made for the next process."""

    def hand_over(self) -> dict[RunId, LaunchRecord]:
        try:
            return {run_id: self._record_of(run) for run_id, run in self._runs.items()}
        except OSError:
            self.take_back()
            raise

    def _record_of(self, run: LaunchedRun) -> LaunchRecord:
        record = run.record()
        failure = run.main.failure if run.main else run.launch_error
        if failure:
            self._pipes.append(_report_again(failure))
            return replace(record, report=self._pipes[-1])
        if run.main and run.main.report is not None:
            os.set_inheritable(run.main.report, True)
            return replace(record, report=run.main.report)
        return record

    def take_back(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        for run in self._runs.values():
            if run.main and run.main.report is not None:
                os.set_inheritable(run.main.report, False)


def _report_again(error: LaunchError) -> int:
    """Return a pipe with this error as a trampoline would report it. It is inherited across
    execve(2)."""
    near, far = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(far, REPORT.pack(EXEC, -error.errno))
        os.set_inheritable(near, True)
    finally:
        os.close(far)
    return near


# ---- The processes and memory of runs, from one pass over the machine


class Footprints(Struct):
    """Counts the processes and the memory of runs. What cannot be told now is left out of an
    answer."""

    runs: LaunchedRuns
    containment: RunContainment
    complaints: Complaints

    def of(self, runs: Iterable[RunId], *, cpu: bool) -> dict[RunId, Footprint]:
        """See `Launcher.footprints`."""
        asked = self._launched(runs)
        resident, burnt = observed.resident, observed.cpu_seconds
        if len(asked) > 1:  # one may be within another
            resident, burnt = cache(resident), cache(burnt)
        try:
            return {
                run_id: Footprint(
                    len(pids),
                    self._memory(asked[run_id], pids, resident),
                    self._cpu(asked[run_id], pids, burnt) if cpu else None,
                )
                for run_id, pids in self._pids(asked).items()
            }
        except OSError as error:
            self.complaints.failed(error)
            return {}

    def amounts(self, kind: str, exact_from: Mapping[RunId, float]) -> dict[RunId, int]:
        """See `Launcher.amounts`.

        For `pids`: processes and threads where the kernel enforces the limit, else processes. For
        `memory`: what the kernel charges (`Footprint`); else resident memory where that is below
        `exact_from`, else each process's share of it."""
        asked = self._launched(exact_from)
        try:
            told = {
                run_id: figure
                for run_id, run in asked.items()
                if (figure := self.containment.limits.used(run, kind)) is not None
            }
            pids = self._pids({run_id: run for run_id, run in asked.items() if run_id not in told})
            return told | {
                run_id: _amount(kind, found, exact_from[run_id]) for run_id, found in pids.items()
            }
        except OSError as error:
            self.complaints.failed(error)
            return {}

    def _launched(self, runs: Iterable[RunId]) -> dict[RunId, LaunchedRun]:
        return {run_id: run for run_id in runs if (run := self.runs.get(run_id))}

    def _memory(self, run: LaunchedRun, pids: Iterable[int], resident: Callable[[int], int]) -> int:
        charged = self.containment.limits.used(run, "memory")
        return charged if charged is not None else sum(map(resident, pids))

    def _cpu(self, run: LaunchedRun, pids: Iterable[int], burnt: Callable[[int], float]) -> float:
        counted = self.containment.limits.cpu_seconds(run)
        return counted if counted is not None else sum(map(burnt, pids))

    def _pids(self, asked: Mapping[RunId, LaunchedRun]) -> dict[RunId, list[int]]:
        found: dict[RunId, list[int]] = {run_id: [] for run_id in asked}
        everyone = set(asked.values())
        tops = [
            run
            for run in asked.values()
            if not any(above in everyone for above in run.upwards() if above is not run)
        ]
        for pid, run_id in self.containment.members(*tops) if tops else ():
            for above in self.runs[run_id].upwards():
                if above.id in found:
                    found[above.id].append(pid)
        return found


def _amount(kind: str, pids: list[int], exact_from: float) -> int:
    if kind == "pids":
        return len(pids)
    resident = sum(map(observed.resident, pids))  # never less than the shares
    if resident < exact_from:
        return resident
    return sum(
        share if (share := kernel.proportional(pid)) is not None else observed.resident(pid)
        for pid in pids
    )


# ---- The launcher, put together


_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)


class LocalLauncher(Launcher):
    """The `Launcher` of this machine. One per process, in trio's thread, which is the main
    thread."""

    def __init__(
        self,
        instance: str,
        emitter: Emitter,
        complaints: Complaints,
        contain: Callable[[LauncherParts], RunContainment],
        *,
        trampoline: Trampoline | None = None,
        nofile: int | None = None,
    ) -> None:
        self.instance = instance
        self._emitter = emitter
        self._complaints = complaints
        self._runs = LaunchedRuns(instance)
        self._reactor = Reactor(complaints.failed, emitter.together)
        self._orphans = Orphans()
        self._creator = ProcessCreator(trampoline or best())
        self._owed = OwedEvents(
            emitter,
            complaints,
            self._reactor,
            lambda run, poll: self._containment.populated(run, poll),
        )
        was_subreaper = ctypes.c_int()
        _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was_subreaper), 0, 0, 0)
        self._was_subreaper = was_subreaper.value
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._containment = contain(
            LauncherParts(self._runs, self._reactor, self._orphans, complaints, self._owed)
        )
        self.containment = self._containment.kind
        self._mains = Mains(self._reactor, self._orphans, emitter, self._owed)
        self._cpus = RunCpus(self._runs, self._containment)
        self._starter = CommandStarter(
            self._creator,
            self._containment,
            self._mains,
            self._orphans,
            nofile if nofile is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        self._adopter = Adopter(self._runs, self._containment.adopted, self._cpus, self._mains)
        self._handover = LaunchHandover(self._runs)
        self._footprints = Footprints(self._runs, self._containment, complaints)
        self._agents = AgentWatch(self._reactor, emitter, self._runs, self._containment)

    @property
    def detail(self) -> str:
        return self._containment.detail

    # Starting and stopping.

    def launch(
        self, run_id: RunId, parent: RunId | None, spec: LaunchSpec, remember: Remember
    ) -> None:
        run = self._runs.get(run_id) or self._runs.add(run_id, parent, spec.nonce)
        if run.bounds.cpu != spec.bounds.cpu:
            self._cpus.set_bounds(run, spec.bounds)
        run.bounds = spec.bounds
        try:
            self._starter.start(run, spec, remember)
        except LaunchError as error:
            self._mains.fail_soon(run, error)

    def enter(self, run_id: RunId, parent: RunId | None, record: LaunchRecord) -> None:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs.add(run_id, parent, record.nonce, record.bounds)
        run.in_program = True

    def leave(self, run_id: RunId, failed: str | None = None, *, left: bool = False) -> None:
        run = self._runs.get(run_id)
        if run and run.in_program:
            self._reactor.soon(self._left, run, failed, left)

    def _left(self, run: LaunchedRun, failed: str | None, left: bool) -> None:
        if not run.in_program:
            return
        # not before: the end of a process below it would report the run empty before its exit
        run.in_program = False
        code, empty = 0 if failed is None else 1, self._owed.known_empty(run, None)
        self._emitter.emit(MainExited, run.id, code, None, empty, None, failed, left)
        self._owed.report_if_empty(run)

    def terminate(self, run_id: RunId, signal: int) -> None:
        run = self._begin_stop(run_id, signal)
        if run:
            wait_for_trampolines(run)
            stop = run.stop_count
            self._reactor.retry_while(
                lambda: run.in_stop(stop), self._containment.stops.terminate, run, signal
            )

    def kill(self, run_id: RunId) -> None:
        run = self._begin_stop(run_id, SIGKILL)
        if run:
            stop = run.stop_count
            signal_mains(run, SIGKILL)
            self._reactor.retry_while(lambda: run.in_stop(stop), self._containment.stops.kill, run)

    def _begin_stop(self, run_id: RunId, number: int) -> LaunchedRun | None:
        run = self._runs.get(run_id)
        if run is None:
            self._reactor.soon(self._emitter.emit, Emptied, run_id)
            return None
        self._owed.owe_emptied(run, number)
        return run

    def freeze(self, run_id: RunId) -> None:
        run = self._runs.get(run_id)
        if run is None:
            self._reactor.soon(self._emitter.emit, Frozen, run_id)
            return
        wait_for_trampolines(run)
        count = run.set_paused(True)
        self._reactor.retry_while(
            lambda: run.freezing and run.pause_count == count, self._containment.pauses.freeze, run
        )

    def thaw(self, run_id: RunId) -> None:
        run = self._runs.get(run_id)
        if run:
            count = run.set_paused(False)
            self._reactor.retry_while(
                lambda: run.pause_count == count and self._runs.get(run_id) is run,
                self._containment.pauses.thaw,
                run,
            )

    def signal_main(self, run_id: RunId, signal: int) -> bool:
        run = self._runs.get(run_id)
        return bool(run and run.main and run.main.signal(signal))

    def release(self, run_id: RunId) -> None:
        run = self._runs.get(run_id)
        if run:
            self._runs.drop(run)
            self._containment.remove(run)

    # Looking.

    def survey(self, run_id: RunId) -> None:
        self._reactor.retry_while(lambda: True, self._survey, run_id)

    def _survey(self, run_id: RunId) -> None:
        run = self._runs.get(run_id)
        found: dict[int, RunId] = {}
        if run:
            found.update((below.main.pid, below.id) for below in run.subtree() if below.main)
            found.update(self._containment.outside(run))
            found.update(self._containment.members(run))
        survivors = tuple(
            Survivor(pid=pid, run_id=one, why=why)
            for pid, one in found.items()
            if (why := observed.why_alive(pid))
        )
        self._reactor.soon(self._emitter.emit, Surveyed, run_id, survivors)

    def footprints(self, runs: Iterable[RunId], *, cpu: bool = False) -> dict[RunId, Footprint]:
        return self._footprints.of(runs, cpu=cpu)

    def amounts(self, kind: str, exact_from: Mapping[RunId, float]) -> dict[RunId, int]:
        return self._footprints.amounts(kind, exact_from)

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._containment.run_of(pid, pidfd)

    def run_of_cgroup(self, inode: int) -> RunId | None:
        return self._containment.run_of_cgroup(inode)

    def watch_agents(self, programs: frozenset[str]) -> None:
        self._agents.watch(programs)

    def own(self, pid: int) -> None:
        self._orphans.owned[pid] = NO_RUN

    def disown(self, pid: int) -> None:
        self._orphans.owned.pop(pid, None)

    # Limits.

    def bound(self, run_id: RunId, bounds: Bounds) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        self._cpus.set_bounds(run, bounds)
        try:
            self._containment.limits.limit(run)
            self._cpus.rebind(run)
        except OSError as error:
            self._complaints.unenforced(run_id, error)

    def enforced_by(self, kind: str) -> Enforcement:
        if self._containment.limits.enforces(kind):
            return "kernel"
        return "watching" if kind != "cpu" or self._cpus.several else "nothing"

    def breaches(self, run_id: RunId) -> frozenset[str]:
        run = self._runs.get(run_id)
        return self._containment.limits.breaches(run) if run else frozenset()

    # Adopting and handing over.

    def adopt(self, run_id: RunId, parent: RunId | None, record: LaunchRecord) -> Adopted:
        return self._adopter.adopt(run_id, parent, record)

    def hand_over(self) -> dict[RunId, LaunchRecord]:
        self._reactor.finish_idle()
        return self._handover.hand_over()

    def take_back(self) -> None:
        self._handover.take_back()

    # Serving.

    def watch_children(self, signals: ChildSignals) -> None:
        # in the reactor, and not in a task of its own: it is readable whenever a main process has
        # ended
        self._reactor.add(signals.fileno(), lambda: self._child_signalled(signals))

    def _child_signalled(self, signals: ChildSignals) -> None:
        signals.take()
        self.child_signalled()

    def child_signalled(self) -> None:
        """Note a SIGCHLD."""
        self._orphans.notice()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._reactor.task(self._orphans.serve)
        self._reactor.task(self._agents.serve)
        task_status.started()
        await self._reactor.run()

    def close(self) -> None:
        for run in self._runs.values():
            self._mains.disown(run)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, self._was_subreaper, 0, 0, 0)
        self._containment.close()
        self._reactor.close()
        self._creator.close()


# ---- The choice of a containment: cgroups where that is possible, else tags

Mode = Literal["auto", "cgroup", "tags"]


def check_containment(instance: str, mode: Mode, cgroup_parent: str | None) -> None:
    """Raise `CgroupImpossible` where `choose_launcher` would. Leave nothing behind."""
    if mode == "cgroup":
        base = controllers.base_of(instance, cgroup_parent)
        made = not os.path.isdir(base.directory)
        controllers.probe(base)
        if made:
            cgroupfs.remove_tree(base.directory)


def choose_launcher(
    *,
    instance: str,
    emit: Emit,
    mode: Mode = "auto",
    cgroup_parent: str | None = None,
    clock: Callable[[], float] = trio.current_time,
    nofile: int | None = None,
    complain: Complain = lambda _text: None,
    trampoline: Trampoline | None = None,
    together: Together = nullcontext,
) -> LocalLauncher:
    """Return the launcher of this machine.

    `instance` is twelve hex digits that name the state directory. `cgroup_parent` is where its
    cgroups go, by default this process's own cgroup; if anything of the instance is alive in
    cgroups elsewhere, runs stay there. `nofile` is the soft RLIMIT_NOFILE of runs, by default this
    process's now. `complain` gets, every few seconds at most, what failed and is tried again.
    `together` is entered around the calls of `emit` that are made in one go.
    Raises `CgroupImpossible` with the reason if `mode` is cgroup and that is impossible."""

    def launcher(
        complaints: Complaints, contain: Callable[[LauncherParts], RunContainment]
    ) -> LocalLauncher:
        emitter = Emitter(emit, clock, complaints.failed, together)
        return LocalLauncher(
            instance, emitter, complaints, contain, trampoline=trampoline, nofile=nofile
        )

    if mode == "tags" and controllers.inhabited(instance, cgroup_parent) is None:
        why = "set in the config"
    else:
        if mode == "tags":
            complain(
                "containment.mode = tags takes effect when nothing is alive any more in the "
                "cgroups of an earlier daemon"
            )
        try:
            base = controllers.base_of(instance, cgroup_parent)
            controllers.probe(base)
            complaints = Complaints(
                complain, remedy=partial(cgroupfs.regain_after, base=base.directory)
            )
            return launcher(complaints, partial(CgroupContainment, base=base, complain=complain))
        except CgroupImpossible as reason:
            if mode == "cgroup":
                raise
            why = str(reason)
    return launcher(Complaints(complain), partial(TagsContainment, why=why))
