"""Containment in cgroup v2: one cgroup a run, nested like the runs, processes in its leaf `self`.

    PARENT/sfad-INSTANCE/RUN/self        the run's processes, and cgroups that they make themselves
                         RUN/CHILD/self  a child run's

What is done to a run's cgroup is thereby done to its descendants. Kernel facts this rests on: a frozen process cannot
fork, takes SIGKILL at once and other signals when it is thawed; `populated` is 0 before the first process has attached
and does not count zombies; `cgroup.events` is always readable, and says that it changed by EPOLLPRI; `cgroup.kill`
catches what is being forked, and leaves `cgroup.freeze` as it was.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import trio

from ..protocol.types import RunId
from . import adopted as abroad
from . import cgroupfs, controllers, procfs
from .base import UNBOUND, Bounds, Emit, Enforcement, Unplaceable
from .controllers import Controllers
from .lineage import by_ancestry, by_cookie, left, shown, still
from .local import Complain, Door, Held, LocalLauncher
from .marks import cookie
from .pidfd import cgroup_id
from .procfs import Stat
from .reserve import lifted
from .trampoline import Trampoline

FREEZE_BOUND = 0.1
"""Seconds that a stop waits for the freezer (SPEC section 6)."""
_INSIST = 1.0
"""Seconds between two kills of what does not go: something may have been moved in after the first."""
_REMOVE_TRIES, _REMOVE_PAUSE = 100, 0.02
"""A cgroup whose last process has just gone can be busy for some milliseconds."""

_PASSES = 10
"""Looks for what forks while it is being moved."""
_SLICE = 0.01
"""Seconds of signalling what has left its cgroup, between two looks at the rest of the daemon."""
_WATCHED = 32
"""Pidfds of such processes waited on at a time."""

_LEAF = "self"

_EMPTY = b"populated 0\nfrozen 1\n"
"""What `cgroup.events` would say of a cgroup that is gone."""


@dataclass(slots=True, eq=False)
class _Group:
    """A run's cgroup."""

    directory: str
    inode: int
    """Of the leaf: the cgroup id that PIDFD_GET_INFO tells."""
    events: int | None = None
    """`cgroup.events`, open while somebody waits for it."""
    frozen: trio.Event = field(default_factory=trio.Event)
    """Set when a stop's freeze has taken hold."""
    halted: bool = False
    """Whether a stop has frozen it and nobody has thawed it since."""
    metered: bool = False
    """Whether its memory was charged to it from the start."""
    bounds: Bounds = UNBOUND
    """What was written to it."""
    enforced: dict[str, int] = field(default_factory=dict)
    """By kind that the kernel holds it to: how often it had been enforced before that."""


