"""Containment in cgroup v2: one cgroup a run, nested like the runs.

    PARENT/sfad-INSTANCE/RUN        the run's processes, and cgroups that they make themselves
                         RUN/CHILD  a child run's
                         RUN/self   processes of RUN that cannot be in its own cgroup: when a
                                    controller is enabled for CHILD, and after the first attempt

So whatever is done to a run's cgroup is done to its descendants too. This rests on facts of the
kernel (cgroups(7), Documentation/admin-guide/cgroup-v2.rst, and measured on 6.18): a frozen process
cannot fork; it takes SIGKILL at once, and other signals when it is thawed; `populated` is 0 before
the first process has attached, and does not count zombies; `cgroup.events` is always readable, and
signals a change by EPOLLPRI; `cgroup.kill` catches processes that are being forked, and leaves
`cgroup.freeze` as it was.
"""

import os
import select
import signal
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from signal import SIGCONT, SIGKILL, SIGSTOP, pidfd_send_signal
from time import monotonic
from typing import Literal

import trio
from msgspec import Struct

from ....host.linux.descriptors import lifted
from ....protocol.types import RunId
from ... import kernel
from ...kernel import cgroup_id
from ...launched_runs import LaunchedRun, LaunchedRuns, run_ids
from ...launcher import Complain, Unidentifiable
from ...trampoline.creating import Door
from ...watch import Complaints, Orphans, Reactor, signal_mains, wait_ended
from ..interface import LauncherParts, RunContainment, RunPauses, RunStops
from ..membership import printable_path, run_by_ancestors, run_by_cookie, still_there, unmarked
from . import cgroupfs, controllers
from .cgroupfs import RunCgroup, RunCgroups
from .controllers import Controllers
from .making import AdoptedCgroups, CgroupLimits, CgroupMaker

# ---- Processes that have left their run's cgroup and are still ours: a main process, whose pidfd
# is open, or an orphan, our child
#
# Processes below one of these come to us as orphans when it has ended.

KILL_EVERY = 1.0
"""Seconds between two kills of what does not go: something may have been moved into the cgroup
after the first."""
_SIGNAL_SLICE = 0.01
"""Seconds of signalling before the daemon's other tasks get their turn."""
_LOOKS = 20
"""Looks at orphans in a row. A process that forks and exits without pause may have gone at each,
but hardly at all of them."""
_PIDFDS_AT_ONCE = 32
"""Pidfds of escaped processes waited on at a time."""