class CgroupLauncher(LocalLauncher):
    """Runs contained in cgroups below `base`, by default where an earlier daemon of the instance has left some, else where
    `cgroupfs.locate` says. Raises `CgroupImpossible` where that cannot be."""

    containment: Literal["cgroup", "tags"] = "cgroup"

    def __init__(
        self,
        *,
        instance: str,
        emit: Emit,
        base: cgroupfs.Base | None = None,
        clock: Callable[[], float] = trio.current_time,
        trampoline: Trampoline | None = None,
        nofile: int | None = None,
        complain: Complain = lambda _text: None,
    ) -> None:
        self._own_cgroup = procfs.cgroup(os.getpid())
        """Where this process belongs."""
        self._base = base or cgroupfs.inhabited(instance) or cgroupfs.locate(instance)
        cgroupfs.probe(self._base)
        super().__init__(instance=instance, emit=emit, clock=clock, trampoline=trampoline, nofile=nofile, complain=complain)
        self.detail = self._base.directory
        self._controllers = Controllers(self._base, complain)
        self._controllers.prepare()
        self._groups: dict[RunId, _Group] = {}
        self._inodes: dict[int, RunId] = {}
        self._directories: dict[str, RunId] = {}
        self._looks = abroad.Looks()
        self._adopted: set[RunId] = set()
        """Runs whose processes may not be below this one."""
        self._chased: set[Held] = set()
        """Runs whose processes outside of their cgroups are being stopped."""

    # Entering and leaving.

    def _enter(self, held: Held) -> Door:
        try:
            return self._door(held)
        except PermissionError as error:
            cgroupfs.regain(os.fsdecode(error.filename or self._base.directory), self._base.directory)
            return self._door(held)

    def _door(self, held: Held) -> Door:
        group = self._groups.get(held.id) or self._make(held)
        try:
            return self._opened(held, group)
        except OSError as error:  # another process removed it, which took that it was empty
            if error.errno not in procfs.GONE:
                raise
            self._forget(held)
            return self._opened(held, self._make(held))

    def _opened(self, held: Held, group: _Group) -> Door:
        if group.bounds != held.bounds:
            self._limit(held)
        if group.halted:  # the attempt before ended in its stop's freeze
            self._unfreeze(group)
        door = os.open(f"{group.directory}/{_LEAF}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        return Door(door, self._number(held))

    def _make(self, held: Held) -> _Group:
        directory = self._directory(held)
        above = os.path.dirname(directory)
        if not os.path.isdir(above):
            self._restore(held)
        metered = held.bounds.memory is not None and self._controllers.enable("memory", above)
        for path in (directory, f"{directory}/{_LEAF}"):
            self._make_one(path)
        cgroupfs.bound(f"{directory}/{_LEAF}")
        return self._note(held, _Group(directory, _inode(directory), metered=metered))

    def _make_one(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:  # an earlier try got this far, or an agent made it, which would hold whatever attaches itself
            cgroupfs.write(f"{path}/cgroup.freeze", b"0")
        except BlockingIOError:  # an agent has lowered the bound of the base, which is the kernel's otherwise
            cgroupfs.unbind(self._base.directory)
            os.mkdir(path)

    def _directory(self, held: Held) -> str:
        return "/".join([self._base.directory, *(above.id for above in reversed(list(held.chain())))])

    def _note(self, held: Held, group: _Group) -> _Group:
        self._groups[held.id] = group
        self._inodes[group.inode] = held.id
        self._directories[group.directory] = held.id
        return group

    def _restore(self, held: Held) -> None:
        """Makes what is above a run again: an empty cgroup can be removed by anybody who may write there."""
        if not os.path.isdir(self._base.directory):
            os.makedirs(self._base.directory, exist_ok=True)
            self._controllers.forget(self._base.directory)
            self._controllers.prepare()
        for above in reversed(list(held.chain())[1:]):
            if not os.path.isdir(f"{self._directory(above)}/{_LEAF}"):
                self._forget(above)
                self._make(above)

    def _forget(self, held: Held) -> None:
        group = self._groups.pop(held.id, None)
        if group is not None:
            self._unwatch(group)
            self._controllers.forget(group.directory)
            del self._inodes[group.inode], self._directories[group.directory]

    def _leave(self, held: Held) -> None:
        group = self._groups.get(held.id)
        self._adopted.discard(held.id)
        if group is None:
            return
        self._forget(held)
        try:
            # the run's children have left before it, and few agents make cgroups of their own
            os.rmdir(f"{group.directory}/{_LEAF}")
            os.rmdir(group.directory)
        except OSError:
            self._task(self._remove_later, group.directory)

    async def _remove_later(self, directory: str) -> None:
        for _ in range(_REMOVE_TRIES):
            await trio.sleep(_REMOVE_PAUSE)
            with suppress(OSError):  # in a thread: an agent may have made a hundred thousand
                await trio.to_thread.run_sync(cgroupfs.remove_tree, directory)
                return

    def close(self) -> None:
        """Closes everything and removes the base, unless something still lives in it: that is for a sweep."""
        for group in self._groups.values():
            self._unwatch(group)
        super().close()
        with suppress(OSError):
            cgroupfs.remove_tree(self._base.directory)
        with suppress(OSError):
            self._controllers.close()

    # What an earlier daemon launched.

    def _rejoin(self, held: Held) -> None:
        self._number(held)
        directory = self._directory(held)
        if os.path.isdir(directory):
            with suppress(FileExistsError):
                os.mkdir(f"{directory}/{_LEAF}")  # the daemon may have died before it did that
            group = _Group(directory, _inode(directory), halted=cgroupfs.read(f"{directory}/cgroup.freeze").startswith(b"1"))
            group.metered = held.bounds.memory is not None and os.path.exists(f"{directory}/memory.stat")
            self._note(held, group)
            self._limit(held)  # writes what is written there already, and counts from now on
        self._bring_back(held)

    def _bring_back(self, held: Held) -> None:
        """Moves into its cgroup what carries the marks of an adopted run: an earlier daemon held it by them, or it has left. Such
        a run's orphans are not below this process, where `_outside` looks."""
        carriers = [pid for look in self._looks.recent() for pid in look.carriers(held.cookie, self._number(held))]
        if any(not self._contained(held, pid) for pid in carriers if procfs.is_alive(pid, None)):
            self._gather(held)

    def _gather(self, held: Held) -> None:
        number = self._number(held)
        for _ in range(_PASSES):
            outside = [one for one in abroad.look().members(held.cookie, number) if not self._contained(held, one.pid)]
            if not outside:
                return
            if held.id not in self._groups:
                self._make(held)
                self._limit(held)
            for process in outside:
                _move(process, f"{self._groups[held.id].directory}/{_LEAF}")

    def _contained(self, held: Held, pid: int) -> bool:
        """Whether a process is in the cgroup of the run itself, or in one that the run has made there."""
        path = procfs.cgroup(pid)
        inside = cgroupfs.below(path, self._base.path) if path is not None else None
        top = f"{self._directory(held)}/{_LEAF}"
        return inside is not None and cgroupfs.below(f"{self._base.directory}/{inside}", top) is not None

    def _carries(self, held: Held, pid: int) -> bool:
        return self._contained(held, pid) or cookie(pid, self.instance) == held.cookie

    def _settle(self, held: Held) -> bool:
        if held.main is None or not held.main.ours:
            self._adopted.add(held.id)
        # orphans are not looked at: to look is to reap, and main processes of runs that are adopted next would be among them
        return self._inhabited(held)

    # Bounds.

    def enforcement(self, kind: str) -> Enforcement:
        """See `Launcher.enforcement`."""
        return "kernel" if kind in self._controllers.available else super().enforcement(kind)

    def _limit(self, held: Held) -> None:
        group = self._groups.get(held.id)
        if group is None:  # it will be when it is made
            return
        for kind in controllers.KINDS:
            value, before = getattr(held.bounds, kind), getattr(group.bounds, kind)
            if value != before and kind in self._controllers.available:
                self._limit_to(held, group, kind, value)
        group.bounds = held.bounds

    def _limit_to(self, held: Held, group: _Group, kind: str, value: float | None) -> None:
        """Writes one bound, and counts from now on how often the kernel has enforced it."""
        group.enforced.pop(kind, None)
        if not self._controllers.enable(kind, os.path.dirname(group.directory)):
            return
        try:
            for name, content in controllers.settings(kind, value):
                self._set_file(f"{group.directory}/{name}", content, optional=name.endswith(".swap.max"))
            if value is not None and kind != "cpu":
                group.enforced[kind] = controllers.enforced(kind, group.directory)
        except OSError as error:
            self._unenforced(held, error)

    def _set_file(self, path: str, content: bytes, *, optional: bool) -> None:
        try:
            cgroupfs.write(path, content)
        except FileNotFoundError:  # a kernel without swap accounting
            if not optional:
                raise

    def breaches(self, run: RunId) -> frozenset[str]:
        """See `Launcher.breaches`: some small files."""
        group = self._groups.get(run)
        if group is None:
            return frozenset()
        try:
            now = {kind: controllers.enforced(kind, group.directory) for kind in group.enforced}
        except OSError as error:
            self._failed(error)
            return frozenset()
        return frozenset(kind for kind, count in now.items() if count > group.enforced[kind])

    def _tasks(self, held: Held) -> int | None:
        group = self._groups.get(held.id)
        return controllers.current_pids(group.directory) if group and "pids" in group.enforced else None

    def _charged(self, held: Held) -> int | None:
        group = self._groups.get(held.id)
        return controllers.charged_memory(group.directory) if group and group.metered else None

    # Verbs.

    def _terminate(self, held: Held, number: int) -> None:
        group = self._groups.get(held.id)
        if group is None:
            self._signal_mains(held, number)
            self._chase_soon(held)
            return
        self._look_at(held, group)
        group.frozen = trio.Event()
        self._write(group, "cgroup.freeze", b"1")
        group.halted = True
        self._watch.soon(self._look, held, group)
        self._task(self._stop, held, group, number, held.ladder)

    async def _stop(self, held: Held, group: _Group, number: int, ladder: int) -> None:
        with trio.move_on_after(FREEZE_BOUND):
            await group.frozen.wait()
        await self._lasting(self._signal_all, held, number, ladder)
        await self._lasting(self._let_go, held, group, ladder)

    async def _signal_all(self, held: Held, number: int, ladder: int) -> None:
        if not held.on(ladder):
            return
        with lifted():
            members = [pid for pid, _ in self._members(held)]
            for pid in members:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)  # nothing frozen can end, so no pid can have been used again
            self._signal_mains(held, number, but=members)

    async def _let_go(self, held: Held, group: _Group, ladder: int) -> None:
        if held.on(ladder):
            with lifted():
                self._unfreeze(group)
                self._chase_soon(held)

    def _unfreeze(self, group: _Group) -> None:
        for directory in cgroupfs.nested(group.directory):
            try:
                cgroupfs.write(f"{directory}/cgroup.freeze", b"0")
            except OSError as error:
                if error.errno not in procfs.GONE:
                    raise
        group.halted = False

    def _kill(self, held: Held) -> None:
        group = self._groups.get(held.id)
        if group:
            self._write(group, "cgroup.kill", b"1")
            self._look_at(held, group)
            self._task(self._insist, held, group, held.ladder)
        self._chase_soon(held)

    async def _insist(self, held: Held, group: _Group, ladder: int) -> None:
        while True:
            await trio.sleep(_INSIST)
            if not held.on(ladder):
                return
            self._signal_mains(held, signal.SIGKILL)
            with lifted():
                self._write(group, "cgroup.kill", b"1")

    def _freeze(self, held: Held) -> None:
        self._signal_outside(held, self._pids_outside(held), signal.SIGSTOP)
        group = self._groups.get(held.id)
        if group:
            self._look_at(held, group)
            self._write(group, "cgroup.freeze", b"1")
            self._watch.soon(self._look, held, group)
        else:
            self._watch.soon(self._stands, held)

    def _thaw(self, held: Held) -> None:
        group = self._groups.get(held.id)
        if group:
            self._write(group, "cgroup.freeze", b"0")
        self._signal_outside(held, self._pids_outside(held), signal.SIGCONT)

    def _write(self, group: _Group, name: str, content: bytes) -> None:
        self._step_out()
        try:
            cgroupfs.write(f"{group.directory}/{name}", content)
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise

    def _step_out(self) -> None:
        """Goes back to where this process belongs: an agent with its uid can move it into a run that is to be frozen."""
        path = procfs.cgroup(os.getpid())
        if path is None or path == self._own_cgroup or cgroupfs.below(path, self._base.path) is None:
            return
        parent = os.path.dirname(self._base.directory)
        cgroupfs.write(f"{cgroupfs.seen(self._own_cgroup) or parent}/cgroup.procs", b"0")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, PermissionError) and error.filename:
            cgroupfs.regain(os.fsdecode(error.filename), self._base.directory)
        super()._failed(error)

    # What has left its cgroup, and is still ours: a main process, which is held by its pidfd, or an orphan, which is our child.

    def _outside(self, held: Held) -> Iterator[tuple[int, RunId]]:
        runs = {below.id for below in held.subtree()}
        for below in held.subtree():
            main = below.main
            if main and main.report is None and self._inside(main.pid) not in runs and procfs.is_alive(main.pid, main.started):
                yield main.pid, below.id
        yield from self._orphaned(runs)

    def _pids_outside(self, held: Held) -> list[int]:
        return [pid for pid, _ in self._outside(held)]

    def _orphaned(self, runs: Container[RunId]) -> Iterator[tuple[int, RunId]]:
        """Those that have no parent in their run any more. The others come when that has ended."""
        for pid in self._orphans.living():
            home = self._orphans.homes.get(pid)
            if home is not None and home not in runs:
                continue  # so it was found before, and is looked at again when that run ends
            process, inside = procfs.stat(pid), self._inside(pid)
            if process is None or not process.alive:
                continue
            home = self._by_cookie(pid) or self._by_number(pid) or inside or self._sole_tree(process.started)
            if home is None:
                continue
            self._orphans.homes[pid] = home
            if home in runs and inside not in runs:
                yield pid, home

    def _inside(self, pid: int) -> RunId | None:
        """The run whose cgroup a process is in."""
        path = procfs.cgroup(pid)
        inside = cgroupfs.below(path, self._base.path) if path is not None else None
        return self._nearest(f"{self._base.directory}/{inside}") if inside is not None else None

    def _signal_outside(self, held: Held, pids: Iterable[int], *numbers: int) -> None:
        mains = {main.pid: main for main in held.mains}
        for pid in pids:
            for number in numbers:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(mains[pid].pidfd, number) if pid in mains else os.kill(pid, number)

    def _chase_soon(self, held: Held) -> None:
        if held not in self._chased and held.emptying and any(self._outside(held)):
            self._chased.add(held)
            self._task(self._chase, held)

    async def _chase(self, held: Held) -> None:
        """Stops what is outside, with the signal that the stop has come to, until there is nothing."""
        struck: set[tuple[int, int]] = set()
        while held.emptying and (left := self._strike(held, struck)):
            await self._gone(left[:_WATCHED], _INSIST)
        self._chased.discard(held)
        self._consider(held)

    def _strike(self, held: Held, struck: set[tuple[int, int]]) -> list[int]:
        """Signals each once; those that were there at the last look. What forks and exits without pause is a new one each time."""
        until = monotonic() + _SLICE
        with lifted():
            while True:
                found = self._pids_outside(held)
                fresh = [pid for pid in found if (pid, held.number) not in struck]
                if not fresh or monotonic() > until:
                    return found
                self._signal_outside(held, fresh, held.number, signal.SIGCONT)
                struck.update((pid, held.number) for pid in found)

    # What the kernel tells.

    def _look_at(self, held: Held, group: _Group) -> None:
        if group.events is None:
            try:
                events = os.open(f"{group.directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # another process removed it: it is empty
                self._watch.soon(self._learn_of, held, group, _EMPTY)
                return
            except OSError as error:
                self._glance_later(held, group, error)
                return
            try:
                self._watch.add(events, lambda: self._look(held, group), select.EPOLLPRI)
            except OSError as error:
                os.close(events)
                self._glance_later(held, group, error)
                return
            group.events = events
            self._watch.soon(self._look, held, group)  # what changed before

    def _glance_later(self, held: Held, group: _Group, error: OSError) -> None:
        """No descriptor is left to be told by: look now and then, until there is one."""
        self._failed(error)
        self._watch.later(self._glance, held, group)

    def _glance(self, held: Held, group: _Group) -> None:
        if group.events is None and (held.emptying or held.freezing):
            self._learn_of(held, group, cgroupfs.read(f"{group.directory}/cgroup.events") or _EMPTY)
        if group.events is None and (held.emptying or held.freezing):
            self._look_at(held, group)

    def _unwatch(self, group: _Group) -> None:
        if group.events is not None:
            self._watch.discard(group.events)
            os.close(group.events)
            group.events = None

    def _look(self, held: Held, group: _Group) -> None:
        if group.events is None:
            return
        try:
            events = os.pread(group.events, 256, 0)  # reading is what makes EPOLLPRI go away
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise
            self._unwatch(group)
            events = _EMPTY
        self._learn_of(held, group, events)

    def _learn_of(self, held: Held, group: _Group, events: bytes) -> None:
        if b"frozen 1" in events:
            group.frozen.set()
            self._stands(held)
        elif held.paused and not held.freezing:  # another process has thawed it
            self._write(group, "cgroup.freeze", b"1")
        if b"populated 0" in events:
            self._chase_soon(held)
            self._consider(held)

    def _populated(self, held: Held) -> bool:
        if self._inhabited(held):
            return True
        runs = {below.id for below in held.subtree()}
        for run in runs & self._adopted:
            self._bring_back(self._runs[run])
        return self._inhabited(held) or any(self._orphaned(runs))

    def _inhabited(self, held: Held) -> bool:
        group = self._groups.get(held.id)
        return group is not None and b"populated 1" in cgroupfs.read(f"{group.directory}/cgroup.events")

    def _members(self, *tops: Held) -> Iterator[tuple[int, RunId]]:
        for held in tops:
            group = self._groups.get(held.id)
            for directory in cgroupfs.nested(group.directory) if group else ():
                for pid in cgroupfs.pids(directory):
                    yield pid, self._nearest(directory) or held.id

    def _nearest(self, directory: str) -> RunId | None:
        """The run of a cgroup: the deepest run's at or above it."""
        while len(directory) > len(self._base.directory):
            run = self._directories.get(directory)
            if run is not None:
                return run
            directory = os.path.dirname(directory)
        return None

    # Identity.

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """The run whose cgroup the process is in. Moved to another cgroup, by `systemd-run --scope` for example, it is
        still inside its run: that of its nearest ancestor that is in one, else that whose cookie it carries. Raises
        `Unplaceable`, `OSError`."""
        run = self._inodes.get(cgroup_id(pidfd)) if pidfd is not None else None
        if run is not None:
            self._refuse_moved(pid, run)
            return run
        path = procfs.cgroup(pid) if pid > 0 else None
        run, ours = (self._at(path), False) if path is not None else (None, False)
        if run is None and path is not None:
            run, ours = by_ancestry(pid, self._run_of)
            run = run or by_cookie(pid, self.instance, self._runs)
        if path is None or not still(pidfd):
            raise Unplaceable(f"process {pid} ended before it could be placed")
        if run is None and ours:
            raise left(pid)
        if run is not None:
            self._refuse_moved(pid, run)
        return run

    def _refuse_moved(self, pid: int, run: RunId) -> None:
        """Raises `Unplaceable` for a process in the cgroup of a run that it was not started in: it would have that run's rights."""
        line = (self._orphans.owned.get(each) for each in procfs.ancestry(pid))
        began = next((each for each in line if each is not None), None) or self._by_cookie(pid)
        if began is not None and not self._within(run, began):
            raise Unplaceable(f"process {pid} was started in run {began} and has moved itself into the cgroup of run {run}")

    def _run_of(self, pid: int) -> RunId | None:
        """The run of an ancestor."""
        owned = self._orphans.owned.get(pid)
        path = None if owned else procfs.cgroup(pid)
        return owned or (self._at(path) if path is not None else None)

    def _at(self, path: str) -> RunId | None:
        inside = cgroupfs.below(path, self._base.path)
        if inside is None:
            return None
        run = self._nearest(f"{self._base.directory}/{inside}")
        if run is None:
            raise Unplaceable(f"its cgroup {shown(path)} belongs to no run that is known")
        return run


def _inode(directory: str) -> int:
    """Of its leaf."""
    return os.stat(f"{directory}/{_LEAF}").st_ino


def _move(process: Stat, leaf: str) -> None:
    now = procfs.stat(process.pid)
    if now is not None and now.started == process.started:
        with suppress(ProcessLookupError):
            cgroupfs.write(f"{leaf}/cgroup.procs", b"%d" % process.pid)