class Escapes:
    def __init__(self, parts: LauncherParts, cgroups: RunCgroups) -> None:
        self._runs = parts.runs
        self._reactor = parts.reactor
        self._orphans = parts.orphans
        self._owed = parts.owed
        self._cgroups = cgroups
        self._stopping: set[LaunchedRun] = set()
        """Runs whose escaped processes are being stopped."""

    def of(self, run: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        """Yield the escaped processes of a run and its descendants, with the run each is of. Raises
        `OSError`."""
        runs = run_ids([run])
        for below in run.subtree():
            main = below.main
            if main is None or main.report is not None:  # a trampoline may not be in yet
                continue
            if self._cgroups.run_of(main.pid) not in runs and kernel.is_alive(
                main.pid, main.started
            ):
                yield main.pid, below.id
        yield from self.orphaned(runs)

    def orphaned(
        self, runs: Container[RunId], poll: int | None = None
    ) -> Iterator[tuple[int, RunId]]:
        """Yield those that have no parent in their run any more. `poll`: that of the reactor which
        told that a main process has ended: of many that have ended together, one look tells. Raises
        `OSError`."""
        if poll is not None and self._orphans.none_since == poll:
            return
        found: set[int] = set()
        for look in range(_LOOKS):
            alive = vanished = False
            for pid in self._orphans.unreaped():
                known = self._orphans.homes.get(pid)
                if known is not None and known in self._runs and known not in runs:
                    alive = True
                    continue  # it is looked at again when that run ends
                if look == 0 and self._orphans.reap_one(pid):
                    # they may be thousands: where one was is asked only of those that the next look
                    # finds
                    vanished = True
                    continue
                process, inside = kernel.stat(pid), self._cgroups.run_of(pid)
                if process is None or not process.alive:
                    # it may have left a child since the look began; within a cgroup, that keeps the
                    # cgroup populated
                    vanished |= self._orphans.reap_one(pid) and inside is None
                    continue
                alive = True
                home = self._home(process, inside)
                if home is not None and home in runs and inside not in runs and pid not in found:
                    found.add(pid)
                    yield pid, home
            if not vanished:
                if poll is not None and not alive:
                    self._orphans.none_since = poll
                return

    def know(self, members: Iterable[tuple[int, RunId]]) -> None:
        """Note of which runs the orphans among these frozen processes are: they may leave the
        cgroup, and shed their marks, when they get the signal. Raises `OSError`."""
        orphans = set(self._orphans.unreaped())
        self._orphans.homes |= {pid: run for pid, run in members if pid in orphans}

    def _home(self, process: kernel.Stat, inside: RunId | None) -> RunId | None:
        """Return the run of a live orphan, as it was found the first time: it may shed its marks. A
        run that was released has not found it."""
        home = self._orphans.homes.get(process.pid)
        if home is None or home not in self._runs:
            home = self._runs.by_cookie(process.pid) or self._runs.by_tag(process.pid) or inside
            home = home or self._runs.sole_tree(process.started)
            if home is not None:
                self._orphans.homes[process.pid] = home
        return home

    def signal(self, run: LaunchedRun, *numbers: int) -> None:
        self._signal(run, [pid for pid, _ in self.of(run)], *numbers)

    def _signal(self, run: LaunchedRun, pids: Iterable[int], *numbers: int) -> None:
        mains = {main.pid: main for main in run.mains}
        for pid in pids:
            for number in numbers:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(mains[pid].pidfd, number) if pid in mains else os.kill(
                        pid, number
                    )

    def stop_soon(self, run: LaunchedRun) -> None:
        """While the run is being emptied, stop its escaped processes. Raises `OSError`."""
        if run not in self._stopping and run.emptying and any(self.of(run)):
            self._stopping.add(run)
            self._reactor.task(self._stop_escaped, run)

    async def _stop_escaped(self, run: LaunchedRun) -> None:
        """Signal the escaped processes with the last signal of the stop, until there are none."""
        signalled: set[tuple[int, int]] = set()
        while run.emptying and (left := self._signal_new(run, signalled)):
            await wait_ended(self._reactor, left[:_PIDFDS_AT_ONCE], KILL_EVERY)
        self._stopping.discard(run)
        self._owed.report_if_empty(run)

    def _signal_new(self, run: LaunchedRun, signalled: set[tuple[int, int]]) -> list[int]:
        """Signal each process once; return those of the last look. A process that forks and exits
        without pause has a new pid at each look."""
        until = monotonic() + _SIGNAL_SLICE
        with lifted():
            while True:
                found = [pid for pid, _ in self.of(run)]
                fresh = [pid for pid in found if (pid, run.stop_signal) not in signalled]
                if not fresh or monotonic() > until:
                    return found
                self._signal(run, fresh, run.stop_signal, signal.SIGCONT)
                signalled.update((pid, run.stop_signal) for pid in found)


# ---- What the kernel tells of a cgroup in `cgroup.events`: whether it is populated, and whether it
# is frozen


_EMPTY = b"populated 0\nfrozen 1\n"
"""What `cgroup.events` would say of a cgroup that is gone."""


class CgroupEvents(Struct):
    """Watches the cgroups of runs, and calls `learn` with the content of `cgroup.events`."""

    cgroups: RunCgroups
    reactor: Reactor
    complaints: Complaints
    learn: Callable[[LaunchedRun, RunCgroup, bytes], object]

    def watch(self, run: LaunchedRun, group: RunCgroup) -> None:
        """From now on learn of every change, and soon of the present content."""
        if group.events is not None:
            self.reactor.soon(self._look, run, group)
            return
        try:
            events = os.open(f"{group.directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed the cgroup, so it is empty
            self.reactor.soon(self.learn, run, group, _EMPTY)
            return
        except OSError as error:
            self._poll_later(run, group, error)
            return
        try:
            self.reactor.add(events, lambda: self._look(run, group), select.EPOLLPRI)
        except OSError as error:
            os.close(events)
            self._poll_later(run, group, error)
            return
        group.events = events
        self.reactor.soon(self._look, run, group)  # what changed before

    def _poll_later(self, run: LaunchedRun, group: RunCgroup, error: OSError) -> None:
        """Read the file now and then, until there is a descriptor to watch it with."""
        self.complaints.failed(error)
        self.reactor.later(self._poll, run, group)

    def _poll(self, run: LaunchedRun, group: RunCgroup) -> None:
        if group.events is None and (run.emptying or run.freezing):
            self.learn(run, group, cgroupfs.read(f"{group.directory}/cgroup.events") or _EMPTY)
        if group.events is None and (run.emptying or run.freezing):
            self.watch(run, group)

    def _look(self, run: LaunchedRun, group: RunCgroup) -> None:
        if group.events is None:
            return
        try:
            events = os.pread(group.events, 256, 0)  # reading ends the EPOLLPRI
        except OSError as error:
            if error.errno not in kernel.GONE:
                raise
            self.cgroups.unwatch(group)
            events = _EMPTY
        self.learn(run, group, events)


# ---- Control files that act on a whole cgroup: `cgroup.freeze` and `cgroup.kill`


class CgroupControl:
    """Writes control files. Make it when this process is where it belongs (see
    `Controllers.set_up`)."""

    def __init__(self, base: cgroupfs.BaseCgroup) -> None:
        self._base = base
        self._own_cgroup = kernel.cgroup(os.getpid())

    def write(self, group: RunCgroup, name: str, content: bytes) -> None:
        """Write a control file, if the cgroup is not gone. Raises `OSError`."""
        self._step_out()
        try:
            cgroupfs.write(f"{group.directory}/{name}", content)
        except OSError as error:
            if error.errno not in kernel.GONE:
                raise

    def _step_out(self) -> None:
        """Go back to where this process belongs: an agent with its uid can move it into a run that
        is to be frozen."""
        path = kernel.cgroup(os.getpid())
        if (
            path is None
            or path == self._own_cgroup
            or cgroupfs.below(path, self._base.path) is None
        ):
            return
        parent = os.path.dirname(self._base.directory)
        cgroupfs.write(f"{cgroupfs.directory_of(self._own_cgroup) or parent}/cgroup.procs", b"0")


def thaw_all(group: RunCgroup) -> None:
    """Thaw a run's cgroup and those below it, which may have been paused by themselves. Raises
    `OSError`."""
    for directory in cgroupfs.nested(group.directory):
        try:
            cgroupfs.write(f"{directory}/cgroup.freeze", b"0")
        except OSError as error:
            if error.errno not in kernel.GONE:
                raise
    group.halted = False


# ---- Pausing runs: the freezer for their cgroups, and signals to processes that have left these


class CgroupPauses(RunPauses):
    def __init__(
        self,
        parts: LauncherParts,
        cgroups: RunCgroups,
        control: CgroupControl,
        events: CgroupEvents,
        escapes: Escapes,
    ) -> None:
        self._reactor = parts.reactor
        self._owed = parts.owed
        self._cgroups = cgroups
        self._control = control
        self._events = events
        self._escapes = escapes

    def freeze(self, run: LaunchedRun) -> None:
        self._escapes.signal(run, SIGSTOP)
        group = self._cgroups.of(run)
        if group:
            self._control.write(group, "cgroup.freeze", b"1")
            self._events.watch(run, group)
        else:
            self._reactor.soon(self._owed.report_frozen, run)

    def thaw(self, run: LaunchedRun) -> None:
        group = self._cgroups.of(run)
        if group:
            self._control.write(group, "cgroup.freeze", b"0")
        self._escapes.signal(run, SIGCONT)


# ---- Stopping runs: signals to every process in a run's cgroup, and to those that have left it


_FROZEN_WITHIN = 0.1
"""Seconds that a stop waits for the freezer."""


class CgroupStops(RunStops):
    def __init__(
        self,
        parts: LauncherParts,
        cgroups: RunCgroups,
        control: CgroupControl,
        events: CgroupEvents,
        escapes: Escapes,
    ) -> None:
        self._reactor = parts.reactor
        self._cgroups = cgroups
        self._control = control
        self._events = events
        self._escapes = escapes
        self._killing: dict[LaunchedRun, int] = {}
        """The stops in which runs are killed again and again."""

    def terminate(self, run: LaunchedRun, number: int) -> None:
        """Freeze, signal every process, and thaw: a process that forks meanwhile cannot outrun the
        signal."""
        group = self._cgroups.of(run)
        if group is None:
            signal_mains(run, number, SIGCONT)
            self._escapes.stop_soon(run)
            return
        self._events.watch(run, group)
        group.frozen = trio.Event()
        self._control.write(group, "cgroup.freeze", b"1")
        group.halted = True
        self._reactor.task(self._stop, run, group, number, run.stop_count)

    async def _stop(self, run: LaunchedRun, group: RunCgroup, number: int, stop: int) -> None:
        with trio.move_on_after(_FROZEN_WITHIN):
            await group.frozen.wait()
        await self._reactor.retry(self._signal_all, run, number, stop)
        await self._reactor.retry(self._let_go, run, group, stop)

    async def _signal_all(self, run: LaunchedRun, number: int, stop: int) -> None:
        if not run.in_stop(stop):
            return
        with lifted():
            found = list(self._cgroups.members(run))
            self._escapes.know(found)
            members = [pid for pid, _ in found]
            sandboxes = run.sandboxes
            for pid in members:
                if pid in sandboxes:
                    continue
                with suppress(ProcessLookupError, PermissionError):
                    self._signal(run, pid, number)
            signal_mains(run, number, SIGCONT, but=members)

    def _signal(self, run: LaunchedRun, pid: int, number: int) -> None:
        # SIGKILL ends a frozen process too, so the pid that was listed may be another process's by
        # now, and of any user
        held = os.pidfd_open(pid)
        try:
            if self._cgroups.holds(run, pid):
                pidfd_send_signal(held, number)
                # a stopped process handles a signal only when it is continued
                pidfd_send_signal(held, SIGCONT)
        finally:
            os.close(held)

    async def _let_go(self, run: LaunchedRun, group: RunCgroup, stop: int) -> None:
        if run.in_stop(stop):
            with lifted():
                thaw_all(group)
                self._escapes.stop_soon(run)

    def kill(self, run: LaunchedRun) -> None:
        if self._killing.get(run) != run.stop_count:
            self._killing[run] = run.stop_count
            self._reactor.task(self._kill_again, run, run.stop_count)
        self._kill(run)

    def _kill(self, run: LaunchedRun) -> None:
        group = self._cgroups.of(run)
        if group:
            group.killed = True
            self._control.write(group, "cgroup.kill", b"1")
            self._events.watch(run, group)
        self._escapes.stop_soon(run)

    async def _kill_again(self, run: LaunchedRun, stop: int) -> None:
        while run.in_stop(stop):
            await trio.sleep(KILL_EVERY)
            if run.in_stop(stop):
                signal_mains(run, SIGKILL)
                with lifted():
                    self._kill(run)
        if self._killing.get(run) == stop:
            del self._killing[run]


# ---- Which run a process is in, where runs are contained in cgroups


class CgroupMembership:
    def __init__(self, runs: LaunchedRuns, cgroups: RunCgroups, orphans: Orphans) -> None:
        self._runs = runs
        self._cgroups = cgroups
        self._orphans = orphans

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run whose cgroup the process is in. A process that was moved to another
        cgroup, by `systemd-run --scope` for example, is still in its run: that of its nearest
        ancestor that is in one, else that whose cookie it carries. Raises `Unidentifiable`,
        `OSError`."""
        run_id = self._cgroups.run_with_inode(cgroup_id(pidfd)) if pidfd is not None else None
        if run_id is not None:
            self._refuse_moved(pid, run_id)
            return run_id
        path = kernel.cgroup(pid) if pid > 0 else None
        run_id, ours = (self._at(path), False) if path is not None else (None, False)
        if run_id is None and path is not None:
            run_id, ours = run_by_ancestors(pid, self._run_of)
            run_id = run_id or run_by_cookie(pid, self._runs)
        if path is None or not still_there(pidfd):
            raise Unidentifiable(f"process {pid} ended before it could be identified")
        if run_id is None and ours:
            raise unmarked(pid)
        if run_id is not None:
            self._refuse_moved(pid, run_id)
        return run_id

    def _refuse_moved(self, pid: int, run_id: RunId) -> None:
        """Raise `Unidentifiable` for a process in the cgroup of a run that has not started it: it
        would have its rights."""
        line = (self._orphans.owned.get(each.pid) for each in kernel.ancestors(pid))
        began = next((each for each in line if each is not None), None) or self._runs.by_cookie(pid)
        if began is not None and not self._runs.within(run_id, began):
            raise Unidentifiable(
                f"process {pid} was started in run {began} and has moved itself into the cgroup "
                f"of run {run_id}"
            )

    def _run_of(self, pid: int) -> RunId | None:
        owned = self._orphans.owned.get(pid)
        path = None if owned else kernel.cgroup(pid)
        return owned or (self._at(path) if path is not None else None)

    def _at(self, path: str) -> RunId | None:
        directory = self._cgroups.inside(path)
        if directory is None:
            return None
        run_id = self._cgroups.nearest(directory)
        if run_id is None:
            raise Unidentifiable(
                f"its cgroup {printable_path(path)} belongs to no run that is known"
            )
        return run_id


# ---- The containment, put together


class CgroupContainment(RunContainment):
    """Contains runs in cgroups below `base`, which was probed."""

    kind: Literal["cgroup", "tags"] = "cgroup"
    adopted: AdoptedCgroups
    pauses: CgroupPauses
    stops: CgroupStops

    def __init__(
        self,
        parts: LauncherParts,
        *,
        base: cgroupfs.BaseCgroup,
        complain: Complain = lambda _text: None,
    ) -> None:
        self.detail = base.directory
        self._runs = parts.runs
        self._owed = parts.owed
        self._base = base
        self.controllers = Controllers(base, complain)
        self.controllers.set_up()
        cgroupfs.make_room(base.directory)
        self._begins = controllers.begins(base)
        self._control = CgroupControl(base)
        self._cgroups = RunCgroups(base, parts.reactor)
        self.maker = CgroupMaker(self._cgroups, self.controllers, parts.reactor)
        self._events = CgroupEvents(self._cgroups, parts.reactor, parts.complaints, self._learn)
        self.limits = CgroupLimits(self._cgroups, self.maker, self.controllers, parts.complaints)
        self._escapes = Escapes(parts, self._cgroups)
        self.adopted = AdoptedCgroups(parts.runs, self._cgroups, self.maker, self.limits)
        self.pauses = CgroupPauses(parts, self._cgroups, self._control, self._events, self._escapes)
        self.stops = CgroupStops(parts, self._cgroups, self._control, self._events, self._escapes)
        self._membership = CgroupMembership(parts.runs, self._cgroups, parts.orphans)

    def make(self, run: LaunchedRun) -> Door:
        try:
            return self._enter(run)
        except PermissionError as error:
            cgroupfs.regain(
                os.fsdecode(error.filename or self._base.directory), self._base.directory
            )
            return self._enter(run)

    def _enter(self, run: LaunchedRun) -> Door:
        before = self._cgroups.of(run)
        group = before or self.maker.make(run)
        try:
            if before:  # an earlier attempt may have enabled controllers for cgroups of its own
                self.maker.make_leaf(run, group)
            return self._open(run, group)
        except OSError as error:  # another process removed the cgroup, because it was empty
            if error.errno not in kernel.GONE:
                raise
            self.maker.forget(run)
            return self._open(run, self.maker.make(run))

    def _open(self, run: LaunchedRun, group: RunCgroup) -> Door:
        if group.bounds != run.bounds:
            self.limits.limit(run)
        above = run.parent
        while above is not None and above.in_program:
            self.limits.limit(above)  # its cgroup was made for this one: nothing is executed in it
            above = above.parent
        if group.halted:  # the attempt before ended in its stop's freeze
            thaw_all(group)
        attach = not self._begins or self._attaches(run, group)
        if attach:  # it may come when the run's own cgroup enables controllers
            self.maker.make_leaf(run, group)
        directory = os.open(group.home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return Door(directory, attach, self._runs.tag_of(run))

    def _attaches(self, run: LaunchedRun, group: RunCgroup | None) -> bool:
        """Return whether nothing can begin in the run, or in one above it."""
        return (
            run.paused
            or (group is not None and (group.halted or group.killed))
            or (run.parent is not None and self._attaches(run.parent, self._cgroups.of(run.parent)))
        )

    def remove(self, run: LaunchedRun) -> None:
        self.adopted.remove(run)
        self.maker.remove(run)

    def close(self) -> None:
        self.maker.close()

    def _learn(self, run: LaunchedRun, group: RunCgroup, events: bytes) -> None:
        if b"frozen 1" in events:
            group.frozen.set()
            self._owed.report_frozen(run)
        elif run.paused and not run.freezing:  # another process has thawed it
            self._control.write(group, "cgroup.freeze", b"1")
        if b"populated 0" in events:
            self._escapes.stop_soon(run)
            self._owed.report_if_empty(run)

    def populated(self, run: LaunchedRun, poll: int | None = None) -> bool:
        if self._cgroups.populated(run):
            return True
        runs = run_ids([run]) if run.children else {run.id}
        if self.adopted.gather_all(runs) and self._cgroups.populated(run):
            return True
        return any(self._escapes.orphaned(runs, poll))

    def members(self, *tops: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        return self._cgroups.members(*tops)

    def outside(self, run: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        return self._escapes.of(run)

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._membership.run_of(pid, pidfd)

    def run_of_cgroup(self, inode: int) -> RunId | None:
        return self._cgroups.run_of_cgroup(inode)
